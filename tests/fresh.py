"""Fresh processes in which this package cannot be imported: only what a checkpoint brings is there."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


BLOCK_THE_PACKAGE = """
import json, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("transformers_egrm", "modeling"):
            raise ModuleNotFoundError(f"No module named {name!r}: blocked", name=name)

sys.meta_path.insert(0, Block())
"""


def measure(model: Any, records: list[dict[str, str]]) -> dict[str, list[Any]]:
    """Everything a checkpoint computes, as floats that JSON keeps exactly: all probes, chains, scores, distributions."""
    inputs = model.processor(records)
    short = {"probe_vocabulary": "verdict", "max_probe_tokens": 2, "seed": 3}
    long = model.judge(inputs, **short, consensus_threshold=1.0, selection="scorer", max_chain_tokens=4, num_chains=2)
    exact = model.judge(inputs, **short, consensus="exact", reward="expected", consensus_threshold=0.0)
    ids = inputs.input_ids
    values = {
        "rewards": long.rewards, "consensus": long.consensus, "probes": long.probe_verdicts, "scores": long.chain_scores,
        "expected rewards": exact.rewards, "verdict distribution": exact.verdict_probs,
        "logits": model.generator(ids, attention_mask=inputs.attention_mask).logits[:, -1, :8].detach(),
    }  # fmt: skip
    return {name: value.double().nan_to_num(-1.0).flatten().tolist() for name, value in values.items()}


def run_fresh(script: str, given: dict[str, Any], folder: Path, *, package: bool = False, **environment: str) -> Any:
    """Run a script in a process of its own and return what it printed last, read as JSON.

    Args:
        script: Python source. It finds `given` and `measure`.
        given: Plain data.
        folder: Where it runs, and keeps the modules it loads with a checkpoint.
        package: Whether this package may be imported there.
        **environment: Variables to set on top of the present ones.
    """
    source = "\n".join([
        "" if package else BLOCK_THE_PACKAGE, "import json, sys", "from typing import Any", "import torch",
        "torch.set_num_threads(1)", inspect.getsource(measure), "given = json.loads(sys.stdin.read())", script,
    ])  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", source], input=json.dumps(given), cwd=folder,
        capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HOME": str(folder / "hf"), "HF_MODULES_CACHE": str(folder / "modules"), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])

"""The model card of the bundled judge, from what `paper_tables.py` measured on it.

Run:
    python benchmarks/paper_tables.py transformers_egrm/checkpoints/egrm-mini --split sealed --limit 300 --output tables
    python benchmarks/model_card.py tables/results.json model_cards/egrm-mini.md

No figure is typed by hand, and results of other weights are refused.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paper_report import to_markdown
from paper_tables import weights_of

from transformers_egrm import load_mini
from transformers_egrm.bundle import MINI_FOLDER, MINI_NAME
from transformers_egrm.cli.card import count_parameters
from transformers_egrm.modeling.hub_card_egrm import MARKER, render_card


USE = """
## Use

It comes with the package: `load_mini()`, `egrm score egrm-mini answers.jsonl`, `pipeline("reward-scoring")`. It was trained
with `examples/train/egrm_mini.yaml`. It shows how routing, chains and the scorer work together, in seconds and without a download.

## Measured

On the sealed split of its world: no task in it occurs in training, in any words, and nothing was chosen on it. These tables
have the paper's trigger: five sampled verdicts with top-p 0.95, threshold 0.8. *Exact consensus* in them keeps that nucleus
and threshold too. One chain always is the cheapest simple alternative; the paper's trigger with four chains costs more than
that and is right less often. The defaults above do better: see `docs/benchmarks.md`.
"""


def main() -> None:
    """Write the card."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="results.json of paper_tables.py")
    parser.add_argument("card", type=Path, help="Markdown file to write")
    arguments = parser.parse_args()
    results = json.loads(arguments.results.read_text("utf-8"))[0]
    measured, bundled = results["circumstances"]["weights_sha256"], weights_of(MINI_FOLDER)
    if measured != bundled:
        raise SystemExit(
            f"{arguments.results} was measured on the weights {measured[:12]}, the bundle has {bundled[:12]}."
        )
    arguments.card.write_text(render(results), "utf-8")


def render(results: Mapping[str, Any]) -> str:
    """The card's text.

    Args:
        results: Of one checkpoint.
    """
    card = render_card(load_mini().config, count_parameters(MINI_FOLDER)).replace(f"{MARKER}\n\n", "")
    tables = to_markdown([results]).replace("\n## ", "\n### ").partition("\n\n")[2]
    return f"{card.replace('# E-GRM judge', f'# {MINI_NAME}')}{USE}\n{tables}"


if __name__ == "__main__":
    main()

"""OpenRLHF: the reward function of `--reward.remote_url FILE.py`, asked of a server.

The trainer loads this file by its path, in an environment of its own: it needs Python 3.9, and the client's file beside it.

    EGRM_URL=http://127.0.0.1:8000 python -m openrlhf.cli.train_ppo_ray --reward.remote_url .../integrations/openrlhf.py ...

It sends what OpenRLHF would send to a URL, and answers the same. What it adds is the client: it sends a token, keeps
connections, and waits for a busy server as long as that advises.
"""

import importlib.util
import os
from functools import lru_cache
from pathlib import Path
from typing import Any


def reward_func(queries: "list[str]", prompts: "list[str]", labels: "list[str | None]") -> "dict[str, Any]":
    """Rewards of N continuations; threads may call it.

    Args:
        queries: N rendered prompts with their continuations, control tokens included.
        prompts: The prompts alone.
        labels: What the dataset says is right, or None; the server's option `--labels` decides what becomes of it.

    Returns:
        `rewards` [N], `scores` [N] in [0, 1] and `extra_logs`, name -> [N]: numbers, and nothing else.

    Raises:
        RuntimeError: The environment variable EGRM_URL is not set.
        ServerError: The server was not reached; or an answer has no verdict and the server no `--fallback`.
    """
    body = {"query": list(queries), "prompts": list(prompts), "labels": list(labels)}
    return _client(os.environ.get("EGRM_URL")).post("/get_reward", body)


@lru_cache(maxsize=None)  # noqa: UP033 (Python 3.9 is what trainers may run)
def _client(url: "str | None") -> Any:
    if not url:
        raise RuntimeError("The address of `egrm serve` is needed. Set the environment variable EGRM_URL.")
    # Found by its place, since a file that is loaded by its path belongs to no package.
    found = [path for name in ("egrm_client.py", "client.py") if (path := Path(__file__).with_name(name)).is_file()]
    if not found:
        raise RuntimeError(f"{Path(__file__).parent} lacks the client. Run `egrm client > egrm_client.py` there.")
    spec = importlib.util.spec_from_file_location("egrm_client", found[0])
    assert spec is not None, "a Python file"
    assert spec.loader is not None, "likewise"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Client(url, connections=64)


__all__ = ["reward_func"]

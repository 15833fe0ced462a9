"""verl: a reward manager that reads the conversation, and `compute_score` for datasets that carry the question; asked of a server.

verl loads this file by its path, in an environment of its own: it needs Python 3.10, verl, and the client's file beside it.

    reward.reward_manager.source=importlib reward.reward_manager.name=EGRMRewardManager
    reward.reward_manager.module.path=.../integrations/verl.py

Settings stand in `reward.reward_kwargs`: `url` (by default the environment variable EGRM_URL) and `fallback`, the reward of
an answer without a verdict. Without a fallback such an answer ends the run: verl knows no missing reward.
"""

import asyncio
import importlib.util
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any


try:
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase  # pyright: ignore
except ImportError:  # read without the trainer, for example by those who document this file

    class RewardManagerBase:
        """Stands in for verl's."""


class EGRMRewardManager(RewardManagerBase):  # pyright: ignore[reportGeneralTypeIssues]
    """Judges the last response of each sample with `raw_prompt`, the conversation before it.

    Args:
        config: verl's configuration.
        tokenizer: The policy's, which decodes responses.
        compute_score: Not called: the judge decides.
        **kwargs: What verl gives to every manager, such as the address of its own reward models. Not read.
    """

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, compute_score)  # pyright: ignore[reportCallIssue]
        settings = config.reward.get("reward_kwargs") or {}
        self.policy_tokenizer, self.url, self.fallback = tokenizer, settings.get("url"), settings.get("fallback")

    async def run_single(self, data: Any) -> "dict[str, Any]":
        """Judge one sample, of several sequences the last one.

        Args:
            data: A `DataProto` with `responses` and `attention_mask`, and `raw_prompt` among what is no tensor.

        Returns:
            `reward_score`, a number, and `reward_extra_info`, which has the same keys in every sample.

        Raises:
            KeyError: There is no `raw_prompt`: the dataset must keep it (`data.return_raw_chat=True` in older versions).
            ValueError: The answer has no verdict, and there is no fallback.
            ServerError: The server refused, or was not reached.
        """
        item = data[-1:][0]
        prompt = [_message(message) for message in item.non_tensor_batch["raw_prompt"]]
        ids = item.batch["responses"]
        length = int(item.batch["attention_mask"][-ids.shape[-1] :].sum())
        text = self.policy_tokenizer.decode(ids[:length], skip_special_tokens=True)
        told = await asyncio.to_thread(_ask, self.url, {"prompt": prompt, "response": text}, self.fallback)
        return {"reward_score": told["score"], "reward_extra_info": told}


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: "Mapping[str, Any] | None" = None, *,
    url: "str | None" = None, fallback: "float | None" = None, **kwargs: Any,
) -> "dict[str, float]":  # fmt: skip
    """verl's custom reward function, for datasets whose `extra_info` has the question: verl passes no prompt.

    Args:
        data_source: Not read.
        solution_str: The response.
        ground_truth: Not read.
        extra_info: `question`, text or messages.
        url: Address of the server, by default the environment variable EGRM_URL.
        fallback: Reward of an answer without a verdict; None: an error.
        **kwargs: What verl passes beside them. Not read.

    Returns:
        `score` and what the judge says beside it, with the same keys for every sample.

    Raises:
        ValueError: There is no question; or the answer has no verdict, and there is no fallback.
        ServerError: The server refused, or was not reached.
    """
    question = (extra_info or {}).get("question")
    if question is None or len(question) == 0:
        raise ValueError("A judge needs the question. Put it into `extra_info['question']`, or use EGRMRewardManager.")
    prompt = question if isinstance(question, str) else [_message(message) for message in question]
    return _ask(url, {"prompt": prompt, "response": solution_str}, fallback)


def _ask(url: "str | None", record: "dict[str, Any]", fallback: "float | None") -> "dict[str, float]":
    (result,) = _client(url or os.environ.get("EGRM_URL")).reward([record], coalesce=True)
    reward = result["reward"] if result["reward"] is not None else fallback
    if reward is None:
        raise ValueError(
            f"The answer has no reward (status {result['status']}: {result['error']}). Set `fallback` to a number."
        )
    return {
        "score": float(reward),
        "judge_consensus": float(result["consensus"] or 0.0),
        "judge_long_path": float(result["route"] == "long"),
        "judge_tokens": float(result["tokens"]),
        "judge_parse_failed": float(result["reward"] is None),
    }


def _message(message: "Mapping[str, Any]") -> "dict[str, Any]":
    # As JSON: tables make arrays of lists.
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in message.items()
        if value is not None
    }


@lru_cache(maxsize=None)  # noqa: UP033 (as in `openrlhf.py`)
def _client(url: "str | None") -> Any:
    # Each file that a trainer loads stands alone; so this is in `openrlhf.py` too.
    if not url:
        raise ValueError("The address of `egrm serve` is needed. Set `url`, or the environment variable EGRM_URL.")
    found = [path for name in ("egrm_client.py", "client.py") if (path := Path(__file__).with_name(name)).is_file()]
    if not found:
        raise ValueError(f"{Path(__file__).parent} lacks the client. Run `egrm client > egrm_client.py` there.")
    spec = importlib.util.spec_from_file_location("egrm_client", found[0])
    assert spec is not None, "a Python file"
    assert spec.loader is not None, "likewise"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Client(url, connections=64)


__all__ = ["EGRMRewardManager", "compute_score"]

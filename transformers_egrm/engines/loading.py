"""A judge without its generator's weights: what is left where the generator runs elsewhere."""

from typing import Any

import torch
from safetensors import safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.errors_egrm import ModelError
from transformers_egrm.modeling.judge_scorer_egrm import EGRMScorer
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


def load_without_generator(folder: str, revision: str | None = None) -> EGRMRewardModel:
    """A judge that has its configuration, processor and scorer, and whose generator is a shape without weights.

    Args:
        folder: A checkpoint's folder, or its Hub id.
        revision: Branch, tag or commit on the Hub.

    Returns:
        The judge in evaluation mode, on the CPU. It judges once an engine is assigned to `engine`.

    Raises:
        ModelError: The checkpoint lacks the scorer's tensors.
    """
    where: dict[str, Any] = {} if revision is None else {"revision": revision}
    config: Any = EGRMConfig.from_pretrained(folder, **where)
    with torch.device("meta"):
        model = EGRMRewardModel(config)
    if config.has_scorer:
        scorer = EGRMScorer(config)
        report = scorer.load_state_dict(_scorer_tensors(folder, where), strict=False)
        missing = [name for name in report.missing_keys if config.scorer_trained or not name.startswith("score_head.")]
        if missing or report.unexpected_keys:
            raise ModelError(f"The scorer of {folder!r} lacks {missing[:6]} and has {report.unexpected_keys[:6]} too many.",
                             "Save the checkpoint again.")  # fmt: skip
        model.scorer = scorer
    config.name_or_path = folder  # where its processor is
    model._loading_options = {"trust_remote_code": False, **where}
    return model.eval()


def _scorer_tensors(folder: str, where: dict[str, Any]) -> dict[str, torch.Tensor]:
    files: list[Any] = [cached_file(folder, SAFE_WEIGHTS_NAME, _raise_exceptions_for_missing_entries=False, **where)]
    if files == [None]:
        files = list(
            get_checkpoint_shard_files(folder, cached_file(folder, SAFE_WEIGHTS_INDEX_NAME, **where), **where)[0] or ()
        )
    tensors = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (not a dict)
                if name.startswith("scorer."):
                    tensors[name.removeprefix("scorer.")] = opened.get_tensor(name)
    return tensors


__all__ = ["load_without_generator"]

"""A judge's components as plain folders: what servers of language models and of encoders load."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForTokenClassification

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.hub_components_egrm import has_adapter, merged_state_dict
from transformers_egrm.modeling.judge_scorer_egrm import encode_pairs


GENERATOR, SCORER = "generator", "scorer"
"""Names of the folders."""
_SAME = 1e-5


def write_components(model: Any, folder: str | Path, *, scorer: bool = True) -> dict[str, Path]:
    """Write `generator/`, and `scorer/` where there is an encoder, each with its tokenizer.

    The generator is a causal LM as any other; a live adapter is merged. The scorer becomes a token classifier with one
    label: the logit of its first token is the score before the sigmoid. Both are compared before anything is written.

    Args:
        model: An `EGRMRewardModel` with its weights.
        folder: Made if absent.
        scorer: Whether the scorer is written too.

    Returns:
        The folders, by name.

    Raises:
        ConfigError: The encoder's family has no token classifier that computes the same.
    """
    written = {GENERATOR: Path(folder) / GENERATOR}
    state = merged_state_dict(model.generator) if has_adapter(model.generator) else None
    model.generator.save_pretrained(written[GENERATOR], state_dict=state)
    _write_tokenizer(model.processor.tokenizer, written[GENERATOR])
    if scorer and model.scorer is not None and model.scorer.kind == "encoder":
        written[SCORER] = Path(folder) / SCORER
        _classifier(model).save_pretrained(written[SCORER])
        _write_tokenizer(model.processor.scorer_tokenizer, written[SCORER])
    return written


def _write_tokenizer(tokenizer: Any, folder: Path) -> None:
    # It remembers the judge's processor, whose code no server has.
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text("utf-8"))
    kept = {name: value for name, value in settings.items() if name not in ("auto_map", "processor_class")}
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", "utf-8")


@torch.no_grad()
def _classifier(model: Any) -> Any:
    scorer, tokenizer = model.scorer, model.processor.scorer_tokenizer
    labels = {"id2label": {0: "score"}, "label2id": {"score": 0}}
    config = type(scorer.encoder.config).from_dict({**scorer.encoder.config.to_dict(), **labels})
    try:
        classifier = AutoModelForTokenClassification.from_config(config, dtype=torch.float32).eval()
        report = classifier.base_model.load_state_dict(scorer.encoder.state_dict(), strict=False)
        classifier.classifier.load_state_dict(scorer.score_head.state_dict())
        pairs = encode_pairs(["a question"], ["an answer"], tokenizer, scorer.token_limit(tokenizer))
        batch = scorer.collate(pairs, tokenizer)
        logits = classifier(**{name: value.cpu() for name, value in batch.items()}).logits[:, 0, 0]
    except (ValueError, AttributeError, RuntimeError) as error:
        raise _refusal(scorer) from error
    if report.missing_keys or not torch.allclose(logits.sigmoid(), scorer(**batch).cpu(), atol=_SAME, rtol=0):
        raise _refusal(scorer)
    return classifier


def _refusal(scorer: Any) -> ConfigError:
    return ConfigError(
        f"{type(scorer.encoder).__name__} has no token classifier of Transformers that computes what this scorer does.",
        "Export the generator alone with --no-scorer, and let the scorer run in the judge.",
    )


__all__ = ["GENERATOR", "SCORER", "write_components"]

"""The model card: what a checkpoint is and how to use it, rendered from its configuration, never typed."""

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from textwrap import wrap
from typing import Any

from .configuration_egrm import EGRMConfig
from .judge_certificate_egrm import certificate_lines
from .prompt_task_egrm import JudgeTask


MARKER = "<!-- Rendered from config.json at every save. Remove this line to keep your own text. -->"
_EXAMPLE = {"prompt": "What is 2 + 3?", "response": "5"}
_STUB = "This model card has been automatically generated."  # what Transformers pushes where there is no card


def write_card(folder: str | PathLike, config: EGRMConfig, parameters: Mapping[str, int], tags: Sequence[str]) -> None:
    """Write `README.md`, unless someone wrote one by hand.

    Args:
        folder: The checkpoint's folder.
        config: The checkpoint's configuration.
        parameters: Number of parameters per component.
        tags: More tags than the card's own.
    """
    path = Path(folder) / "README.md"
    if not path.exists() or is_rendered(path.read_text(encoding="utf-8")):
        path.write_text(render_card(config, parameters, tags), encoding="utf-8")


def is_rendered(text: str) -> bool:
    """Whether a card may be rendered anew: no one has edited it.

    Args:
        text: The card.
    """
    return MARKER in text or _STUB in text


def render_card(config: EGRMConfig, parameters: Mapping[str, int], tags: Sequence[str] = ()) -> str:
    """The card's text.

    Args:
        config: The checkpoint's configuration.
        parameters: Number of parameters per component.
        tags: More tags than the card's own.
    """
    own = ["egrm_reward", "reward-model", "generative-reward-model", "llm-as-a-judge"]
    card = config.card or {}
    front = ["---", "library_name: transformers", "pipeline_tag: text-classification", *_front_matter(card), "tags:"]
    front += [f"- {tag}" for tag in dict.fromkeys([*own, *tags])]
    front += ["base_model:", *(f"- {name}" for name in config.base_models)] if config.base_models else []
    options = config.judge_options()
    lines = [
        *front, "---", "", MARKER, "", "# E-GRM judge", "",
        *([*_quoted(f"**Warning.** {card['warning']}"), ""] if card.get("warning") else []),
        "Judges an answer with short verdicts drawn from one prefill, believes them when they agree, and thinks in",
        "chains of thought only when they do not ([method](https://huggingface.co/papers/2604.10072)).", "",
        "```python", "from transformers import pipeline", "",
        'judge = pipeline("reward-scoring", model="path or id of this checkpoint", trust_remote_code=True)',
        f'judge({json.dumps(card.get("example") or _EXAMPLE, ensure_ascii=False)})["reward"]', "```", "",
        "The checkpoint brings its own code: pin `revision` and `code_revision` to a commit that you have read.", "",
        "## Reward", "", *_reward_lines(config), "",
        "## Defaults", "", "| setting | value |", "|---|---|",
        f"| probes (temperatures) | {options.num_probes} ({', '.join(map(str, options.temperatures))}) |",
        f"| top-p of the probes | {', '.join(map(str, options.top_ps))} |",
        f"| consensus | {options.consensus}, short path from {options.consensus_threshold} |",
        f"| probe budget | {options.max_probe_tokens} tokens, {options.probe_vocabulary} vocabulary |",
        f"| chains on the long path | {options.num_chains} of at most {options.max_chain_tokens} tokens |",
        f"| selection | {options.selection} |", "",
        *(["## Promise", "", *certificate_lines(config.certificate), ""] if config.certificate else []),
        "## Components", "", "| part | architecture | parameters |", "|---|---|---|",
        *(f"| {part} | {_architecture(config, part)} | {count:,} |" for part, count in parameters.items()),
    ]  # fmt: skip
    if config.has_scorer and not config.scorer_trained:
        lines += ["", "The scorer is untrained: the long path does not use it unless asked to."]
    return "\n".join([*lines, ""])


def _quoted(text: str) -> list[str]:
    return wrap(text, 119, initial_indent="> ", subsequent_indent="> ", break_long_words=False, break_on_hyphens=False)


def _front_matter(card: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in ("license", "language"):
        values = [card[name]] if isinstance(card.get(name), str) else list(card.get(name) or ())
        lines += (
            [f"{name}: {values[0]}"]
            if len(values) == 1
            else [f"{name}:", *(f"- {v}" for v in values)]
            if values
            else []
        )
    return lines


def _reward_lines(config: EGRMConfig) -> list[str]:
    if config.task is None:
        return ["The checkpoint fixes no verdict space: each call names its own."]
    space = JudgeTask.from_dict(config.task).space
    if not space.enumerable:
        return ["Free answers: the verdict is text; a reward exists only against a reference."]
    scale = (
        "as judged, not calibrated"
        if config.judge_options().reward == "verdict"
        else "averaged over the verdict distribution"
    )
    return [
        f"Verdict space `{space.kind}`: {', '.join(f'`{label}`' for label in space.labels)}.",
        f"Rewards lie in [{min(space.rewards):g}, {max(space.rewards):g}], {scale}; without a verdict there is no",
        "reward (`None`, or NaN in tensors), and `status` says why.",
    ]


def _architecture(config: EGRMConfig, part: str) -> str:
    if part == "generator":
        return config.get_text_config().model_type
    if part == "draft":
        return getattr(config.draft_config, "model_type", "unknown")
    return getattr(config.scorer_config, "model_type", "head on the generator's states")


__all__ = ["is_rendered", "render_card", "write_card"]

"""What a judgement may be asked for: the right values, and prompts after which the context has room for the answer."""

from .configuration_egrm import POOLINGS, EGRMConfig
from .errors_egrm import ConfigError, PromptTooLongError, need, need_flag
from .judge_options_egrm import JudgeOptions
from .judge_plan_egrm import JudgePlan
from .judge_values_egrm import JudgeInputs
from .prompt_task_egrm import JudgeTask


def need_readable(inputs: object, explain: object, states: object) -> None:
    """Refuse what `EGRMRewardModel.judge` cannot read.

    Args:
        inputs: By its abilities: remote code may bring a class of its own.
        explain: True or False.
        states: One of `POOLINGS`, or None.

    Raises:
        ConfigError: One is something else.
    """
    if not hasattr(inputs, "item_index"):
        raise ConfigError(
            f"`judge` reads the JudgeInputs that a processor makes, got {type(inputs).__name__}.",
            "Pass `model.processor(records)`, or give records to `RewardJudge`.",
        )
    need_flag("explain", explain)
    need(states in (None, *POOLINGS), "states", states, f"one of {', '.join(POOLINGS)}, or None")


def need_context(config: EGRMConfig, options: JudgeOptions) -> None:
    """Refuse answers that fill the whole context.

    Args:
        config: The checkpoint's.
        options: Resolved.

    Raises:
        ConfigError: They leave no token for a prompt.
    """
    context, room = config.context, options.room
    if context is not None and room >= context:
        name = "max_chain_tokens" if room > options.max_probe_tokens else "max_probe_tokens"
        raise ConfigError(
            f"`{name}` of {room} leaves no room for a prompt in the generator's context of {context} tokens.",
            f"Use at most {max(context // 2, 1)}.",
        )


def longest_prompt(config: EGRMConfig, room: int, task: JudgeTask) -> int | None:
    """Tokens of the longest prompt without its mode suffix; None: the context is not known.

    Args:
        config: The checkpoint's.
        room: Tokens that are kept for the answer.
        task: Its suffixes count.
    """
    suffix = max(len(task.short_suffix_ids), len(task.long_suffix_ids))
    return None if config.context is None else config.context - room - suffix


def need_room(inputs: JudgeInputs, config: EGRMConfig, options: JudgeOptions, plan: JudgePlan | None) -> None:
    """Refuse prompts after which the context has no room for what may be written.

    Args:
        inputs: R prompts.
        config: The checkpoint's.
        options: Resolved.
        plan: Paths of the items; None: as the options say.

    Raises:
        PromptTooLongError: A prompt is longer.
    """
    room = options.room
    if plan is not None and set(plan.paths) != {options.path}:
        room = max(options.max_chain_tokens, options.max_probe_tokens)
    limit = longest_prompt(config, room, inputs.task)
    longest = int(inputs.attention_mask.sum(-1).max()) if limit is not None else 0
    if limit is not None and longest > limit:
        raise PromptTooLongError(
            f"A judge prompt has {longest} tokens, and the context of {config.context} has room for {limit} beside the "
            f"answer ({room}) and its instruction.",
            "Shorten the record, or lower `max_chain_tokens`.",
        )


__all__ = ["longest_prompt", "need_context", "need_readable", "need_room"]

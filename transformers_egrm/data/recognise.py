"""Records of known data sets as they are: which of their columns are question and answers.

Known are preference pairs (`chosen` and `rejected`, as texts, conversations, transcripts or lists), several completions of
one instruction, conversations of `from` and `value`, and instructions with an input. A form is told by its columns alone,
record by record, so that it does not depend on what stands before.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


COLUMNS = ("prompt", "question", "instruction", "input", "output", "chosen", "rejected", "completions", "conversations",
           "conversation", "messages")  # fmt: skip
"""Every column that a form may read."""

Turns = list[dict[str, Any]]
_FORMS = ({"chosen", "rejected"}, {"completions"}, {"conversations"}, {"conversation"}, {"instruction", "output"})
_ROLES = {
    "human": "user", "user": "user", "prompter": "user", "gpt": "assistant", "assistant": "assistant",
    "chatgpt": "assistant", "model": "assistant", "bot": "assistant", "system": "system", "tool": "tool",
    "observation": "tool", "function_response": "tool",
}  # fmt: skip
_TRANSCRIPT = re.compile(r"(?:\A\s*|\n\n)(Human|Assistant):[ ]?")


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a record was recognised as."""

    form: str
    """For a reader."""
    fields: Mapping[str, Any]
    """The judged record's fields."""
    problem: str | None = None
    """Why the command cannot judge it; None where it can."""


@dataclass(frozen=True, slots=True)
class _Answers:
    # A question with several answers, the preferred ones first.
    form: str
    prompt: Any
    chosen: Sequence[Any]
    rejected: Sequence[Any]
    problem: str | None = None


def may_fit(columns: Iterable[str]) -> bool:
    """Whether a table with these columns may hold a known form.

    Args:
        columns: Their names.
    """
    available = set(columns)
    return any(form <= available for form in _FORMS)


def recognise(values: Mapping[str, Any], needed: Iterable[str]) -> Recognised | None:
    """The judged record inside a record of a known form; None where the form is not known.

    Args:
        values: All fields of the file's record.
        needed: Fields that the command reads, among them `response`, `response_a` and `response_b`, or `responses`.
    """
    needed, values = set(needed), {name: value for name, value in values.items() if value is not None}
    answers = _preference(values) or _completions(values)
    if answers is not None:
        return _for_command(answers, needed)
    if "messages" in needed and (turns := _conversation_of(values)):
        return Recognised("a conversation of `from` and `value`", {"messages": turns})
    if "response" in needed and isinstance(values.get("output"), str) and (prompt := _prompt(values)) is not None:
        return Recognised("`instruction` with `input`, and `output`", {"prompt": prompt, "response": values["output"]})
    return None


def turns_of(value: Any) -> Turns | None:
    """A conversation as messages of `role` and `content`; None where the value is none.

    Args:
        value: A list of messages with `role` and `content` or `from` and `value`, one message alone, JSON of either, or a
            transcript that opens with "Human:".
    """
    if isinstance(value, str):
        text = value.lstrip()
        if text.startswith("Human:"):
            return _transcript(text)
        if not text.startswith(("[", "{")):
            return None
        value = _decoded(text)
    value = [value] if isinstance(value, Mapping) else value
    if not isinstance(value, list | tuple) or not value:
        return None
    turns = [_turn(message) for message in value]
    return turns if all(turn is not None for turn in turns) else None  # pyright: ignore[reportReturnType]


def _turn(message: Any) -> dict[str, Any] | None:
    if not isinstance(message, Mapping):
        return None
    if "role" in message:
        return dict(message)
    if "from" not in message or "value" not in message:
        return None
    speaker, text = str(message["from"]), message["value"]
    if speaker == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": [_decoded(text) or {"name": text}]}
    return {"role": _ROLES.get(speaker.lower(), speaker), "content": text}


def _decoded(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


def _transcript(text: str) -> Turns:
    pieces = _TRANSCRIPT.split(text)
    roles = {"Human": "user", "Assistant": "assistant"}
    return [
        {"role": roles[speaker], "content": words.strip()}
        for speaker, words in zip(pieces[1::2], pieces[2::2], strict=True)
    ]


def _prompt(values: Mapping[str, Any]) -> Any:
    """The question: text, or messages; None where there is none."""
    if "instruction" in values:
        parts = [values["instruction"], values.get("input")]
        return "\n\n".join(part for part in parts if isinstance(part, str) and part.strip()) or None
    prompt = next((values[name] for name in ("prompt", "question") if name in values), None)
    if prompt is None:
        return _conversation_of(values)
    turns = turns_of(prompt)
    if turns is None:
        return prompt
    return turns[:-1] if turns[-1] == {"role": "assistant", "content": ""} else turns


def _conversation_of(values: Mapping[str, Any]) -> Turns | None:
    found = next((values[name] for name in ("conversations", "conversation") if name in values), None)
    return None if found is None else turns_of(found)


def _preference(values: Mapping[str, Any]) -> _Answers | None:
    if "chosen" not in values or "rejected" not in values:
        return None
    chosen, rejected, prompt = values["chosen"], values["rejected"], _prompt(values)
    if _is_texts(chosen) and _is_texts(rejected):
        return None if prompt is None else _Answers("lists of chosen and rejected texts", prompt, chosen, rejected)
    better, worse = turns_of(chosen), turns_of(rejected)
    if better and worse:
        return _of_conversations(better, worse, prompt, isinstance(chosen, str) and chosen.lstrip()[:1] == "H")
    if isinstance(chosen, str) and isinstance(rejected, str) and prompt is not None:
        return _Answers("chosen and rejected texts", prompt, [chosen], [rejected])
    return None


def _of_conversations(better: Turns, worse: Turns, prompt: Any, transcript: bool) -> _Answers | None:
    form = "chosen and rejected " + ("transcripts" if transcript else "conversations")
    pairs = zip(better[:-1], worse[:-1], strict=False)
    shared = next(
        (place for place, (one, other) in enumerate(pairs) if one != other), min(len(better), len(worse)) - 1
    )
    if shared == 0 and prompt is None:
        return None
    # Where both hold the question, that is the whole of it; else the record's own.
    question = better[:shared] if shared else prompt
    problem = None
    if len(better) != shared + 1 or len(worse) != shared + 1:
        problem = (f"`chosen` and `rejected` must be answers to one question, but differ from turn {shared + 1} on, of "
                   f"{len(better)} and {len(worse)}.")  # fmt: skip
    return _Answers(form, question, [_answer(better[-1])], [_answer(worse[-1])], problem)


def _answer(turn: Mapping[str, Any]) -> Any:
    return turn["content"] if isinstance(turn.get("content"), str) and not turn.get("tool_calls") else dict(turn)


def _completions(values: Mapping[str, Any]) -> _Answers | None:
    completions, prompt = values.get("completions"), _prompt(values)
    if not isinstance(completions, list | tuple) or not completions or prompt is None:
        return None
    texts = [
        next((c[name] for name in ("response", "text", "content") if name in c), None) if isinstance(c, Mapping) else c
        for c in completions
    ]
    return _Answers("completions of one instruction", prompt, texts, ()) if _is_texts(texts) else None


def _for_command(answers: _Answers, needed: set[str]) -> Recognised:
    """The fields of the command, or why it cannot judge this many answers."""
    every = [*answers.chosen, *answers.rejected]
    pair = "; response_a is the chosen one" if answers.rejected else ""
    if answers.problem:
        return Recognised(answers.form, {}, answers.problem)
    if "responses" in needed:
        order = f"; the first {len(answers.chosen)} of {len(every)} responses are chosen" if answers.rejected else ""
        return Recognised(f"{answers.form}{order}", {"prompt": answers.prompt, "responses": every})
    if "response_a" in needed and len(every) == 2 and len(answers.chosen) in (1, 2):
        return Recognised(
            f"{answers.form}{pair}", {"prompt": answers.prompt, "response_a": every[0], "response_b": every[1]}
        )
    if "response" in needed and len(every) == 1:
        return Recognised(answers.form, {"prompt": answers.prompt, "response": every[0]})
    wanted = "two answers" if "response_a" in needed else "one answer"
    example = (
        "response_b=rejected.0"
        if "response_a" in needed
        else "response=chosen (a whole conversation: messages=chosen)"
    )
    return Recognised(
        answers.form, {},
        f"The record must hold {wanted}, it has {len(every)} ({answers.form}). Rank them with `egrm rank`"
        f"{'' if 'response_a' in needed or len(every) != 2 else ', compare them with `egrm compare`'}, or choose with --map, "
        f"for example {example}.",
    )  # fmt: skip


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(part, str) for part in value)


__all__ = ["COLUMNS", "Recognised", "may_fit", "recognise", "turns_of"]

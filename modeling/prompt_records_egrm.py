"""One record as a user writes it, checked and in one form."""

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from difflib import get_close_matches
from numbers import Real
from typing import Any

from .errors_egrm import InputError
from .prompt_messages_egrm import Message, plain_answer, read_message, read_tools
from .verdict_space_egrm import VerdictSpace


OPTIONAL_KEYS = ("id", "system", "rubric", "reference", "tools")
JUDGED_KEYS = ("response", "response_a", "response_b", "responses", "messages")

# As JSON writes an integer, and a table that made a float of it; `007` and `+7` are names.
_INTEGER = re.compile(r"(0|-?[1-9][0-9]{0,18})(?:\.0)?")


@dataclass(frozen=True, slots=True)
class JudgeRecord:
    """What is judged: a question, which is a conversation without its last response, and the responses to it."""

    messages: tuple[Message, ...]
    """The question."""
    responses: tuple[str, ...]
    """C responses: one for pointwise and binary, two for pairwise, n for listwise, none or one for free."""
    reference: str | None
    """A reference answer."""
    rubric: str | None
    """Rubric of this record alone."""
    key: int | str | None
    """The caller's id."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tools that the conversation may call, as JSON schemas."""
    answer_extras: Mapping[str, Any] = field(default_factory=dict)
    """What the judged response is beside its text, as in `Message.extras`: calls of tools, for example."""
    refusal: str | None = None
    """Why no chat template shows this conversation, so that one text holds it all; None where one does."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that is shown to the judge and may be cut: turns, then responses."""
        return (*(message.content for message in self.messages), *self.responses)

    def with_texts(self, texts: Sequence[str]) -> "JudgeRecord":
        """A copy with other `texts`."""
        turns = len(self.messages)
        messages = tuple(replace(m, content=text) for m, text in zip(self.messages, texts[:turns], strict=True))
        return replace(self, messages=messages, responses=tuple(texts[turns:]))


def read_record(record: Mapping[str, Any], space: VerdictSpace) -> JudgeRecord:
    """Checks a record's keys and fields.

    Args:
        record: `prompt` (text, or chat messages that end with the user's turn) with `response` (pointwise, binary,
            optional for free), `response_a` and `response_b` (pairwise) or `responses` (listwise). Pointwise and binary
            also take `messages`, a conversation that ends with the judged response; free takes one that ends with the
            question. Messages are read by `read_message`. Optional: `id` (number or text), `system`, `rubric`, `reference`
            (text or a number), `tools` (see `read_tools`). A key whose value is None, NaN or another library's mark of a
            missing value counts as absent. Other keys, such as a label, are left alone, unless one looks like a misspelled
            key that is absent or holds another space's answers.
        space: The verdict space it is judged in.

    Raises:
        InputError: A key is missing or misspelled, or a field is empty or not text. The message names the key.
    """
    if not isinstance(record, Mapping):
        raise InputError(f"A record is a mapping with keys such as `prompt` and `response`, got {_kind(record)}.")
    fields = {key: value for key, value in record.items() if not _is_missing(value)}
    answers = {
        "pointwise": ("response",),
        "binary": ("response",),
        "pairwise": ("response_a", "response_b"),
        "listwise": ("responses",),
        "free": ("response",),
    }[space.kind]
    takes_messages = space.kind in ("pointwise", "binary", "free")
    expected = ("prompt", *answers, *(("messages",) if takes_messages else ()), *OPTIONAL_KEYS)
    _refuse_other_keys(fields, expected, space.kind)
    fields |= {key: plain_answer(key, fields[key], _text) for key in answers if key in fields}
    whole = "messages" in fields
    needed = ("messages",) if whole else ("prompt", *(answers if space.kind != "free" else ()))
    missing = [key for key in needed if key not in fields]
    if missing:
        alternative = " or `messages`" if takes_messages else ""
        others = [str(key) for key in fields if key not in expected]
        raise InputError(
            f"A {space.kind} record needs {_names(needed)}{alternative}; {_names(missing)} is missing.",
            f"It has {_names(others)}, which is not read." if others else "",
        )
    excess = [
        key for key in ("prompt", *answers) if whole and key in fields and (space.kind, key) != ("free", "response")
    ]
    if excess:
        raise InputError(f"A record with `messages` holds the whole conversation; remove {_names(excess)}.")

    answer = None
    if whole:
        messages = _read_messages("messages", fields["messages"])
        if space.kind != "free":
            if messages[-1].role != "assistant" or len(messages) < 2:
                raise InputError(
                    "`messages` must hold a question and end with the judged response, an assistant's turn; "
                    f"got the roles {', '.join(message.role for message in messages)}."
                )
            *messages, answer = messages
    else:
        prompt = fields["prompt"]
        messages = [Message("user", _text("prompt", prompt))] if isinstance(prompt, str) else None
        messages = messages or _read_messages("prompt", prompt)
    source = "messages" if whole else "prompt"
    if messages[-1].role not in ("user", "tool"):
        raise InputError(f"The question in `{source}` must end with a user's turn, got {messages[-1].role!r}.")
    if "system" in fields:
        if messages[0].role in ("system", "developer"):
            raise InputError(f"`system` is given twice: as a key and as the first turn of `{source}`.", "Keep one.")
        messages.insert(0, Message("system", _text("system", fields["system"])))

    if space.kind == "listwise":
        responses = _read_responses(fields["responses"], space.num_candidates)
    else:
        responses = tuple(_text(key, fields[key]) for key in answers if key in fields)
        responses = responses if answer is None else (answer.content,)
    key = read_id(fields.get("id"))
    if key is None and "id" in fields:
        raise InputError(f"`id` must be a number or text, got {_kind(fields['id'])}.")
    return JudgeRecord(
        messages=tuple(messages),
        responses=responses,
        reference=_text("reference", _spelled(fields["reference"])) if "reference" in fields else None,
        rubric=_text("rubric", fields["rubric"]) if "rubric" in fields else None,
        key=_text("id", key) if isinstance(key, str) and key else key,
        tools=read_tools("tools", fields["tools"]) if fields.get("tools") else (),
        answer_extras={} if answer is None else answer.extras,
    )


def read_id(value: object) -> int | str | None:
    """A record's id as it is told again: an integer or text; None where it is neither a number nor text.

    Args:
        value: An integer, text, or a number whose integer a table has made a float: `7.0` is 7.
    """
    if isinstance(value, str):
        return value
    number: Any = value
    if isinstance(value, bool) or not isinstance(value, Real | Decimal) or not math.isfinite(number):
        return None
    return int(number) if number == int(number) else str(number)


def draw_key(key: int | str) -> int | str:
    """What an id draws by: text that spells an integer draws as the integer, so that a table draws as JSON does.

    Args:
        key: As `read_id` returns it.
    """
    spelled = _INTEGER.fullmatch(key) if isinstance(key, str) else None
    return key if spelled is None else int(spelled[1])


def _is_missing(value: object) -> bool:
    # NaN, and what pandas and Polars put where there is nothing.
    if isinstance(value, Real | Decimal):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _spelled(value: object) -> object:
    """A number as its text, without the `.0` that a table gives an integer."""
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return value
    return str(value if (number := read_id(value)) is None else number)


def _refuse_other_keys(fields: Mapping[str, Any], expected: Sequence[str], kind: str) -> None:
    """Refuse keys that were meant for something: answers of another verdict space, and misspelled ones."""
    advice = f"It takes {', '.join(expected)}."
    others = [str(key) for key in fields if key not in expected]
    if answers := [key for key in others if key in JUDGED_KEYS]:
        raise InputError(f"Unknown keys {', '.join(answers)} in a {kind} record.", advice)
    absent = [key for key in expected if key not in fields]
    for key in others:
        if close := get_close_matches(key, absent, n=1, cutoff=0.8):
            raise InputError(f"Unknown key {key} in a {kind} record: is it `{close[0]}`?", advice)


def _as_list(value: Any) -> Any:
    """A NumPy array as a list; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, Sequence) else value


def _read_messages(key: str, value: object) -> list[Message]:
    value = _as_list(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) == 0:
        raise InputError(f"`{key}` must be text or a list of messages with `role` and `content`, got {_kind(value)}.")
    return [read_message(f"{key}[{index}]", message, _text) for index, message in enumerate(value)]


def _read_responses(value: object, count: int) -> tuple[str, ...]:
    value = _as_list(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InputError(f"`responses` must be a list of texts, got {_kind(value)}.")
    if len(value) != count:
        raise InputError(
            f"`responses` must hold {count} candidates, as the verdict space says, got {len(value)}.",
            f"Pass space=VerdictSpace.listwise({max(len(value), 2)}).",
        )
    read = [plain_answer(f"responses[{index}]", response, _text) for index, response in enumerate(value)]
    return tuple(_text(f"responses[{index}]", response) for index, response in enumerate(read))


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"`{key}` must be text, got {_kind(value)}.")
    if not value.strip():
        raise InputError(f"`{key}` must not be empty, got {value[:20]!r}.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"`{key}` must be valid Unicode, got a lone surrogate at character {error.start}.",
            "Decode the file as UTF-8 with errors='replace'.",
        ) from None
    return value


def _kind(value: object) -> str:
    # Not the whole of it: a value may be millions of characters long, or nested thousands of levels deep.
    return f"{type(value).__name__} {reprlib.repr(value)}"


def _names(keys: Sequence[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


__all__ = ["JudgeRecord", "Message", "draw_key", "read_id", "read_record"]

"""One record as a user writes it, checked and in one form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from .errors_egrm import InputError
from .verdict_space_egrm import VerdictSpace


ROLES = ("system", "developer", "user", "assistant", "tool")
OPTIONAL_KEYS = ("id", "system", "rubric", "reference")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    """One of system, developer, user, assistant, tool."""
    content: str
    """Its text, not empty."""


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
            question. Optional: `id` (integer or text), `system`, `rubric`, `reference`. A key whose value is None counts
            as absent.
        space: The verdict space it is judged in.

    Raises:
        InputError: A key is missing or unknown, or a field is empty or not text. The message names the key.
    """
    if not isinstance(record, Mapping):
        raise InputError(f"A record is a mapping with keys such as `prompt` and `response`, got {_kind(record)}.")
    fields = {key: value for key, value in record.items() if value is not None}
    answers = {
        "pointwise": ("response",),
        "binary": ("response",),
        "pairwise": ("response_a", "response_b"),
        "listwise": ("responses",),
        "free": ("response",),
    }[space.kind]
    takes_messages = space.kind in ("pointwise", "binary", "free")
    expected = ("prompt", *answers, *(("messages",) if takes_messages else ()), *OPTIONAL_KEYS)
    unknown = sorted(str(key) for key in fields if key not in expected)
    if unknown:
        raise InputError(
            f"Unknown keys {', '.join(unknown)} in a {space.kind} record.", f"It takes {', '.join(expected)}."
        )
    whole = "messages" in fields
    needed = ("messages",) if whole else ("prompt", *(answers if space.kind != "free" else ()))
    missing = [key for key in needed if key not in fields]
    if missing:
        alternative = " or `messages`" if takes_messages else ""
        raise InputError(f"A {space.kind} record needs {_names(needed)}{alternative}; {_names(missing)} is missing.")
    excess = [
        key for key in ("prompt", *answers) if whole and key in fields and (space.kind, key) != ("free", "response")
    ]
    if excess:
        raise InputError(f"A record with `messages` holds the whole conversation; remove {_names(excess)}.")

    if whole:
        messages = _read_messages("messages", fields["messages"])
        if space.kind != "free":
            if messages[-1].role != "assistant" or len(messages) < 2:
                raise InputError(
                    "`messages` must hold a question and end with the judged response, an assistant's turn; "
                    f"got the roles {', '.join(message.role for message in messages)}."
                )
            fields["response"] = messages[-1].content
            messages = messages[:-1]
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
    key = fields.get("id")
    if key is not None and (not isinstance(key, Integral | str) or isinstance(key, bool)):
        raise InputError(f"`id` must be an integer or text, got {_kind(key)}.")
    return JudgeRecord(
        messages=tuple(messages),
        responses=responses,
        reference=_text("reference", fields["reference"]) if "reference" in fields else None,
        rubric=_text("rubric", fields["rubric"]) if "rubric" in fields else None,
        key=int(key) if isinstance(key, Integral) else key,
    )


def _read_messages(key: str, value: object) -> list[Message]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) == 0:
        raise InputError(f"`{key}` must be text or a list of messages with `role` and `content`, got {_kind(value)}.")
    messages = []
    for index, message in enumerate(value):
        name = f"{key}[{index}]"
        if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
            got = f"the keys {', '.join(map(str, message))}" if isinstance(message, Mapping) else _kind(message)
            raise InputError(f"`{name}` must be a message with `role` and `content` and nothing else, got {got}.")
        if message["role"] not in ROLES:
            raise InputError(f"`{name}` must have one of the roles {', '.join(ROLES)}, got {message['role']!r}.")
        messages.append(Message(message["role"], _text(f"{name}.content", message["content"])))
    return messages


def _read_responses(value: object, count: int) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InputError(f"`responses` must be a list of texts, got {_kind(value)}.")
    if len(value) != count:
        raise InputError(
            f"`responses` must hold {count} candidates, as the verdict space says, got {len(value)}.",
            f"Pass space=VerdictSpace.listwise({max(len(value), 2)}).",
        )
    return tuple(_text(f"responses[{index}]", response) for index, response in enumerate(value))


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
    return f"{type(value).__name__} {value!r:.60}"


def _names(keys: Sequence[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


__all__ = ["JudgeRecord", "Message", "read_record"]

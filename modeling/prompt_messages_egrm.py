"""Chat messages as they come: absent keys spelled as None, tool calls, content in parts; and as a template shows them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors_egrm import InputError


ROLES = ("system", "developer", "user", "assistant", "tool")
EXTRA_KEYS = ("tool_calls", "tool_call_id", "name", "reasoning_content")
_OTHER_NAMES = {"reasoning": "reasoning_content", "thinking": "reasoning_content"}  # of servers and templates
_TEXT_PARTS = ("text", "input_text", "output_text")
_EMPTY: tuple[object, ...] = (None, [], ())

ReadText = Callable[[str, object], str]
"""Takes a field's name and value, returns the value if it is text that can be judged, else raises `InputError`."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    """One of system, developer, user, assistant, tool."""
    content: str
    """Its text; empty only where the turn calls a tool, or a tool returned nothing."""
    extras: Mapping[str, Any] = field(default_factory=dict)
    """What else a template may show, keys out of `EXTRA_KEYS`."""


def read_message(name: str, message: object, text: ReadText) -> Message:
    """One message of a record.

    Args:
        name: What errors call it.
        message: A mapping with `role` and `content`; the content is text or a list of text parts. `tool_calls`,
            `tool_call_id`, `name` and `reasoning_content` are read where present. None is absent, at any depth.
        text: Checks its text.

    Raises:
        InputError: A key is missing or unknown, or a value is of another kind.
    """
    if not isinstance(message, Mapping):
        raise InputError(f"`{name}` must be a message with `role` and `content`, got {_kind(message)}.")
    fields = {_OTHER_NAMES.get(key, key): value for key, value in message.items() if value not in _EMPTY}
    if "function_call" in fields:  # what came before `tool_calls`
        fields["tool_calls"] = [fields.pop("function_call")]
    known = ("role", "content", *EXTRA_KEYS)
    unknown = sorted(str(key) for key in fields if key not in known)
    may_be_empty = "tool_calls" in fields or fields.get("role") in ("tool", "function")
    if unknown or "role" not in fields or ("content" not in fields and not may_be_empty):
        raise InputError(
            f"`{name}` must be a message with `role` and `content`, and of others only {', '.join(EXTRA_KEYS)}, got the "
            f"keys {', '.join(map(str, message))}."
        )
    role = "tool" if fields["role"] == "function" else fields["role"]
    if role not in ROLES:
        raise InputError(f"`{name}` must have one of the roles {', '.join(ROLES)}, got {role!r}.")
    content = _content(f"{name}.content", fields.get("content", ""))
    if not (may_be_empty and isinstance(content, str) and not content.strip()):
        content = text(f"{name}.content", content)
    extras = {key: _extra(f"{name}.{key}", key, fields[key], text) for key in EXTRA_KEYS if key in fields}
    return Message(role, content, extras)


def read_tools(name: str, value: object) -> tuple[dict[str, Any], ...]:
    """The tools that a conversation may call, as JSON schemas.

    Args:
        name: What errors call them.
        value: A list of mappings, or JSON of one.

    Raises:
        InputError: It is something else.
    """
    if isinstance(value, str):
        value = _decoded(value, value)
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(t, Mapping) for t in value):
        raise InputError(f"`{name}` must be a list of JSON schemas, or JSON of one, got {_kind(value)}.")
    tools = tuple(without_nulls(tool) for tool in value)
    _written(name, tools)
    return tools


def plain_answer(name: str, value: object, text: ReadText) -> object:
    """A response as text where it came as an assistant's message, alone or as a list of one; else as it came.

    Args:
        name: What errors call it.
        value: The response.
        text: Checks its text.
    """
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], Mapping):
        value = value[0]
    if not isinstance(value, Mapping):
        return value
    message = read_message(name, value, text)
    if message.role != "assistant":
        raise InputError(f"`{name}` must be text or an assistant's message, got one of the {message.role}.")
    return as_text(message).content


def without_nulls(value: Any) -> Any:
    """The same data without keys whose value is None: `datasets` gives every row all keys of all rows."""
    if isinstance(value, Mapping):
        return {str(key): without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list | tuple) else value


def as_text(message: Message) -> Message:
    """The message with everything in its content: who speaks, what is called. A thought is no part of what is said."""
    names = [str(message.extras[key]) for key in ("name", "tool_call_id") if key in message.extras]
    lines = [f"[{', '.join(names)}]"] if names else []
    lines += [message.content] if message.content else []
    for call in message.extras.get("tool_calls", ()):
        function = call.get("function", call)
        identity = [f"calls {function['name']}", *([str(call["id"])] if "id" in call else [])]
        lines.append(f"[{', '.join(identity)}] {json.dumps(function.get('arguments', {}), ensure_ascii=False)}")
    return Message(message.role, "\n".join(lines))


def tools_as_text(tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """One message that lists the tools; none without tools."""
    text = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return [Message("system", f"Tools that can be called:\n{text}")] if tools else []


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same data with every text in it changed, keys too.

    Args:
        value: Plain data.
        change: What happens to each text.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): map_texts(part, change) for key, part in value.items()}
    return [map_texts(part, change) for part in value] if isinstance(value, list | tuple) else value


def render_conversation(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, render: Callable[..., str],
    hide: Callable[[str, bool], str], has_system: bool,
) -> str:  # fmt: skip
    """A conversation as its chat template writes it.

    Args:
        messages: Neutralised messages; the last is the judged response.
        tools: Neutralised tools.
        render: Takes turns and template variables, returns the rendered text.
        hide: Takes text and whether a thought may open it, returns the text without control strings.
        has_system: Whether the template shows a system turn.

    Raises:
        InputError: The template refuses the conversation, or leaves a turn, a call or a tool out.
    """
    turns = [
        {"role": m.role, "content": hide(m.content, m.role == "assistant"),
         **map_texts(m.extras, lambda text: hide(text, False))}
        for m in messages
    ]  # fmt: skip
    if turns[0]["role"] == "system" and not has_system:
        # The template knows no system turn: its text opens the user's first one.
        system, *turns = turns
        if turns[0]["role"] != "user":
            raise InputError("This model's chat template knows no system turn, and no user's turn follows it.")
        turns[0] = {**turns[0], "content": f"{system['content']}\n\n{turns[0]['content']}"}
    variables = {"tools": map_texts(tools, lambda text: hide(text, False))} if tools else {}
    # Some templates write a call's arguments as they are and need text, others need the data.
    forms = [turns, _arguments_as_json(turns)] if any("tool_calls" in turn for turn in turns) else [turns]
    refusal = ""
    for form in forms:
        try:
            text = render(form, **variables)
            dropped = _dropped(form, variables, render)
        except Exception as error:  # A template refuses by raising an error of its own.
            refusal = refusal or str(error)
            continue
        if not dropped:
            return text
        refusal = refusal or f"it does not show {dropped}"
    raise InputError(f"The chat template refuses this conversation: {refusal}")


def _dropped(turns: Sequence[Mapping[str, Any]], variables: Mapping[str, Any], render: Callable[..., str]) -> str:
    """What a template left out of a conversation that is more than users and assistants; empty where nothing."""
    plain = all(set(turn) == {"role", "content"} and turn["role"] in ("user", "assistant")
                for turn in turns[turns[0]["role"] == "system" :])  # fmt: skip
    if plain and not variables:
        return ""
    # With words of our own in place of every text, one that is missing was left out, not trimmed or rewritten.
    words: dict[str, str] = {}

    def word(what: str) -> str:
        words[f"Egrm{len(words)}Text"] = what
        return list(words)[-1]

    def named(tool: Mapping[str, Any], what: str) -> dict[str, Any]:
        if "function" in tool:
            return {**tool, "function": {**tool["function"], "name": word(what)}}
        return {**tool, "name": word(what)}

    marked = []
    for number, turn in enumerate(turns):
        own = dict(turn)
        if turn["content"]:
            own["content"] = word(f"turn {number + 1}, of the {turn['role']}")
        if "tool_calls" in turn:
            own["tool_calls"] = [named(call, f"the tool call in turn {number + 1}") for call in turn["tool_calls"]]
        marked.append(own)
    tools = [named(tool, "the tools") for tool in variables.get("tools", ())]
    text = render(marked, **({"tools": tools} if tools else {}))
    return next((what for name, what in words.items() if name not in text), "")


def _arguments_as_json(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    def written(call: Mapping[str, Any]) -> dict[str, Any]:
        function = call.get("function", call)
        text = json.dumps(function.get("arguments", {}), ensure_ascii=False)
        return (
            {**call, "function": {**function, "arguments": text}}
            if "function" in call
            else {**call, "arguments": text}
        )

    return [
        {**turn, "tool_calls": [written(call) for call in turn["tool_calls"]]} if "tool_calls" in turn else dict(turn)
        for turn in turns
    ]


def _content(name: str, value: object) -> object:
    """Content as text; parts are joined by line breaks."""
    if not isinstance(value, list | tuple):
        return value
    texts = []
    for index, part in enumerate(value):
        kind = part.get("type", "text") if isinstance(part, Mapping) else None
        if kind not in _TEXT_PARTS:
            got = f"a part of type {kind!r}" if kind else _kind(part)
            raise InputError(f"`{name}` must be text or a list of text parts, got {got} at {index}.",
                             "Only text can be judged: leave out images and sounds.")  # fmt: skip
        if not isinstance(part.get("text"), str):
            raise InputError(f"`{name}[{index}].text` must be text, got {_kind(part.get('text'))}.")
        texts.append(part["text"])
    return "\n".join(texts)


def _extra(name: str, key: str, value: object, text: ReadText) -> Any:
    if key != "tool_calls":
        return text(name, str(value) if key == "tool_call_id" and isinstance(value, int) else value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(f"`{name}` must be a list of calls, got {_kind(value)}.")
    return [_call(f"{name}[{index}]", call) for index, call in enumerate(value)]


def _call(name: str, value: object) -> dict[str, Any]:
    call = without_nulls(value)
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InputError(f"`{name}` must be a call with a `function` that has a `name`, got {_kind(value)}.")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        arguments = _decoded(arguments, arguments)
    _written(name, call)
    return {**call, "function": {**function, "arguments": arguments}} if "function" in call else (
        {**call, "arguments": arguments})  # fmt: skip


def _decoded(text: str, otherwise: Any) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        return otherwise
    return found if isinstance(found, dict | list) else otherwise


def _written(name: str, value: Any) -> None:
    """Refuse what is no plain data, or no valid Unicode."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise InputError(f"`{name}` must be plain data that JSON can hold, but: {error}.") from None


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r:.60}"


__all__ = [
    "EXTRA_KEYS",
    "ROLES",
    "Message",
    "as_text",
    "map_texts",
    "plain_answer",
    "read_message",
    "read_tools",
    "render_conversation",
    "tools_as_text",
]

"""Conversations that a trainer sends as rendered text: read back into messages, so that they can be rendered anew.

A trainer renders with its policy's chat template. Its control tokens mean nothing to the judge, or worse, something else. So
turns are cut at the marks of the templates that are common, and what lies between is plain text.
"""

import re


_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "model": "assistant", "system": "system",
          "developer": "system", "tool": "tool"}  # fmt: skip
_NAMES = "|".join(_ROLES)
_OPENERS = (
    rf"<\|im_start\|>({_NAMES})\n",  # ChatML: Qwen and many others
    rf"<\|start_header_id\|>({_NAMES})<\|end_header_id\|>\n\n",  # Llama 3
    rf"<start_of_turn>({_NAMES})\n",  # Gemma
    rf"<\|({_NAMES})\|>\n?",  # Phi, Zephyr, GLM
    rf"<\|start\|>({_NAMES})(?:<\|channel\|>\w+)?<\|message\|>",  # gpt-oss
)
_OPEN = re.compile("|".join(_OPENERS))
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<eos>", "</s>", "<|end|>",
         "<|return|>", "<|eom_id|>", "<pad>", "<|pad|>")  # fmt: skip
_STARTS = ("<|begin_of_text|>", "<|startoftext|>", "<bos>", "<s>", "[gMASK]<sop>")
_LLAMA2 = re.compile(r"\[INST\](.*?)\[/INST\]", re.DOTALL)


def read_rendered(text: str) -> list[dict[str, str]]:
    """The turns of a rendered conversation, an open last turn without text left out.

    Args:
        text: As a chat template renders it.

    Returns:
        Messages with `role` and `content`; one turn of the user where the text shows no mark.
    """
    text = _without_start(text)
    marks = list(_OPEN.finditer(text))
    if not marks:
        return _read_instructions(text)
    turns = []
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        role = next(group for group in mark.groups() if group)
        content = without_end(text[mark.end() : None if following is None else following.start()])
        if content:
            turns.append({"role": _ROLES[role], "content": content})
    return turns


def without_end(text: str) -> str:
    """A turn's text without blanks and end marks around it.

    Args:
        text: What lies after the turn's opening.
    """
    text = text.strip()
    while (end := next((mark for mark in _ENDS if text.endswith(mark)), None)) is not None:
        text = text[: -len(end)].rstrip()
    return text


def split_query(query: str, prompt: str | None) -> tuple[list[dict[str, str]], str] | None:
    """The question and the response of a rendered prompt with its continuation.

    Args:
        query: Both.
        prompt: The rendered prompt alone; None where it is not known, and the last turn of the assistant is the response.

    Returns:
        Messages and the response's text, which may be empty; None where no question is found.
    """
    if prompt is not None:
        bare, start = _without_start(query), _without_start(prompt)
        if start and bare.startswith(start):
            response = without_end(bare[len(start) :])
            turns = read_rendered(start)
            return (turns, response) if turns else None
    turns = read_rendered(query)
    if len(turns) < 2 or turns[-1]["role"] != "assistant":
        return None
    return turns[:-1], turns[-1]["content"]


def _without_start(text: str) -> str:
    while (start := next((mark for mark in _STARTS if text.startswith(mark)), None)) is not None:
        text = text[len(start) :]
    return text


def _read_instructions(text: str) -> list[dict[str, str]]:
    # Llama 2 and Mistral: the user's turns stand in brackets, the assistant's between them.
    turns: list[dict[str, str]] = []
    place = 0
    for mark in _LLAMA2.finditer(text):
        _add(turns, "assistant" if turns else "system", text[place : mark.start()])
        _add(turns, "user", mark[1])
        place = mark.end()
    _add(turns, "assistant" if turns else "user", text[place:])
    return turns


def _add(turns: list[dict[str, str]], role: str, text: str) -> None:
    if content := without_end(text):
        turns.append({"role": role, "content": content})


__all__ = ["read_rendered", "split_query", "without_end"]

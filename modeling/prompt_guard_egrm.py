"""The injection guard: judged text stays text, whatever it says.

Three things could act. Control tokens: their strings are tokenised in pieces, so that the text is unchanged and no
control token appears. Our own words, lines that open with `Verdict:` and a label, and delimiters, and the turn marks of
templates that have no control tokens for them: they are altered as little as possible, visibly. Text without any of
these is left exactly as it is.
"""

import re
from collections.abc import Sequence
from functools import cached_property, partial

from transformers import PreTrainedTokenizerBase

from .verdict_space_egrm import VerdictSpace


# Two characters that Unicode reserves as "not a character" carry the number of a hidden string through the template.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_HIDDEN = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_THINKING_TAGS = ("<think>", "</think>", "[THINK]", "[/THINK]")
_OWN_THOUGHT = re.compile(r"\s*(<think>|\[THINK\])(?:(?!</?think>|\[/?THINK\]).)*(</think>|\[/THINK\])", re.DOTALL)
_DELIMITER = re.compile(r"<(?=/?(?:question|message|system|reference|response(?:_\w{1,8})?)\b)", re.IGNORECASE)


class TextGuard:
    """Tokenises judge prompts so that only the template and our own words carry control tokens.

    Args:
        tokenizer: The generator's tokenizer.
        template: Source of its chat template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template: str) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        shown = {token.content for token in added.values() if token.content in template}
        self.control_ids = frozenset(
            index
            for index, token in added.items()
            if len(token.content) > 1
            and not token.content.isspace()
            and (
                token.special
                or token.content in _THINKING_TAGS
                or (token.content in shown and not token.content.isalnum())
            )
        )
        """Ids that only the template may write."""
        strings = {added[index].content for index in self.control_ids}
        strings.update(tag for tag in _THINKING_TAGS if tag in template)
        self._strings = sorted(strings, key=lambda string: (-len(string), string))
        self._pattern = re.compile("|".join(map(re.escape, self._strings)) or r"(?!)")
        self._numbers = {string: number for number, string in enumerate(self._strings)}
        self._literal_ids: dict[int, list[int]] = {}
        self._turn_marks = re.compile(r"(?!)")

    def split(self, text: str) -> list[str]:
        """Control strings and what lies between them, in order."""
        return [piece for piece in re.split(f"({self._pattern.pattern})", text) if piece]

    def watch_turns(self, between: Sequence[str], around_system: Sequence[str]) -> None:
        """Learns the turn marks of a template that writes them as ordinary text, such as `User:` or `[INST]`.

        Args:
            between: Text that the template puts between messages.
            around_system: Text that it puts before and after a system turn.
        """
        inline, at_line_start = self._marks(between)
        (inline if inline else at_line_start).update(*self._marks(around_system))
        patterns = [rf"^[ \t]*(?:{'|'.join(map(re.escape, sorted(at_line_start)))})"] if at_line_start else []
        patterns += map(re.escape, sorted(inline))
        self._turn_marks = re.compile("|".join(patterns) or r"(?!)", re.MULTILINE)

    def _marks(self, pieces: Sequence[str]) -> tuple[set[str], set[str]]:
        """Turn marks that may stand anywhere, and those that begin a line."""
        inline, at_line_start = set(), set()
        for text in (text for piece in pieces for text in self.split(piece) if text not in self._numbers):
            first, *others = text.split("\n")
            inline.add(first.strip())
            at_line_start.update(other.strip() for other in others)

        def marks(words: set[str]) -> set[str]:
            return {word for word in words if len(word) > 2 and not word.isalnum()}

        return marks(inline), marks(at_line_start)

    def neutralise(self, text: str, delimited: bool, space: VerdictSpace) -> str:
        """Text in which no line opens with the cue and a label, and nothing is a turn of its own or a delimiter of ours.

        What a judge reads is never parsed, so no judged text can state a verdict. The mark only keeps a generator from
        taking a judged line for its own turn's. Boxes, brackets and other people's forms are left as they are.

        Args:
            text: Judged text.
            delimited: Whether it is shown between our own tags.
            space: Whose labels a verdict may have.
        """
        text = text.replace(_OPEN, "\ufffd").replace(_CLOSE, "\ufffd")
        text = space.quote(text)
        text = self._turn_marks.sub(lambda match: f"{match[0][:-1]} {match[0][-1]}", text)
        return _DELIMITER.sub("< ", text) if delimited else text

    def hide(self, text: str, own_thought: bool = False) -> str:
        """Text whose control strings are replaced by marks that `encode` turns into plain tokens.

        Args:
            text: Neutralised text.
            own_thought: Whether a thought at its beginning is the template's to handle: an assistant's turn.
        """
        thought = _OWN_THOUGHT.match(text) if own_thought else None
        if thought and thought[1] in self._numbers and thought[2] in self._numbers:
            opening, closing = thought.end(1), thought.start(2)
            inner, rest = text[opening:closing], text[thought.end() :]
            return f"{text[:opening]}{self.hide(inner)}{thought[2]}{self.hide(rest)}"
        text = self._pattern.sub(lambda match: f"{_OPEN}{self._numbers[match[0]]}{_CLOSE}", text)
        return self._break_normalised(text) if self._has_normalised_controls else text

    def show(self, text: str) -> str:
        """`hide` undone."""
        return _HIDDEN.sub(lambda match: self._strings[int(match[1])], text)

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text; the tokenizer adds nothing, hidden strings become plain tokens."""
        pieces = _HIDDEN.split(text)
        ids = self._tokenise(pieces[0])
        for number, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            ids += self._literal(int(number)) + self._tokenise(piece)
        return ids

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Per plain token of a neutralised text, the characters it stands for: of a control string, all of them."""
        if not self.tokenizer.is_fast:
            return [(index, index + 1) for index in range(len(text))]
        spans, start = [], 0
        for piece in self.split(text):
            if piece in self._numbers:
                spans += [(start, start + len(piece))] * len(self._literal(self._numbers[piece]))
            else:
                encoding = self.tokenizer(piece, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
                spans += [(start + first, start + last) for first, last in encoding["offset_mapping"]]
            start += len(piece)
        return spans

    def continue_ids(self, context: str, text: str) -> list[int]:
        """Token ids of `text` as they are when it follows `context`, where the tokenizer keeps them apart."""
        before, joint = self.encode(context), self.encode(context + text)
        return joint[len(before) :] if joint[: len(before)] == before else self.encode(text)

    def label_ids(self, context: str, label: str, set_off: bool) -> tuple[int, ...]:
        """Token ids of a verdict's label after the answer cue; none where the tokenizer cannot tell it from the cue.

        Args:
            context: Everything up to the label.
            label: With the space before it, if there is one.
            set_off: Whether a bracket or quotation mark stands before it.
        """
        before, joint = self.encode(context), self.encode(context + label)
        if joint[: len(before)] == before:
            return tuple(joint[len(before) :])
        if not set_off:
            return ()
        # A bracket may merge with the letter after it. The cue is given, so its last token stays what it is.
        alone, cue = self.encode(label), before[-8:]
        decode = partial(self.tokenizer.decode, clean_up_tokenization_spaces=False)
        return tuple(alone) if decode([*cue, *alone]) == f"{decode(cue)}{label}" else ()

    def _tokenise(self, text: str) -> list[int]:
        if not text:
            return []
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        # A BOS is written by the template or not at all; some tokenizers add one whatever they are told.
        bos = self.tokenizer.bos_token_id
        written = bos is not None and text.startswith(str(self.tokenizer.bos_token))
        while bos is not None and ids[:1] == [bos] and (not written or ids[1:2] == [bos]):
            ids = ids[1:]
        return list(ids)

    def _literal(self, number: int) -> list[int]:
        if number not in self._literal_ids:
            self._literal_ids[number] = self._spell(self._strings[number])
        return self._literal_ids[number]

    def _spell(self, string: str) -> list[int]:
        """A control string as plain tokens: its two halves, each halved again where it is a control string itself."""
        ids = self._tokenise(string)
        if not self.control_ids.intersection(ids) and string not in self._numbers:
            return ids
        if len(string) == 1:
            return [index for index in ids if index not in self.control_ids]
        middle = len(string) // 2
        return self._spell(string[:middle]) + self._spell(string[middle:])

    @cached_property
    def _has_normalised_controls(self) -> bool:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        added = self.tokenizer.added_tokens_decoder
        return getattr(backend, "normalizer", None) is not None and any(
            added[index].normalized for index in self.control_ids
        )

    def _break_normalised(self, text: str) -> str:
        """Separates characters that only become a control token once the tokenizer has normalised them."""
        pieces = re.split(f"({_OPEN}[0-9]+{_CLOSE})", text)
        for index in range(0, len(pieces), 2):
            while pieces[index]:
                encoding = self.tokenizer(
                    pieces[index], add_special_tokens=False, return_offsets_mapping=True, verbose=False
                )
                spans = [
                    span
                    for token, span in zip(encoding["input_ids"], encoding["offset_mapping"], strict=True)
                    if token in self.control_ids
                ]
                if not spans:
                    break
                for start, _ in reversed(spans):
                    pieces[index] = f"{pieces[index][: start + 1]} {pieces[index][start + 1 :]}"
        return "".join(pieces)


__all__ = ["TextGuard"]

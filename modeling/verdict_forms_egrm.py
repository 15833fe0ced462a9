"""How a verdict is written: the forms that a prompt may ask for, and where a text begins to state one.

Other people's judges were trained on forms of their own. One of them can be the generator: the prompt asks for its form,
the answer cue is the beginning of that form, and the form is what counts anywhere in a chain. All others count only where
they end a complete chain.
"""

import re
from dataclasses import dataclass

from .verdict_masks_egrm import MASK


_LEAD = (
    r"(?:(?:so|thus|therefore|hence|finally|overall|accordingly|in conclusion|to conclude|in summary|in short|conclusion"
    r"|summary|final answer|answer|output)\b[,:]?[*_]{0,3}[ \t]+)?(?:(?:the|my|our)[ \t]+)?"
    r"(?:(?:final|overall|total|own|ultimate)[ \t]+){0,3}"
)
# A cue opens a line or a sentence; markdown, a list's number or a sign may precede it, a quotation mark may not.
_MARKS = f"(?:[^\\w\\n\"'\u201c\u201d\u2018\u2019\u00ab\u00bb{MASK}]|_)"
_OPENS = (
    rf"(?:^{_MARKS}{{0,12}}(?:[0-9]{{1,2}}[.)][ \t]+{_MARKS}{{0,6}})?"
    rf"|(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bvs\.)[*_)\]{MASK}]{{0,4}}[ \t]+[*_]{{0,3}})"
)
_RANGE = r"(?:[ \t]*[(\[][ \t]*(?:out of|from|on|scale|score|rating|/|[0-9])[^()\[\]\n]{0,30}[)\]])?"
_FOR = (
    r"(?:[ \t]+(?:for|on)[ \t]+(?:the|this)(?:[ \t]+(?:last|assistant's))?[ \t]+(?:response|answer|reply|solution))?"
)
_SAYS = r"[^\w\n]{0,4}(?:\bis\b[ \t]*:?|[:=])"
_NOUNS = (
    r"score|rating|grade|reward|judge?ment|decision|choice|winner|preference|result(?=[^\w\n]{0,4}[:=])"
    r"|(?:better|best) (?:response|answer|one)"
)
_TAGS = r"answer|score|rating|result|choice|decision"
_RESULT = r"\[(?:FINAL[ _])?RESULT\][ \t]*:?"
_FLAGS = re.MULTILINE | re.IGNORECASE


def _loose(nouns: str, tags: str) -> re.Pattern[str]:
    """Where the last line of a complete chain may begin to state a verdict."""
    return re.compile(
        rf"{_OPENS}{_LEAD}\b(?:{nouns})\b{_RANGE}{_FOR}{_SAYS}"
        rf"|\[(?:(?:FINAL[ _])?(?:RESULT|SCORE|RATING|VERDICT))\][ \t]*:?|<(?:{tags})>",
        _FLAGS,
    )


_OTHER_FORMS = _loose(f"verdict|{_NOUNS}", f"verdict|{_TAGS}")


def _set_off(own: str, opens: str) -> re.Pattern[str]:
    """Where a form that sets its label off begins: at the beginning of a line or sentence, after no more than a heading."""
    heading = (
        rf"{_LEAD}\b(?:verdict|{_NOUNS})\b{_RANGE}{_FOR}{_SAYS}[ \t*_$(]{{0,6}}|<(?:verdict|{_TAGS})>[ \t]{{0,4}}"
    )
    return re.compile(rf"{opens}(?:{heading})?(?P<mark>{own})", _FLAGS)


@dataclass(frozen=True, kw_only=True)
class VerdictForm:
    """One way to write a verdict."""

    opening: str
    """What stands before the label."""
    closing: str = ""
    """What stands after it."""
    is_json: bool = False
    """Whether it is an object: words are in quotation marks then, and it is read as JSON."""
    cue: re.Pattern[str]
    """Where a chain begins to state a verdict in this form; ends where the label is expected."""
    again: re.Pattern[str]
    """What a short answer may repeat of the cue, its first brackets and quotation marks left out."""
    line: re.Pattern[str]
    """Where a line of judged text opens with it; its group `mark` begins where the guard writes `quoted`."""
    loose: re.Pattern[str] = _OTHER_FORMS
    """Where the last line of a complete chain may begin to state one in another form."""
    quoted: str = "(quoted) "
    """What the guard writes."""
    guards_code: bool = False
    """Whether the guard looks into code as well: only a form that code does not have may."""
    yields_to_brackets: bool = False
    """Whether double brackets that end the chain say more than the form before them."""

    def opens(self, label: str) -> str:
        """What stands before a label.

        Args:
            label: Of the verdict space, or what a prompt shows in its place.
        """
        return f'{self.opening}"' if self.is_json and _NUMBER.fullmatch(label) is None else self.opening

    def write(self, label: str) -> str:
        """A verdict in this form.

        Args:
            label: As in `opens`.
        """
        opening = self.opens(label)
        return f"{opening}{label}{opening[len(self.opening) :]}{self.closing}"


_NUMBER = re.compile(r"-?[0-9]+|<number>")
_LINE = f"^{_MARKS}{{0,12}}"
_AGAIN = rf"{_LEAD}verdict\b{_SAYS}"
FORMS = {
    "verdict": VerdictForm(
        opening="Verdict: ",
        cue=re.compile(
            rf"{_OPENS}(?:{_LEAD}(?<![^\W_])verdict\b{_RANGE}{_FOR}{_SAYS}|<verdict>)"
            rf"|^[^\w\n\"'{MASK}]{{0,12}}{_LEAD}(?<![^\W_])verdict\b(?P<heading>[^\w\n]{{0,12}}\n)",
            _FLAGS,
        ),
        again=re.compile(_AGAIN, re.IGNORECASE),
        line=re.compile(rf"{_LINE}{_LEAD}(?<![^\W_])verdict\b(?P<mark>[^\w\n:]{{0,4}}:)", _FLAGS),
        loose=_loose(_NOUNS, _TAGS),
        quoted=" (quoted)",
        guards_code=True,
        yields_to_brackets=True,
    ),
    "boxed": VerdictForm(
        opening="\\boxed{",
        closing="}",
        cue=_set_off(r"\\boxed\{", _OPENS),
        again=re.compile(_AGAIN, re.IGNORECASE),
        line=_set_off(r"\\boxed\{", _LINE),
    ),
    "double_bracket": VerdictForm(
        opening="[[",
        closing="]]",
        cue=_set_off(r"\[\[", _OPENS),
        again=re.compile(_AGAIN, re.IGNORECASE),
        line=_set_off(r"\[\[", _LINE),
        yields_to_brackets=True,
    ),
    "result": VerdictForm(
        opening="[RESULT] ",
        cue=_set_off(_RESULT, _OPENS),
        again=re.compile(rf"(?:FINAL[ _])?RESULT\][ \t]*:?|{_AGAIN}", re.IGNORECASE),
        line=_set_off(_RESULT, _LINE),
    ),
    "json": VerdictForm(
        opening='{"verdict": ',
        closing="}",
        is_json=True,
        cue=re.compile(r"(?!)"),  # an object is decoded, not searched for
        again=re.compile(r'verdict"[ \t]*:', re.IGNORECASE),
        line=re.compile(r'^[ \t>*-]{0,12}(?P<mark>\{)[^{}]{0,400}?"verdict"[ \t]*:', _FLAGS),
    ),
}
"""Forms by name, as `VerdictSpace.verdict_format` has it."""


__all__ = ["FORMS", "VerdictForm"]

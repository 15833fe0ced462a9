"""What prose after a label may say without taking the verdict back."""

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class VerdictProse:
    """Reads what follows the label of a verdict: whether it asks, supposes, denies, retracts, or names another one."""

    kind: str
    """Kind of the verdict space."""
    labels: tuple[str, ...]
    """Text of each verdict."""

    def lets_stand(self, label: str, rest: str) -> bool:
        """Whether the verdict still holds after what its text goes on to say.

        Args:
            label: The verdict.
            rest: Everything after its label, quotations masked.
        """
        line = rest.partition("\n")[0]
        if _ASKED.match(line) or _SUPPOSED.search(line) or _DENIED.match(line) or _RETRACTED.search(rest):
            return False
        if self.kind != "binary" and _CALLED_WRONG.match(line):
            return False
        return all(self._means(found, label) for found in self._named(line))

    def _means(self, found: str, label: str) -> bool:
        return found.lower() == label.lower() if len(label) > 1 or found.isdigit() else found == label

    def _named(self, line: str) -> list[str]:
        """Labels that a line names as verdicts."""
        found = [next(filter(None, match.groups())) for match in self._other.finditer(line)]
        immediate = self._immediate.match(line)
        return found if immediate is None else [*found, immediate[1]]

    @cached_property
    def _label(self) -> str:
        if self.kind in ("pointwise", "listwise"):
            return r"(-?[0-9]{1,9})(?![0-9]|[.,][0-9])"
        words = [label if len(label) == 1 else f"(?i:{label})" for label in self.labels]
        return rf"((?<!\w)(?:{'|'.join(words)})(?![\w'\u2019]))"

    @cached_property
    def _immediate(self) -> re.Pattern[str]:
        # "7, 8", "A. B.", "correct, not incorrect": another label where the next word stands, and alone.
        return re.compile(
            rf"[\s*_)\]}}$.,;:!\u2014\u2013-]*(?:(?i:{_CONNECTORS})[\s,*_]+){{0,3}}{_NOUN}{self._label}(?=[\s*_)\]]*(?:$|[.,;!?]))"
        )

    @cached_property
    def _other(self) -> re.Pattern[str]:
        label, decorated = self._label, r"[\s*_:=]{1,6}"
        named = [
            rf"(?i:\b(?:maybe|perhaps|possibly|rather|actually)\b){decorated}{_NOUN}{label}",
            rf"(?i:\b(?:verdict|score|rating|grade|winner|choice)\b)(?i:[ \t]+(?:is|of|would be|should be))?{decorated}{_NOUN}{label}",
            rf"\[\[{label}\]\]",
        ]
        if self.kind in ("pairwise", "listwise"):
            named.append(
                rf"{label}(?i:\s+(?:wins|is\s+(?:the\s+)?(?:better|best|winner|preferred))\b(?=\W*$|[.,;!?]))"
            )
        if self.kind not in ("pointwise", "listwise"):
            named.append(rf"(?i:\bor\b){decorated}{_NOUN}{label}")
        if self.kind == "binary":
            named.append(rf"(?i:\b(?:response|answer|it|this|that)\s+is){decorated}{label}")
        return re.compile("|".join(named))


_NOUN = r"(?:(?i:response|answer|option|candidate|assistant|number)\s+#?)?"
_CONNECTORS = r"or|nor|but|no|not|wait|then|to|even|and|vs\.?|versus|maybe|perhaps|rather|actually|instead"
_ASKED = re.compile(r"[\s*_)\]}$.,'\"`]*\?")
_SUPPOSED = re.compile(r"^[\s*_).,;-]*(?:only\s+)?(?:if|unless|assuming|provided|supposing)\b", re.IGNORECASE)
_DENIED = re.compile(
    r"[\s*_).,;\u2014-]*(?:(?:is|was|would be|seems|looks)\s+(?:not|never|wrong|worse|incorrect|too|inferior|bad|false|the\s+"
    r"(?:worse|worst|loser)|what|only|just)\b|isn['\u2019]t|wasn['\u2019]t|loses|fails|lacks|cannot|does\s+not|doesn['\u2019]t"
    r"|has\s+(?:no|errors?|mistakes?)\b|is\s+an?\b"
    r"|(?:says|said|claims|claimed|writes|wrote|states|according\s+to)\s+(?:the|a|response|it|its|they)\b|as\s+(?:claimed|stated|written|quoted)\b)",
    re.IGNORECASE,
)
_CALLED_WRONG = re.compile(
    r"[\s*_).,;!\u2014-]*(?:that|this|which)(?:['\u2019]s|\s+is|\s+was)\s+(?:wrong|incorrect|false|not\s+right|too\s+\w+)\b",
    re.IGNORECASE,
)
# At the beginning of a sentence or a clause, wherever it stands after the verdict.
_RETRACTED = re.compile(
    r"(?:^|[.,;:!?(\n\u2014\u2013\u2026]|[ \t]-)[\s*_(\u2026]{0,8}(?:(?:but|oh|and|hmm+|ah|so)[, \t]+){0,2}(?:"
    r"no[ \t]*[,.!;:\u2014\u2013\u2026]|no[ \t]+(?:wait|actually|sorry|it)\b|nope\b|not[ \t]+really\b|wait\b|hmm+\b|oops\b|sorry\b"
    r"|hold[ \t]+on\b|never[ \t]*mind\b|scratch[ \t]+that|strike[ \t]+that|on[ \t]+second[ \t]+thoughts?|correction\b[ \t]*[:,.]"
    r"|or[ \t]+rather\b|i[ \t]+mean\b|let[ \t]+me[ \t]+(?:re\w+|correct|think|double|check|start|try|change)\b"
    r"|i[ \t]+(?:was|am)[ \t]+(?:wrong|mistaken|not[ \t]+sure)\b|i[ \t]+(?:take|took)[ \t]+(?:that|it|this)[ \t]+back"
    r"|i[ \t]+made[ \t]+an?[ \t]+(?:mistake|error)\b|i[ \t]+(?:must|should|need[ \t]+to|have[ \t]+to)[ \t]+(?:correct|revise|re\w+|change)\b"
    r"|i[ \t]+(?:disagree|reject|doubt|retract|withdraw|change[ \t]+my|changed[ \t]+my|cannot[ \t]+agree|do[ \t]+not[ \t]+agree"
    r"|don['\u2019]t[ \t]+agree)\b"
    r"|(?:that|this|it)(?:['\u2019]s|[ \t]+is|[ \t]+was)[ \t]+(?:only|just|merely|not[ \t]+my|what[ \t]+(?:the|response|it|a))\b"
    r")|(?:^|[.!?\n])[\s*_]{0,8}(?:actually|instead)\b(?![ \t]+of)|,[ \t]*actually,",
    re.IGNORECASE,
)


__all__ = ["VerdictProse"]

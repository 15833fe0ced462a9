"""How chains are drafted, as options."""

from dataclasses import dataclass

from .draft_verification_egrm import METHODS, rule_of
from .errors_egrm import is_count, need, need_one_of


DRAFTINGS = ("none", "auto", "model", "layers", "ngram")


@dataclass(frozen=True, kw_only=True)
class DraftingOptions:
    """Who drafts chains, whose law stays the same, and how drafts are verified."""

    drafting: str | None = None
    """`none`, `model` (the checkpoint's draft), `layers` (the generator's first ones), `ngram` (the text so far); `auto`: the
    checkpoint's draft where a short trial on this machine shows that it saves time, so that the texts drawn may differ from
    machine to machine. By default the checkpoint's draft where it has one, else none."""
    verification: str | None = None
    """`sd`, `bv`, `gbv` (one draft), `spectr`, `spectr_gbv`, `md_bv` or `md_bv_plus`. By default the fastest for the number
    of drafts, see docs/speculative.md."""
    num_drafts: int | None = None
    """S, drafts of each chain at a time; by default 4, or 1 where drafting or verification know only one."""
    draft_length: int = 8
    """L, tokens of a draft, at least 1."""
    draft_layers: int = 2
    """With drafting `layers`: how many of the generator's layers."""
    draft_ngram: int = 3
    """With drafting `ngram`: how many last tokens are looked up at most."""

    def __post_init__(self) -> None:
        for name in ("draft_length", "draft_layers", "draft_ngram"):
            need(is_count(getattr(self, name)), name, getattr(self, name), "an integer >= 1")
        need_one_of(self, drafting=(None, *DRAFTINGS), verification=(None, *METHODS))
        if self.num_drafts is not None:
            need(is_count(self.num_drafts), "num_drafts", self.num_drafts, "an integer >= 1, or None")
            if self.drafting != "none" and self.verification is not None:
                rule_of(self.verification, self.num_drafts)
            need(self.drafting != "ngram" or self.num_drafts == 1, "num_drafts", self.num_drafts,
                 "1 with drafting='ngram': looked-up drafts are all alike")  # fmt: skip


__all__ = ["DraftingOptions"]

"""Stage 1, fine-tuning, and the split between its rounds."""

from dataclasses import dataclass

from transformers_egrm.training.config.values import Schedule, check_batch, check_saving, need


_HALF = Schedule(((0.0, 0.5),))


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """A low-rank adapter, merged when its stage ends."""

    rank: int = 16
    """Rank; the usual choice for instruction tuning."""
    alpha: int = 32
    """Scale, twice the rank."""
    dropout: float = 0.0
    """Dropout on the adapter's input."""
    target_modules: str | list[str] = "all-linear"
    """Layers that get one, as PEFT names them; never the LM head."""

    def __post_init__(self) -> None:
        need(self.rank >= 1, "lora.rank", self.rank, "at least 1")
        need(0 <= self.dropout < 1, "lora.dropout", self.dropout, "a share in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class SFTStageConfig:
    """Routed supervised fine-tuning: a bootstrap on both modes, then rounds on the model's own split."""

    bootstrap_steps: int = 1000
    """Optimiser steps on every example in both modes."""
    rounds: int = 1
    """How often the model labels the training set by its consensus and trains on the split."""
    round_steps: int = 300
    """Optimiser steps of each round."""
    batch_size: int = 128
    """Sequences of one optimiser step, over all processes."""
    micro_batch_size: int | None = None
    """Sequences run at once on one device; None: all of them."""
    learning_rate: float = 2e-3
    """Peak of the bootstrap, for a million parameters from scratch; use 2e-5 for a pretrained model."""
    round_learning_rate: float = 5e-4
    """Peak of each round: a quarter, so that a round refines and does not relearn."""
    warmup_share: float = 0.05
    """Share of the steps over which the rate rises; it then falls along a cosine."""
    weight_decay: float = 0.01
    """Of AdamW."""
    optimizer: str = "adamw"
    """`adamw`, or `muon`: Muon for the layers' matrices, AdamW for the rest. A small model from scratch learns with it in
    a fraction of the steps; a pretrained one is better left to AdamW."""
    matrix_learning_rate: float = 5e-3
    """Muon's peak in the bootstrap; in a round it shrinks as the other rate does."""
    adam_beta2: float = 0.98
    """Shorter memory than 0.999, for runs of about a thousand steps."""
    max_grad_norm: float = 1.0
    """Clips gradients."""
    precision: str = "float32"
    """`float32`, or `bfloat16` for autocast on an accelerator."""
    verdict_weight: float = 4.0
    """Loss weight of the verdict's tokens; all others have 1."""
    answer_weight: float = 0.0
    """Loss weight of a judged response's tokens where it deserves full marks; 0 learns completions only. A judge from
    scratch that learns to answer, too, learns to see at once whether an answer is right: with right answers as half of its
    items, short verdicts of one-step sums left chance; without any they did not. A pretrained one can answer already."""
    short_weight: float = 1.0
    """Loss weight of short-mode items relative to long ones."""
    balance: str = "items"
    """`items`: each sequence counts the same. `tokens`: each token does, so that short verdicts hardly count."""
    short_share: Schedule = _HALF
    """Share of short-mode items during the bootstrap."""
    round_short_share: Schedule | None = None
    """Share of short-mode items during a round; None: as the split has it."""
    short_easy_share: Schedule | None = None
    """Share of easy examples among short-mode items; None: as the data has it."""
    long_easy_share: Schedule | None = None
    """Share of easy examples among long-mode items; None: as the data has it."""
    easy_difficulty: int = 1
    """Up to this difficulty an example is easy."""
    sort_steps: int = 32
    """So many steps' items are sorted by length together, so that a batch holds equal lengths."""
    logging_steps: int = 20
    """Steps between two lines of the metrics."""
    save_steps: int = 200
    """Steps between two checkpoints that a killed run resumes from; a multiple of logging_steps."""
    lora: LoraConfig | None = None
    """Train an adapter instead of all weights."""

    def __post_init__(self) -> None:
        for name in ("bootstrap_steps", "rounds", "round_steps"):
            need(getattr(self, name) >= 0, f"sft.{name}", getattr(self, name), "at least 0")
        for name in ("batch_size", "sort_steps", "logging_steps", "save_steps"):
            need(getattr(self, name) >= 1, f"sft.{name}", getattr(self, name), "at least 1")
        for name in ("learning_rate", "round_learning_rate", "matrix_learning_rate", "verdict_weight", "short_weight",
                     "max_grad_norm"):  # fmt: skip
            need(getattr(self, name) > 0, f"sft.{name}", getattr(self, name), "above 0")
        need(0 <= self.warmup_share < 1, "sft.warmup_share", self.warmup_share, "a share in [0, 1)")
        need(self.weight_decay >= 0, "sft.weight_decay", self.weight_decay, "at least 0")
        need(0 < self.adam_beta2 < 1, "sft.adam_beta2", self.adam_beta2, "a value in (0, 1)")
        need(self.answer_weight >= 0, "sft.answer_weight", self.answer_weight, "at least 0")
        need(self.optimizer in ("adamw", "muon"), "sft.optimizer", self.optimizer, "adamw or muon")
        need(self.balance in ("items", "tokens"), "sft.balance", self.balance, "items or tokens")
        check_saving("sft", self.save_steps, self.logging_steps)
        check_batch("sft", self.batch_size, self.micro_batch_size, self.precision)


@dataclass(frozen=True, kw_only=True)
class RoutingConfig:
    """How the model's own consensus splits the training set."""

    examples: int | None = None
    """So many training examples are labelled, the others take no part in a round; None: all."""
    threshold: float | None = None
    """Consensus from which an example goes to the short set; None: the judge's tau."""
    require_correct: bool = True
    """Whether the short set takes only verdicts that agree with the truth, too. Confident errors then go on to reason."""
    keep_both: float = 0.25
    """Share of examples that stay in both sets, whatever the consensus. Short mode would otherwise never see an example
    it fails on, and become certain of everything."""
    batch_size: int = 256
    """Examples probed at once."""

    def __post_init__(self) -> None:
        need(self.examples is None or self.examples >= 1, "routing.examples", self.examples, "at least 1, or none")
        need(self.threshold is None or 0 <= self.threshold <= 1, "routing.threshold", self.threshold,
             "a share in [0, 1], or none")  # fmt: skip
        need(0 <= self.keep_both <= 1, "routing.keep_both", self.keep_both, "a share in [0, 1]")
        need(self.batch_size >= 1, "routing.batch_size", self.batch_size, "at least 1")


__all__ = ["LoraConfig", "RoutingConfig", "SFTStageConfig"]

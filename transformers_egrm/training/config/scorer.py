"""Stage 2, the scorer."""

from dataclasses import dataclass, field
from typing import Any

from transformers_egrm.modeling.configuration_egrm import POOLINGS
from transformers_egrm.training.config.values import check_saving, need


@dataclass(frozen=True, kw_only=True)
class ScorerStageConfig:
    """The scorer: which candidates it learns from, and how."""

    kind: str = "generator_state"
    """`generator_state`: a head on the generator's own states, for next to nothing. `encoder`: reads prompt and chain."""
    pooling: str = "mean"
    """Which states kind `generator_state` reads: `mean` over a candidate's tokens, or the one at its `last` token.
    At an end token this state says little, because the generator was taught to write nothing after it."""
    encoder: str | None = None
    """Encoder to start from: folder or Hub id. None: a small BERT from scratch, with the sizes below."""
    hidden_size: int = 32
    """Width of that BERT. It reads a prompt with each of nine candidates: at 25 thousand parameters beside a generator of a
    million it costs about a tenth of the long path."""
    intermediate_size: int = 128
    """Width of its feed-forward layers."""
    num_hidden_layers: int = 2
    """Its depth."""
    num_attention_heads: int = 2
    """Its attention heads."""
    max_tokens: int = 256
    """Most tokens of prompt and chain; longer prompts lose their middle."""
    examples: int = 4000
    """Training examples that candidates are sampled for; they come after those that the generator was trained on."""
    data_options: dict[str, Any] | None = None
    """Keyword arguments of `examples` for them, such as a harder mix, whose chains differ more often; drawn
    under a seed of their own. None: the data's own."""
    threshold: float | None = None
    """Consensus from which an example gives no candidates; None: the judge's tau, so that the scorer learns from what it will
    be asked. With 1 only unanimous probes are passed over: more groups, easier ones among them."""
    files: dict[str, str] = field(default_factory=dict)
    """JSONL files (train, test) of candidates with a given quality, instead of sampled ones: question_id, prompt, text and
    quality in [0, 1]. For kind `encoder`."""
    quality: str = "exact"
    """Of a sampled candidate. `exact`: 1 where its verdict is the truth, else 0. `graded`: 1 minus their distance."""
    epochs: int = 8
    """How often each group of candidates is seen."""
    groups_per_step: int = 32
    """Groups of one optimiser step, over all processes: about 300 candidates."""
    max_pairs: int = 16
    """Most pairs of better and worse candidates of one group, the rest is left out at random."""
    learning_rate: float = 1e-3
    """Peak rate; use 2e-5 for a pretrained encoder."""
    warmup_share: float = 0.05
    """Share of the steps over which the rate rises; it then falls along a cosine."""
    weight_decay: float = 0.01
    """Of AdamW."""
    regression_weight: float = 0.5
    """Weight of Huber beside the hinge."""
    huber_delta: float = 0.1
    """Where Huber turns linear, in score units."""
    hinge_margin: float = 0.1
    """How far apart a pair should be, in score units."""
    logging_steps: int = 20
    """Steps between two lines of the metrics."""
    save_steps: int = 200
    """Steps between two checkpoints; a multiple of logging_steps."""

    def __post_init__(self) -> None:
        need(self.kind in ("generator_state", "encoder"), "scorer.kind", self.kind, "generator_state or encoder")
        need(self.pooling in POOLINGS, "scorer.pooling", self.pooling, " or ".join(POOLINGS))
        need(self.quality in ("exact", "graded"), "scorer.quality", self.quality, "exact or graded")
        for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "examples", "epochs",
                     "groups_per_step", "max_pairs", "logging_steps", "save_steps"):  # fmt: skip
            need(getattr(self, name) >= 1, f"scorer.{name}", getattr(self, name), "at least 1")
        need(self.threshold is None or 0 <= self.threshold <= 1, "scorer.threshold", self.threshold,
             "a share in [0, 1], or none")  # fmt: skip
        need(self.max_tokens >= 8, "scorer.max_tokens", self.max_tokens, "at least 8")
        need(self.learning_rate > 0, "scorer.learning_rate", self.learning_rate, "above 0")
        need(self.weight_decay >= 0, "scorer.weight_decay", self.weight_decay, "at least 0")
        need(0 <= self.warmup_share < 1, "scorer.warmup_share", self.warmup_share, "a share in [0, 1)")
        need(
            0 <= self.regression_weight <= 1, "scorer.regression_weight", self.regression_weight, "a weight in [0, 1]"
        )
        need(self.huber_delta > 0, "scorer.huber_delta", self.huber_delta, "above 0")
        need(self.hinge_margin >= 0, "scorer.hinge_margin", self.hinge_margin, "at least 0")
        need(self.hidden_size % self.num_attention_heads == 0, "scorer.hidden_size", self.hidden_size,
             f"a multiple of num_attention_heads ({self.num_attention_heads})")  # fmt: skip
        check_saving("scorer", self.save_steps, self.logging_steps)
        unknown = sorted(set(self.files) - {"train", "test"})
        need(not unknown, "scorer.files", unknown, "paths under the keys train and test")
        need(
            not self.files or set(self.files) == {"train", "test"},
            "scorer.files",
            sorted(self.files),
            "both, train and test",
        )
        need(
            not self.files or self.kind == "encoder",
            "scorer.kind",
            self.kind,
            "encoder where candidates come from files",
        )


__all__ = ["ScorerStageConfig"]

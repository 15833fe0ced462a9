"""Stage 3, reinforcement learning."""

from dataclasses import dataclass

from transformers_egrm.training.config.values import check_batch, check_saving, need


@dataclass(frozen=True, kw_only=True)
class GRPOStageConfig:
    """Extended GRPO: the policy judges in both modes, and the scorer's contrast within a group is part of the reward."""

    steps: int = 100
    """Optimiser steps; 0 leaves the stage out."""
    batch_size: int = 128
    """Completions of one step, over all processes."""
    micro_batch_size: int | None = None
    """Completions trained on at once on one device; None: all of them."""
    num_generations: int = 8
    """Completions of one prompt: a group."""
    short_share: float = 0.5
    """Share of prompts in short mode, so that the policy keeps both abilities."""
    learning_rate: float = 1e-4
    """Peak rate, a twentieth of fine-tuning's; use 1e-6 for a pretrained model."""
    warmup_share: float = 0.1
    """Share of the steps over which the rate rises; it then falls along a cosine."""
    weight_decay: float = 0.0
    """Of AdamW; the KL term already holds the policy back."""
    max_grad_norm: float = 1.0
    """Clips gradients."""
    kl_weight: float = 0.04
    """Weight of the KL divergence from the policy at the start, as in the first GRPO paper."""
    temperature: float = 1.0
    """Of sampling. At 1 the samples are the policy's own."""
    quality: str = "exact"
    """Correctness of a verdict. `exact`: 1 for the truth, else 0. `graded`: 1 minus their distance."""
    format_weight: float = 0.2
    """Reward of a completion that ends by itself and states one verdict."""
    token_weight: float = 0.05
    """Price of a chain as long as `judge.options.max_chain_tokens`; shorter ones cost their share."""
    pair_weight: float = 0.5
    """lambda: weight of the pairwise reward among a group's chains; 0 leaves it out."""
    pair_bonus: float = 0.5
    """beta: what a right answer adds to the scorer's contrast, which lies in [-1, 1]."""
    logging_steps: int = 5
    """Steps between two lines of the metrics."""
    save_steps: int = 50
    """Steps between two checkpoints; a multiple of logging_steps."""

    def __post_init__(self) -> None:
        need(self.steps >= 0, "grpo.steps", self.steps, "at least 0")
        need(
            self.num_generations >= 2, "grpo.num_generations", self.num_generations, "at least 2: a group is compared"
        )
        need(self.batch_size >= 1 and self.batch_size % self.num_generations == 0, "grpo.batch_size", self.batch_size,
             f"a multiple of num_generations ({self.num_generations})")  # fmt: skip
        need(0 <= self.short_share <= 1, "grpo.short_share", self.short_share, "a share in [0, 1]")
        need(0 <= self.warmup_share < 1, "grpo.warmup_share", self.warmup_share, "a share in [0, 1)")
        for name in ("learning_rate", "max_grad_norm", "temperature"):
            need(getattr(self, name) > 0, f"grpo.{name}", getattr(self, name), "above 0")
        for name in ("weight_decay", "kl_weight", "format_weight", "token_weight", "pair_weight", "pair_bonus"):
            need(getattr(self, name) >= 0, f"grpo.{name}", getattr(self, name), "at least 0")
        need(self.quality in ("exact", "graded"), "grpo.quality", self.quality, "exact or graded")
        for name in ("logging_steps", "save_steps"):
            need(getattr(self, name) >= 1, f"grpo.{name}", getattr(self, name), "at least 1")
        check_saving("grpo", self.save_steps, self.logging_steps)
        check_batch("grpo", self.batch_size, self.micro_batch_size, "float32")


__all__ = ["GRPOStageConfig"]

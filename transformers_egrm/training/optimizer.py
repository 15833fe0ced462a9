"""Muon for a model's matrices, AdamW for the rest: small models learn to copy in a third of AdamW's steps with it."""

from typing import Any

import torch
from torch import Tensor, nn


class MuonWithAdamW(torch.optim.Optimizer):
    """Torch's Muon on the weight matrices inside the layers, AdamW on embeddings, head, norms and biases.

    Muon takes an orthogonal step per matrix; its rate is scaled to the size of an AdamW step, so that the two share one
    schedule. A learning-rate scheduler sees all parameter groups.

    Args:
        model: A causal LM; frozen parameters are left alone.
        lr: AdamW's peak rate.
        matrix_lr: Muon's peak rate.
        betas: AdamW's.
        weight_decay: Of both, on matrices and embeddings.

    Source:
        https://arxiv.org/abs/2502.16982 for the scale of the step.
    """

    def __init__(
        self, model: nn.Module, *, lr: float, matrix_lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        head = getattr(model, "get_output_embeddings", lambda: None)()
        tables |= {id(head.weight)} if head is not None else set()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [p for p in trained if p.ndim == 2 and id(p) not in tables]
        others = [p for p in trained if p.ndim != 2 or id(p) in tables]
        groups = [{"params": [p for p in others if p.ndim > 1]},
                  {"params": [p for p in others if p.ndim <= 1], "weight_decay": 0.0}]  # fmt: skip
        self.parts: list[torch.optim.Optimizer] = []
        if others:
            filled = [group for group in groups if group["params"]]
            self.parts.append(torch.optim.AdamW(filled, lr=lr, betas=betas, weight_decay=weight_decay))
        if matrices:
            self.parts.append(
                torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            )
        super().__init__([dict(group) for part in self.parts for group in part.param_groups], {})
        self._share_groups()

    def _share_groups(self) -> None:
        # The very groups of the parts: a rate that a scheduler sets here is the rate they step with.
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Tensor | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step of both.

        Args:
            closure: Computes the loss anew, with gradients; by default they are there already.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The state of both."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` returned."""
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        self._share_groups()


class MuonFactory:
    """How Transformers' Trainer asks for an optimizer that needs the whole model."""

    def __call__(self, model: nn.Module, **settings: Any) -> MuonWithAdamW:
        """The optimizer of a model.

        Args:
            model: To be trained.
            **settings: Of `MuonWithAdamW`.
        """
        return MuonWithAdamW(model, **settings)


__all__ = ["MuonFactory", "MuonWithAdamW"]

"""Muon and AdamW as one optimizer."""

import pytest
import torch
from torch import nn

from transformers_egrm.training.optimizer import MuonFactory, MuonWithAdamW


SETTINGS = {"lr": 1e-2, "matrix_lr": 3e-3, "betas": (0.9, 0.98), "weight_decay": 0.01}


class Tiny(nn.Module):
    """An embedding, two matrices, a norm, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm = nn.Embedding(11, 8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def get_output_embeddings(self) -> nn.Linear:
        """The head."""
        return self.head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.head(self.norm(self.down(self.up(self.embed(ids)).relu())))


def train(model: Tiny, optimizer: torch.optim.Optimizer, steps: int, start: int = 0) -> list[float]:
    losses = []
    for step in range(start, start + steps):
        ids = torch.randint(11, (16,), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(ids), (ids + 1) % 11)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_matrices_step_as_muon_and_all_else_as_adamw():
    model, twin = Tiny(), Tiny()
    train(model, MuonWithAdamW(model, **SETTINGS), 3)
    matrices = [twin.up.weight, twin.down.weight]
    muon = torch.optim.Muon(matrices, lr=3e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    rest = [{"params": [twin.embed.weight]},
            {"params": [twin.norm.weight, twin.norm.bias, twin.up.bias, twin.down.bias], "weight_decay": 0.0}]  # fmt: skip
    adam = torch.optim.AdamW(rest, lr=1e-2, betas=(0.9, 0.98), weight_decay=0.01)

    class Both:
        def zero_grad(self) -> None:
            twin.zero_grad()

        def step(self) -> None:
            muon.step()
            adam.step()

    train(twin, Both(), 3)  # pyright: ignore[reportArgumentType] (it has all that is asked of it)
    for (name, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


def test_it_learns():
    model = Tiny()
    losses = train(model, MuonFactory()(model, **SETTINGS), 200)
    assert sum(losses[-10:]) < 0.2 * sum(losses[:10])


def test_a_scheduler_moves_every_rate_and_a_rate_of_zero_moves_nothing():
    model = Tiny()
    optimizer = MuonWithAdamW(model, **(SETTINGS | {"weight_decay": 0.0}))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0 if step else 1.0)
    train(model, optimizer, 1)
    scheduler.step()
    assert [group["lr"] for part in optimizer.parts for group in part.param_groups] == [0.0] * 3
    before = [parameter.clone() for parameter in model.parameters()]
    train(model, optimizer, 1)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_a_saved_state_goes_on_as_if_nothing_had_happened(tmp_path):
    whole = Tiny()
    expected = train(whole, MuonWithAdamW(whole, **SETTINGS), 8)
    model = Tiny()
    optimizer = MuonWithAdamW(model, **SETTINGS)
    train(model, optimizer, 4)
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "state.pt")
    weights, state = torch.load(tmp_path / "state.pt")
    again = Tiny()
    again.load_state_dict(weights)
    resumed = MuonWithAdamW(again, **SETTINGS)
    resumed.load_state_dict(state)
    assert [group["lr"] for group in resumed.param_groups] == [1e-2, 1e-2, 3e-3]
    assert train(again, resumed, 4, start=4) == pytest.approx(expected[4:], abs=0)


def test_frozen_parameters_stay():
    model = Tiny()
    model.up.weight.requires_grad_(False)
    before = model.up.weight.clone()
    train(model, MuonWithAdamW(model, **SETTINGS), 3)
    assert torch.equal(model.up.weight, before)

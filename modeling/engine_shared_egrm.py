"""An engine whose prompts all begin alike: what they share is run once, whatever follows it in each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .engine_flops_egrm import CostModel
from .engine_protocol_egrm import Body, Drawn, Engine, PromptRows, Prompts
from .errors_egrm import InputError


class SharedStart:
    """Judges one prompt at a time, each from the same first tokens. It needs nothing of its engine but `start` and `resume`.

    A batch of the engine's own shares tokens too, but all its prompts have one verdict space. Here each may have its own.

    Args:
        engine: Who writes.
        token_ids: What every prompt begins with; run at once.
    """

    def __init__(self, engine: Engine, token_ids: Sequence[int]) -> None:
        self.engine, self.token_ids = engine, tuple(token_ids)
        ids = torch.tensor([self.token_ids], device=engine.device)
        start = engine.start(PromptRows.of(ids, torch.ones_like(ids)), ())
        self._body, self._to_tell = start.body(0), sum(start.tokens_run)

    @property
    def can(self) -> frozenset[str]:
        """What the engine can, but drafts, which read whole prompts, and decoders, which `resume` chooses."""
        return self.engine.can - {"drafts", "decoders"}

    @property
    def device(self) -> torch.device:
        """The engine's."""
        return self.engine.device

    @property
    def cost(self) -> CostModel:
        """The engine's."""
        return self.engine.cost

    def start(self, prompts: PromptRows, suffix: Sequence[int], *, decoder: str = "auto") -> Prompts:
        """Continue the shared tokens with the rest of a prompt.

        Args:
            prompts: One prompt that begins with them.
            suffix: Token ids of the mode suffix.
            decoder: Only `auto`.

        Raises:
            InputError: There are more prompts than one, or it begins otherwise.
        """
        rows, shared = prompts.token_ids(), len(self.token_ids)
        if len(rows) != 1 or tuple(rows[0][:shared]) != self.token_ids:
            raise InputError(
                f"One prompt that begins with the {shared} shared tokens is needed, got {len(rows)} prompts."
            )
        rest = tuple(rows[0][shared:])
        first, self._to_tell = self._to_tell, 0  # the shared tokens count for the first prompt
        return _Continued(self.engine.resume([self._body], (*rest, *suffix)), self._body, rest, first)

    def resume(self, bodies: Sequence[Any], suffix: Sequence[int]) -> Prompts:
        """Continue one body with another suffix."""
        (own,) = bodies
        return _Continued(self.engine.resume([own.body], (*own.rest, *suffix)), own.body, own.rest, 0)


@dataclass(frozen=True)
class _Rest:
    # A prompt as what it shares and what is its own.
    body: Body
    rest: tuple[int, ...]
    joins = False

    @property
    def num_tokens(self) -> int:
        return self.body.num_tokens + len(self.rest)


class _Continued:
    # One prompt of a `SharedStart`; see `Prompts`.

    def __init__(self, prompts: Prompts, body: Body, rest: tuple[int, ...], before: int) -> None:
        self._prompts, self._body, self._rest = prompts, body, rest
        self.tokens_run = [prompts.tokens_run[0] + before]
        self.lengths = prompts.lengths

    def sample(self, *args: Any, drafting: Any = None, **wanted: Any) -> Drawn:
        # `drafting="auto"` asks without needing: it is plain decoding here.
        return self._prompts.sample(*args, **wanted)

    @property
    def states(self) -> torch.Tensor:
        return self._prompts.states

    def read(self, paths: Sequence[Sequence[int]], columns: torch.Tensor, **limits: Any) -> torch.Tensor:
        return self._prompts.read(paths, columns, **limits)

    def body(self, row: int) -> Body:
        return _Rest(self._body, self._rest)


__all__ = ["SharedStart"]

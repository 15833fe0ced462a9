"""Who reads along while texts are written: criteria that end one of them, and a streamer that passes it on."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


class Reader:
    """Sees every token in order, however many a round writes, as it would in plain decoding.

    A criterion is asked about each text by itself, since texts grow by different numbers of tokens. What follows the
    token at which it says yes is cut, like what follows an end token.

    Args:
        contexts: [R, T] int64, the prompts, padding included.
        criteria: Each takes ids [1, n] and None for scores, and returns whether the text ends there.
        streamer: Gets each token that is written, [1] int64 on the CPU.
    """

    def __init__(self, contexts: Tensor, criteria: Sequence[Callable[..., Any]] = (), streamer: Any = None) -> None:
        self.criteria, self.streamer = list(criteria), streamer
        self._texts = list(contexts.unbind(0)) if self.criteria else []

    def read(self, row: int, tokens: Sequence[int]) -> int | None:
        """How many tokens a criterion leaves of a row's new ones; None where it ends nothing.

        Args:
            row: Which text.
            tokens: What this round would write of it.
        """
        kept = self._cut(row, tokens)
        if self.streamer is not None:
            for token in tokens[:kept]:
                self.streamer.put(torch.tensor([token]))
        return kept

    def _cut(self, row: int, tokens: Sequence[int]) -> int | None:
        if not self.criteria or not tokens:
            return None
        start, text = self._texts[row].shape[0], self._texts[row]
        text = torch.cat([text, torch.tensor(list(tokens), dtype=text.dtype, device=text.device)])
        self._texts[row] = text
        for count in range(1, len(tokens) + 1):
            if any(bool(torch.as_tensor(asks(text[None, : start + count], None)).any()) for asks in self.criteria):
                return count
        return None


__all__ = ["Reader"]

"""An engine that can do nothing but continue token ids, and a server for it: ids in, ids out, no logits, no cache."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_flops_egrm import CostModel
from transformers_egrm.modeling.engine_protocol_egrm import Branches, Drawn, PromptRows


@dataclass(frozen=True)
class Request:
    """What a completion server is asked for."""

    prompt: tuple[int, ...]
    temperature: float
    top_p: float
    max_tokens: int
    stop_ids: tuple[int, ...]
    late_stop_ids: tuple[int, ...]
    seed: tuple[int, ...]


Complete = Callable[[Sequence[Request]], list[list[int]]]


@dataclass(frozen=True)
class TextBody:
    """A prompt is its tokens."""

    ids: tuple[int, ...]
    joins = True

    @property
    def num_tokens(self) -> int:
        return len(self.ids)


class CompletionEngine:
    """Judges through a completion server alone."""

    can: frozenset[str] = frozenset()
    device = torch.device("cpu")

    def __init__(self, complete: Complete, cost: CostModel) -> None:
        self.complete, self.cost = complete, cost

    def start(self, prompts: PromptRows, suffix: Sequence[int], *, decoder: str = "auto") -> "TextPrompts":
        return TextPrompts(self, [TextBody(tuple(row)) for row in prompts.token_ids()], suffix)

    def resume(self, bodies: Sequence[TextBody], suffix: Sequence[int]) -> "TextPrompts":
        return TextPrompts(self, bodies, suffix)


class TextPrompts:
    """R prompts as texts; nothing is run before something is drawn."""

    def __init__(self, engine: CompletionEngine, bodies: Sequence[TextBody], suffix: Sequence[int]) -> None:
        self.engine, self.bodies, self.suffix = engine, list(bodies), tuple(suffix)
        self.lengths = [body.num_tokens + len(suffix) for body in bodies]
        self.tokens_run = self.lengths

    def sample(self, branches: Branches, vocabulary, max_tokens: int, *, deadlines=None, **_: object) -> Drawn:
        rows, live, now = range(len(branches.item_ids)), branches.live, time.monotonic()
        late = [deadlines is not None and now > deadlines[row // branches.per_prompt] for row in rows]
        asked = [row for row in rows if (live is None or bool(live[row])) and not late[row]]
        requests = [
            Request(
                (*self.bodies[row // branches.per_prompt].ids, *self.suffix), float(branches.temperatures[row]),
                float(branches.top_ps[row]), max_tokens, vocabulary.stop_ids, vocabulary.late_stop_ids,
                (branches.seed, int(branches.item_ids[row]), int(branches.branch_ids[row])),
            )
            for row in asked
        ]  # fmt: skip
        tokens = torch.zeros(len(rows), max_tokens, dtype=torch.int64)
        lengths, ended = torch.zeros(len(rows), dtype=torch.int64), torch.zeros(len(rows), dtype=torch.bool)
        for row, ids in zip(asked, self.engine.complete(requests), strict=True):
            tokens[row, : len(ids)], lengths[row] = torch.tensor(ids), len(ids)
            ended[row] = ids[-1] in vocabulary.stop_ids or (len(ids) > 1 and ids[-1] in vocabulary.late_stop_ids)
        complete = ended | (lengths == max_tokens)
        return Drawn(tokens, lengths, ended, complete, torch.tensor(late), torch.zeros_like(ended))

    def read(self, paths, columns):
        raise AssertionError("refused before anything runs")

    def body(self, row: int) -> TextBody:
        return self.bodies[row]


def serve(generator) -> Complete:
    """A completion server around a causal LM: every request a row of one batch, sampled from a seed of its own."""

    name = Backbone(generator).cache_name

    @torch.no_grad()
    def complete(requests: Sequence[Request]) -> list[list[int]]:
        width = max((len(request.prompt) for request in requests), default=0)
        ids = torch.tensor([[0] * (width - len(r.prompt)) + list(r.prompt) for r in requests])
        mask = torch.tensor([[0] * (width - len(r.prompt)) + [1] * len(r.prompt) for r in requests])
        randoms = [torch.Generator().manual_seed(hash(request.seed) % 2**31) for request in requests]
        written: list[list[int]] = [[] for _ in requests]
        going, cache, fed = list(range(len(requests))), None, ids
        while going:
            out = generator(
                input_ids=fed, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp_min(0)[:, -fed.shape[1] :],
                use_cache=True, **{name: cache},
            )  # fmt: skip
            cache, logits = out[name], out.logits[:, -1].double()
            for row in list(going):
                request = requests[row]
                written[row].append(_draw(logits[row], request, randoms[row]))
                stops = {*request.stop_ids, *(request.late_stop_ids if len(written[row]) > 1 else ())}
                if written[row][-1] in stops or len(written[row]) == request.max_tokens:
                    going.remove(row)
            fed = torch.tensor([[ids[-1] if ids else 0] for ids in written])
            mask = torch.cat([mask, torch.ones_like(fed)], 1)
        return written

    return complete


def _draw(logits: torch.Tensor, request: Request, random: torch.Generator) -> int:
    if request.temperature == 0:
        return int(logits.argmax())
    probs, order = (logits / request.temperature).softmax(-1).sort(descending=True)
    probs = torch.where(probs.cumsum(-1) - probs < request.top_p, probs, 0.0)
    return int(order[torch.multinomial(probs, 1, generator=random)])

"""`HttpEngine`: a generator that runs on a server, on the `Engine` seam. Consensus, routing, scorer and calibration stay here."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformers_egrm.engines.dialects import Ask, Dialect, Row, Written
from transformers_egrm.engines.wire import Client, Failure, Post
from transformers_egrm.modeling.engine_flops_egrm import CostModel
from transformers_egrm.modeling.engine_protocol_egrm import Branches, Drawn, PromptRows
from transformers_egrm.modeling.engine_random_egrm import uniforms
from transformers_egrm.modeling.engine_sampler_egrm import BranchSampler
from transformers_egrm.modeling.errors_egrm import EngineError, UnsupportedModelError


MOST_PATHS = 64
"""Most places of a verdict space that are read of one prompt, each with a request of its own."""


class HttpEngine:
    """Continues token ids on a server.

    Args:
        client: Who sends requests.
        dialect: How this kind of server is asked.
        cost: Sizes of the generator, for the account of what a judgement took.
        can: What the server was seen to do; by default what its kind declares.
        repeats: Whether the same seed was seen to draw the same again.
        seeds: Whether requests have seeds.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        client: Client,
        dialect: Dialect,
        cost: CostModel,
        can: frozenset[str] | None = None,
        repeats: bool = True,
        seeds: bool = True,
    ) -> None:
        self.client, self.dialect, self.cost = client, dialect, cost
        self.repeats, self.seeds = repeats and seeds, seeds
        self.can = dialect.can if can is None else can

    def start(self, prompts: PromptRows, suffix: Sequence[int], *, decoder: str = "auto") -> "HttpPrompts":
        """See `Engine`; nothing is sent before something is drawn or read."""
        return HttpPrompts(self, [TokenBody(tuple(row)) for row in prompts.token_ids()], suffix)

    def resume(self, bodies: Sequence["TokenBody"], suffix: Sequence[int]) -> "HttpPrompts":
        """See `Engine`: whole prompts are sent again, and the server's prefix cache knows them."""
        return HttpPrompts(self, bodies, suffix)

    def draw(self, asks: Sequence[Ask], deadlines: Sequence[float] | None = None) -> list[list[Written | Failure]]:
        """Draw the rows of some asks, all at a time.

        Args:
            asks: N prompts with their rows.
            deadlines: [N] `time.monotonic()` at which each is given up.

        Returns:
            For each ask one entry for each row.
        """
        posts = [self.dialect.posts(ask) for ask in asks]
        limits = None
        if deadlines is not None:
            limits = [limit for limit, own in zip(deadlines, posts, strict=True) for _ in own]
        answers = iter(self.client.post([post for own in posts for post, _ in own], limits))
        return [
            [row for _, rows in own for row in self._rows(ask, next(answers), rows)]
            for ask, own in zip(asks, posts, strict=True)
        ]

    def _rows(self, ask: Ask, answer: Any | Failure, rows: int) -> Sequence[Written | Failure]:
        if not isinstance(answer, Failure):
            answer = self._understood(len(ask.prompt), answer, lambda: self.dialect.written(ask, answer))
        if not isinstance(answer, Failure) and len(answer) != rows:
            answer = Failure(f"It was asked for {rows} rows and answered {len(answer)}.")
        return [answer] * rows if isinstance(answer, Failure) else answer

    def read(self, prompts: Sequence[Sequence[int]], columns: Sequence[int], deadlines: Sequence[float]) -> Tensor:
        """Log-probabilities of named tokens after some prompts.

        Args:
            prompts: N prompts, as token ids.
            columns: A tokens.
            deadlines: [N] `time.monotonic()` at which each is given up.

        Returns:
            [N, A] float32, NaN where there was no answer in time.

        Raises:
            EngineError: There was no answer at all.
        """
        size = self.dialect.most_columns
        parts = [columns[start : start + size] for start in range(0, len(columns), size)]
        posts: list[Post] = [self.dialect.reading(prompt, part) for prompt in prompts for part in parts]
        limits = [limit for limit in deadlines for _ in parts]
        answers, numbers = self.client.post(posts, limits), torch.full((len(prompts), len(columns)), torch.nan)
        failures = []
        for index, answer in enumerate(answers):
            row, part = divmod(index, len(parts))
            if not isinstance(answer, Failure):
                own = parts[part]
                answer = self._understood(
                    len(prompts[row]), answer, lambda answer=answer, own=own: self.dialect.log_probs(answer, own)
                )
            if isinstance(answer, Failure):
                failures.append(answer)
            else:
                numbers[row, part * size : part * size + len(answer)] = torch.tensor(answer)
        self.raise_if_dead(failures, len(answers))
        return numbers

    def raise_if_dead(self, failures: Sequence[Failure], asked: int) -> None:
        """Say why there is no answer at all; single failures are what the rows' own flags are for.

        Args:
            failures: What went wrong.
            asked: How many requests there were.

        Raises:
            EngineError: All of them failed, and not for lack of time.
        """
        if failures and len(failures) == asked and not all(failure.late for failure in failures):
            reason = next(failure.reason for failure in failures if not failure.late)
            raise EngineError(f"The engine at {self.client.url} did not answer: {reason}",
                              "Judge the record again when it is back: `egrm score … --retry-failed`.")  # fmt: skip

    def _understood(self, prompt_tokens: int, answer: Any, read: Any) -> Any | Failure:
        # An answer of another shape, or to another prompt than was sent, is no answer.
        try:
            counted = self.dialect.prompt_tokens(answer)
            if counted is not None and counted != prompt_tokens:
                return Failure(f"The prompt has {prompt_tokens} tokens, and the server counted {counted}: it cut the prompt, "
                               "added to it, or has another tokenizer.")  # fmt: skip
            return read()
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            return Failure(f"The answer is not {self.dialect.name}'s: {type(error).__name__}: {error}")
        except EngineError as error:
            return Failure(str(error))


@dataclass(frozen=True)
class TokenBody:
    """A prompt is its tokens: the server keeps what it has computed of it."""

    ids: tuple[int, ...]
    joins = True

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.ids)


class HttpPrompts:
    """R prompts of an `HttpEngine`."""

    def __init__(self, engine: HttpEngine, bodies: Sequence[TokenBody], suffix: Sequence[int]) -> None:
        self.engine, self.bodies, self.suffix = engine, list(bodies), tuple(suffix)
        self.lengths = [body.num_tokens + len(suffix) for body in bodies]
        self.tokens_run = self.lengths  # as they are sent: what a prefix cache saves, only the server knows

    def body(self, row: int) -> TokenBody:
        """See `Prompts`."""
        return self.bodies[row]

    @property
    def states(self) -> Tensor:
        """See `Prompts`: no server hands them out, and `can` says so.

        Raises:
            UnsupportedModelError: Always.
        """
        raise UnsupportedModelError("An engine over HTTP hands out no hidden states.", "Ask what it can do before.")

    def read(
        self, paths: Sequence[Sequence[int]], columns: Tensor, *, deadlines: Sequence[float] | None = None
    ) -> Tensor:
        """See `Prompts`: one request for each prompt and path, all at a time.

        Raises:
            UnsupportedModelError: There are more than `MOST_PATHS` paths.
            EngineError: There was no answer at all.
        """
        if len(paths) > MOST_PATHS:
            raise UnsupportedModelError(
                f"The verdicts of this space branch at {len(paths)} places, each of which is a request for every prompt; an "
                f"engine over HTTP reads at most {MOST_PATHS}.",
                "Use consensus='sampled' with probe_vocabulary='full', or a smaller verdict space.",
            )
        limits = [math.inf] * len(self.bodies) if deadlines is None else list(deadlines)
        prompts = [(*self._prompt(row), *path) for row in range(len(self.bodies)) for path in paths]
        numbers = self.engine.read(prompts, columns.tolist(), [limit for limit in limits for _ in paths])
        return numbers.view(len(self.bodies), len(paths), -1)

    def sample(
        self, branches: Branches, vocabulary: Any, max_tokens: int, *, deadlines: Sequence[float] | None = None,
        log_probs: bool = False, **_: Any,
    ) -> Drawn:  # fmt: skip
        """See `Prompts`. Verdicts of a list are drawn here, from what `read` says, with the numbers that a local engine takes.

        Raises:
            EngineError: There was no answer at all.
        """
        if vocabulary.columns is not None:
            sampler = BranchSampler(branches, vocabulary, max_tokens, deadlines=deadlines)
            nodes = self.read(vocabulary.paths, vocabulary.columns, deadlines=deadlines)
            sampler.draw(nodes[:, 0])
            sampler.run(_Nodes(nodes, sampler))
            return sampler.drawn()
        rows = _Rows(len(branches.item_ids), max_tokens, vocabulary.stop_ids, vocabulary.late_stop_ids)
        limits = [math.inf] * len(self.bodies) if deadlines is None else list(deadlines)
        asked = self._live_rows(branches)
        again = self._draw(rows, asked, branches, limits, log_probs)
        if again:  # a late stop token does not end a row with its first token: such a row is asked to go on after it
            self._draw(rows, again, branches, limits, log_probs)
        failed = [rows.failures[row] for own in asked for row in own if row in rows.failures]
        self.engine.raise_if_dead(failed, sum(map(len, asked)))
        return rows.drawn(log_probs)

    def _live_rows(self, branches: Branches) -> list[list[int]]:
        live = branches.live
        rows = [range(at * branches.per_prompt, (at + 1) * branches.per_prompt) for at in range(len(self.bodies))]
        return [[row for row in own if live is None or bool(live[row])] for own in rows]

    def _draw(
        self, rows: "_Rows", asked: list[list[int]], branches: Branches, limits: list[float], log_probs: bool
    ) -> list[list[int]]:
        # Rows that are the same so far are one ask; returns those that must go on.
        asks, owners, deadlines = [], [], []
        for prompt, own in enumerate(asked):
            for begun in dict.fromkeys(tuple(rows.tokens[row]) for row in own):
                mine = [row for row in own if tuple(rows.tokens[row]) == begun]
                asks.append(Ask(
                    (*self._prompt(prompt), *begun), tuple(self._row(branches, row, len(begun)) for row in mine),
                    rows.max_tokens - len(begun), tuple(dict.fromkeys((*rows.stop_ids, *rows.late_stop_ids))), log_probs,
                ))  # fmt: skip
                owners.append(mine)
                deadlines.append(limits[prompt])
        again: set[int] = set()
        for own, answers in zip(owners, self.engine.draw(asks, deadlines), strict=True):
            again |= {row for row, answer in zip(own, answers, strict=True) if rows.add(row, answer)}
        return [[row for row in own if row in again] for own in asked] if again else []

    def _row(self, branches: Branches, row: int, step: int) -> Row:
        number = uniforms(branches.seed, branches.item_ids[row, None], branches.branch_ids[row, None], step)
        seed = int(float(number) * 2**31) if self.engine.seeds else None
        return Row(float(branches.temperatures[row]), float(branches.top_ps[row]), seed)

    def _prompt(self, row: int) -> tuple[int, ...]:
        return (*self.bodies[row].ids, *self.suffix)


class _Rows:
    # What N rows have drawn, as the server's answers come in.

    def __init__(self, count: int, max_tokens: int, stop_ids: Sequence[int], late_stop_ids: Sequence[int]) -> None:
        self.max_tokens, self.stop_ids, self.late_stop_ids = max_tokens, stop_ids, late_stop_ids
        self.tokens: list[list[int]] = [[] for _ in range(count)]
        self.log_probs, self.ended = [0.0] * count, [False] * count
        self.failures: dict[int, Failure] = {}

    def add(self, row: int, answer: Written | Failure) -> bool:
        """Take in an answer; whether the row must be asked to go on."""
        if isinstance(answer, Failure):
            self.failures[row] = answer
            return False
        before = len(self.tokens[row])
        ids = [*self.tokens[row], *answer.tokens][: self.max_tokens]
        end = next((at + 1 for at, token in enumerate(ids) if self._ends(at, token)), None)
        self.tokens[row] = ids[:end]
        if answer.log_probs is not None:
            self.log_probs[row] += sum(answer.log_probs[: len(self.tokens[row]) - before])
        first_only = answer.stopped and end is None and len(ids) == 1 and ids[0] in self.late_stop_ids
        if first_only and self.max_tokens > 1:
            return True
        # A server may end rows by tokens of its own.
        self.ended[row] = end is not None or (answer.stopped and not first_only)
        return False

    def _ends(self, at: int, token: int) -> bool:
        return token in self.stop_ids or (at > 0 and token in self.late_stop_ids)

    def drawn(self, log_probs: bool) -> Drawn:
        """As the stages take it."""
        count = len(self.tokens)
        tokens = torch.zeros(count, self.max_tokens, dtype=torch.int64)
        for row, ids in enumerate(self.tokens):
            tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        lengths = torch.tensor([len(ids) for ids in self.tokens])
        ended = torch.tensor(self.ended)
        late, broken = torch.zeros_like(ended), torch.zeros_like(ended)
        for row, failure in self.failures.items():
            (late if failure.late else broken)[row] = True
        failed = late | broken
        return Drawn(
            tokens=tokens,
            lengths=lengths,
            ended=ended & ~failed,
            complete=(ended | (lengths == self.max_tokens)) & ~failed,
            late=late,
            broken=broken,
            log_probs=torch.tensor(self.log_probs, dtype=torch.float32) if log_probs else None,
        )


class _Nodes:
    # Steps through a list of verdicts whose log-probabilities are known: the model is not needed any more.

    can_drop = False

    def __init__(self, nodes: Tensor, sampler: BranchSampler) -> None:
        self.nodes, self.sampler = nodes, sampler

    def keep_prompts(self, index: Tensor) -> None:
        raise AssertionError("nothing is dropped")

    def step(self, tokens: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
        states: Tensor = self.sampler.vocabulary.states.clamp_max(self.nodes.shape[1] - 1)  # pyright: ignore[reportAttributeAccessIssue]
        prompts = torch.arange(len(self.nodes)).repeat_interleave(self.sampler.per_prompt)
        return self.nodes[prompts, states], torch.zeros(len(states), 1)


__all__ = ["MOST_PATHS", "HttpEngine", "HttpPrompts", "TokenBody"]

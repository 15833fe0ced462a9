"""What every engine owes the stages, as checks of one engine beside the generator that it runs."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from engine_fixtures import EOS, tiny_inputs, tiny_task

from transformers_egrm.modeling.engine_protocol_egrm import ABILITIES, Branches, Drawn, PromptRows, need_abilities
from transformers_egrm.modeling.engine_sampling_egrm import warped_probs
from transformers_egrm.modeling.engine_vocabulary_egrm import OpenVocabulary
from transformers_egrm.modeling.errors_egrm import UnsupportedModelError


SUFFIX, OTHER_SUFFIX = (7, 8), (9, 10, 11)


@dataclass(frozen=True)
class Case:
    """An engine, and what it is compared with."""

    engine: Any
    generator: Any
    """The same one, here."""
    prompts: Sequence[list[int]]
    """At least three, without suffix."""
    suffix: tuple[int, ...] = SUFFIX
    other_suffix: tuple[int, ...] = OTHER_SUFFIX
    stops: tuple[int, ...] = (EOS,)
    decoder: str = "auto"
    draws: int = 1500
    """How many of a law are compared."""
    repeats: bool = True
    """Whether a seed draws the same again."""
    temperatures: tuple[float, float] = (0.6, 1.4)
    top_p: float = 0.5
    """With these it says more than one thing."""

    @torch.no_grad()
    def start(self, which: Sequence[int] = (0, 1, 2), suffix: tuple[int, ...] | None = None) -> Any:
        inputs = tiny_inputs(tiny_task(), [self.prompts[row] for row in which])
        rows = PromptRows.of(inputs.input_ids, inputs.attention_mask)
        return self.engine.start(rows, self.suffix if suffix is None else suffix, decoder=self.decoder)


@torch.no_grad()
def sample(
    prompts: Any, temperatures, top_p=1.0, max_tokens=6, stops=(EOS,), late=(), seed=0, live=None, **asked
) -> Drawn:
    count, rungs = len(prompts.lengths), len(temperatures)
    branches = Branches(
        temperatures=torch.tensor(temperatures, dtype=torch.float64).repeat(count),
        top_ps=torch.full((count * rungs,), top_p, dtype=torch.float64),
        item_ids=torch.arange(count).repeat_interleave(rungs),
        branch_ids=torch.arange(rungs).repeat(count),
        per_prompt=rungs,
        seed=seed,
        live=live,
    )
    return prompts.sample(branches, OpenVocabulary(tuple(stops), tuple(late)), max_tokens, **asked)


def greedy(generator: Any, prompt: list[int], max_tokens: int, stops=(EOS,), late=()) -> list[int]:
    ids = list(prompt)
    while len(ids) - len(prompt) < max_tokens:
        with torch.no_grad():
            ids.append(int(generator(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] in stops or (len(ids) - len(prompt) > 1 and ids[-1] in late):
            break
    return ids[len(prompt) :]


def rows_of(drawn: Drawn) -> list[list[int]]:
    return [ids[:n] for ids, n in zip(drawn.tokens.tolist(), drawn.lengths.tolist(), strict=True)]


def check_abilities(case: Case) -> None:
    """It says what it can do, and is asked for nothing else."""
    assert case.engine.can <= set(ABILITIES)
    need_abilities(case.engine, case.engine.can)
    for ability in set(ABILITIES) - case.engine.can:
        with pytest.raises(UnsupportedModelError, match="It can: "):
            need_abilities(case.engine, {ability})


def check_greedy(case: Case) -> None:
    """Greedy rows are the model's own, whatever they are padded with."""
    drawn = sample(case.start(), (0.0, 0.0), stops=case.stops)
    for row, ids in enumerate(rows_of(drawn)):
        assert ids == greedy(case.generator, [*case.prompts[row // 2], *case.suffix], 6, case.stops)


def check_ends(case: Case) -> None:
    """Rows end at a stop token or at their budget, and say which. The generator must do both."""
    drawn = sample(case.start(), case.temperatures[1:] * 8, max_tokens=4, stops=case.stops)
    assert 0 < int(drawn.ended.sum()) < len(drawn.ended)
    for ids, ended, complete in zip(rows_of(drawn), drawn.ended.tolist(), drawn.complete.tolist(), strict=True):
        assert ended == (ids[-1] in case.stops)
        assert not set(case.stops) & set(ids[:-1])
        assert complete
        assert ended or len(ids) == 4
    after = torch.arange(4) >= drawn.lengths[:, None]
    assert not bool(drawn.tokens[after].any())


def check_law(case: Case) -> None:
    """Each row has the model's distribution at its own temperature and nucleus: chi-square at 1e-4."""
    count, temperatures = case.draws, case.temperatures
    drawn = sample(case.start((0,)), temperatures * count, top_p=case.top_p, max_tokens=1, stops=case.stops)
    with torch.no_grad():
        logits = case.generator(input_ids=torch.tensor([[*case.prompts[0], *case.suffix]])).logits[:, -1]
    degrees_seen = 0
    for rung, temperature in enumerate(temperatures):
        rungs = torch.tensor([temperature]).double(), torch.tensor([case.top_p]).double()
        expected = warped_probs(logits.float(), *rungs)[0] * count
        degrees_seen += same_law(Counter(drawn.tokens[rung::2, 0].tolist()), expected, count)
    assert degrees_seen > 1


def same_law(seen: Counter, expected: torch.Tensor, count: int) -> int:
    """Compare counts with expected ones; the degrees of freedom that were left."""
    assert all(float(expected[token]) > 0 for token in seen)
    likely = [token for token in range(len(expected)) if float(expected[token]) >= 5]
    rest = count - sum(seen[token] for token in likely), float(count - expected[likely].sum())
    cells = [(seen[token], float(expected[token])) for token in likely] + ([rest] if rest[1] >= 5 else [])
    degrees = len(cells) - 1
    if degrees:
        statistic = sum((got - meant) ** 2 / meant for got, meant in cells)
        # By the Wilson-Hilferty approximation.
        bound = degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3
        assert statistic < bound
    return degrees


def check_seeds(case: Case) -> None:
    """Draws differ between branches and seeds, and repeat with their seed where the engine says so."""
    ready = case.start((0, 1))
    first, again, other = (sample(ready, case.temperatures[1:] * 4, stops=case.stops, seed=seed) for seed in (1, 1, 2))
    assert (rows_of(first) == rows_of(again)) or not case.repeats
    assert rows_of(first) != rows_of(other)
    assert len({tuple(row) for row in rows_of(first)}) > 4


def check_live(case: Case) -> None:
    """Rows that are not live draw nothing, and change no other."""
    ready = case.start((0, 1))
    live = torch.tensor([True, True, False, True, False, False])
    drawn, whole = (sample(ready, (1.0,) * 3, stops=case.stops, live=rows) for rows in (live, None))
    assert (drawn.lengths > 0).tolist() == live.tolist()
    assert not bool(drawn.complete[~live].any())
    if case.repeats:
        ours, theirs = (
            [row for row, own in zip(rows_of(one), live.tolist(), strict=True) if own] for one in (drawn, whole)
        )
        assert ours == theirs


def check_deadline(case: Case) -> None:
    """A deadline that has passed stops its prompt's rows only."""
    drawn = sample(case.start((0, 1)), (0.0,) * 2, stops=(), deadlines=[0.0, math.inf])
    assert drawn.late.tolist() == [True, True, False, False]
    assert drawn.complete.tolist() == [False, False, True, True]


def check_bodies(case: Case) -> None:
    """A body goes on with another suffix as if it had been run alone."""
    begun = case.start()
    bodies = [begun.body(row) for row in (2, 0)]
    assert [body.num_tokens for body in bodies] == [len(case.prompts[row]) for row in (2, 0)]
    rows = []
    for batch in [bodies] if bodies[0].joins else [[body] for body in bodies]:
        with torch.no_grad():
            resumed = case.engine.resume(batch, case.other_suffix)
        assert resumed.lengths == [body.num_tokens + len(case.other_suffix) for body in batch]
        rows += rows_of(sample(resumed, (0.0,), stops=case.stops))
    assert rows == [greedy(case.generator, [*case.prompts[row], *case.other_suffix], 6, case.stops) for row in (2, 0)]


def check_offers(case: Case) -> None:
    """What it offers beyond text is right."""
    prompt, ready, can = case.prompts[0], case.start((0,)), case.engine.can
    wanted = {"log_probs": "log_probs" in can, "pooling": "mean" if "states" in can else None}
    drawn = sample(ready, (1.0,), stops=(), max_tokens=4, **wanted)
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *case.suffix, *drawn.tokens[0].tolist()]])
        out = case.generator(input_ids=ids, output_hidden_states=True)
    scores, last = out.logits[0].log_softmax(-1), len(prompt) + len(case.suffix) - 1
    if wanted["log_probs"]:
        by_hand = sum(float(scores[last + step, token]) for step, token in enumerate(drawn.tokens[0].tolist()))
        assert float(drawn.log_probs[0]) == pytest.approx(by_hand, abs=1e-3)
    if wanted["pooling"]:
        states = out.hidden_states[-1][0, -4:].mean(0)
        torch.testing.assert_close(drawn.states[0], states, atol=1e-4, rtol=1e-4)
    if "logits" in can:
        columns, path = torch.tensor([5, 6, 7]), tuple(drawn.tokens[0, :2].tolist())
        with torch.no_grad():
            read = ready.read([path, ()], columns)[0]
        for ours, place in zip(read, (last + 2, last), strict=True):
            expected = out.logits[0, place, columns]
            torch.testing.assert_close(ours - ours[0], expected - expected[0], atol=1e-4, rtol=1e-4)


CHECKS = (
    check_abilities,
    check_greedy,
    check_law,
    check_seeds,
    check_live,
    check_deadline,
    check_bodies,
    check_offers,
)
"""What any generator can be checked with; `check_ends` needs one that ends some rows."""

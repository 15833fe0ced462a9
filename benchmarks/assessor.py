"""The assessor against exact consensus: who knows best, before any decode, whether the short path will be right.

Run:
    python benchmarks/assessor.py egrm-mini --pools runs/pareto --output runs/assessor

Assessors are trained on the training split of the synthetic world, and calibrated on its calibration split. The figures are
of the test split. PATH.calibration.jsonl and PATH.test.jsonl are pools that pareto.py wrote, of all items of both splits: each
judged on both paths. Writes results.json and table.md with three tables. Intervals are of 95 %, over questions.

1. What each rival knows: kinds of assessor, what their labels are made from, and what they cost.
2. The cascade: routing by exact consensus or by probes, alone and with an assessor in front.
3. Seconds of each stage, in alternating rounds, as a ratio to sampled probes.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pareto import Methods, Row, verdict_of

from transformers_egrm.calibration.calibrators import apply, fit_best
from transformers_egrm.data.files import write_json, write_text
from transformers_egrm.data.synthetic.splits import STREAMS
from transformers_egrm.data.synthetic.world import examples
from transformers_egrm.evaluation import metrics
from transformers_egrm.evaluation.outcomes import LabelledItem, judge_labelled, label
from transformers_egrm.judge import RewardJudge
from transformers_egrm.modeling.judge_assessor_egrm import EGRMAssessor
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.training.assessor import (
    FitOptions,
    Observed,
    ask,
    calibrate,
    fit,
    new_assessor,
    observe,
    set_thresholds,
)


TRAINING_SEED = 777
"""Of the training stream."""
SURE = 0.8
"""At or above it an assessor counts as sure."""
FUSED = {"right": 0.5, "consensus": 0.5}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "state, right and consensus": ("state", {"weights": FUSED}),
    "state, right": ("state", {"weights": {"right": 1.0}}),
    "state, consensus": ("state", {"weights": {"consensus": 1.0}}),
    "state, exits": ("state", {"weights": {"exits": 1.0}}),
    "state, attention": ("state", {"weights": {"attention": 1.0}}),
    "state, all four": ("state", {"weights": dict.fromkeys(("right", "consensus", "exits", "attention"), 0.25)}),
    "state, right and consensus, not staged": ("state", {"weights": FUSED, "known_steps": 0}),
    "state, known difficulty alone": ("state", {"weights": FUSED, "steps": 0}),
    "encoder, right and consensus": ("encoder", {"weights": FUSED, "batch_size": 128, "known_steps": 20}),
}
"""What is trained: kind, and options of the fit."""


@dataclass(frozen=True)
class Split:
    """Items of a split as the pool judged them, and as an assessor sees them."""

    rows: list[Row]
    seen: Observed

    @property
    def questions(self) -> list[str]:
        """[N]."""
        return [row["question"] for row in self.rows]


def stored(path: Path | None, make: Callable[[], Any]) -> Any:
    """What was observed or trained, from a file where it is kept, so that a killed run goes on.

    Args:
        path: The file; None: it is not kept.
        make: Observes or trains.
    """
    if path is not None and path.exists():
        return torch.load(path, weights_only=False)
    found = make()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, path)
    return found


def read_items(model: EGRMRewardModel, path: Path, split: str, thin: int) -> tuple[list[Row], list[LabelledItem]]:
    """Rows of a pool and their items, every so manyth.

    Args:
        model: The judge.
        path: Of the pool.
        split: That it was drawn from.
        thin: Every `thin`th item is kept.

    Raises:
        SystemExit: The pool holds other items.
    """
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()[1:]]
    own = len(rows) // STREAMS
    drawn = [(seed, example) for seed in range(STREAMS) for example in islice(examples(split, seed), own)]
    if [example.question_id for _, example in drawn] != [row["question"] for row in rows]:
        raise SystemExit(f"{path} does not hold the {split} split: make it with pareto.py.")
    rows, kept = rows[::thin], drawn[::thin]
    return rows, [item for seed, example in kept for item in label(model.processor, [example], seed)]


def need_one_judge(split: Split) -> Split:
    """The same split, if pool and observation are of one judge: then their exact verdicts are the same.

    Raises:
        SystemExit: They are not.
    """
    same = np.mean(
        [row["exact"][0] == said for row, said in zip(split.rows, split.seen.probs.argmax(-1).tolist(), strict=True)]
    )
    if same < 0.999:
        raise SystemExit(
            f"Only {same:.1%} of the pool's exact verdicts are this judge's: it holds another judge, or other options."
        )
    return split


# -- what each rival knows ------------------------------------------------------------------------------------------------


def knowledge(sure: NDArray[np.float64], exact: NDArray[np.float64], split: Split, resamples: int) -> Row:
    """How well a probability tells right short verdicts from wrong ones.

    Args:
        sure: [N] calibrated.
        exact: [N] exact consensus, calibrated: what it is compared with.
        split: The items.
        resamples: Of the bootstrap.
    """
    right = split.seen.right

    def interval(statistic: Any, *columns: NDArray[Any]) -> Row:
        return asdict(metrics.bootstrap(statistic, *columns, groups=split.questions, resamples=resamples))

    return {
        "auroc": interval(_area, sure, right),
        "gain": interval(lambda own, rival, holds: _area(own, holds) - _area(rival, holds), sure, exact, right),
        "ece": interval(lambda values, holds: metrics.calibration_error(values, holds), sure, right),
        "false_sure": interval(lambda values, holds: float(((values >= SURE) & ~holds).mean()), sure, right),
        "false_unsure": interval(lambda values, holds: float(((values < SURE) & holds).mean()), sure, right),
    }


def _area(values: NDArray[np.float64], holds: NDArray[np.bool_]) -> float:
    area = metrics.auroc(values, holds)
    assert area is not None, "some are right and some are wrong"
    return area


def exact_rival(calibration: Split, test: Split) -> NDArray[np.float64]:
    """[N] exact consensus of test items, calibrated: what one prefill and the verdicts' logits know."""
    owner = np.unique(np.array(calibration.questions), return_inverse=True)[1]
    table = fit_best(calibration.seen.consensus.clip(0, 1), calibration.seen.right, owner)
    return apply(table, test.seen.consensus.clip(0, 1))


def rivals(
    model: EGRMRewardModel,
    calibration: Split,
    test: Split,
    resamples: int,
    trained: Callable[[str], EGRMAssessor],
) -> tuple[list[Row], dict[str, EGRMAssessor]]:
    """The first table, and the assessors of it.

    Args:
        model: The judge.
        calibration: What calibrates them.
        test: What tells.
        resamples: Of the bootstrap.
        trained: The assessor of each recipe.
    """
    short = float(np.mean([row["sampled"][2] for row in test.rows]))
    columns = model.backbone.cost.head(1, model.task.space.num_verdicts)
    exact = exact_rival(calibration, test)
    found = [
        {"rival": "exact consensus", "parameters": 0, "cost_share": columns / short, "on_calibration": None}
        | knowledge(exact, exact, test, resamples)
    ]
    assessors: dict[str, EGRMAssessor] = {}
    lengths = [len(ids) for ids in test.seen.token_ids]
    for name in RECIPES:
        assessor = assessors[name] = trained(name)
        calibrate(assessor, calibration.seen)
        row = knowledge(ask(assessor, test.seen).sure, exact, test, resamples)
        chosen = metrics.auroc(ask(assessor, calibration.seen).sure, calibration.seen.right)
        cost = float(np.mean([assessor.flops(length) for length in lengths])) / short
        parameters = sum(weight.numel() for weight in assessor.parameters())
        about = {"rival": name, "parameters": parameters, "cost_share": cost, "on_calibration": chosen}
        found.append(about | row)
        print(f"{name}: AUROC {row['auroc']['value']:.4f}, ECE {row['ece']['value']:.4f}", flush=True)
    return found, assessors


# -- the cascade ----------------------------------------------------------------------------------------------------------


def cascade(
    split: Split, assessor: EGRMAssessor | None, kind: str, tau: float, chains: int
) -> tuple[NDArray[np.bool_], NDArray[np.float64], dict[str, float]]:
    """Which items a policy judges rightly, what each costs, and the share of each stage.

    Args:
        split: The items.
        assessor: What stands in front; None: nothing.
        kind: Of the probes: `exact` or `sampled`.
        tau: Threshold of the probes' consensus.
        chains: K on the long path, by majority.
    """
    rows, methods = split.rows, Methods(split.rows, scorer=False, reuse=False)
    consensus, probed = (np.array([row[kind][place] for row in rows], dtype=float) for place in (1, 2))
    prefill = np.array([row["exact"][2] for row in rows])
    right = methods.right(lambda row: row[kind][0])
    long_right = methods.right(lambda row: verdict_of(row, chains, "vote", probes=False))
    direct, think, before, own_right = np.zeros_like(right), np.zeros_like(right), np.zeros_like(probed), right
    at_once = methods.start + methods.written[:, chains]
    if assessor is not None:
        settings, said = assessor.settings, ask(assessor, split.seen)
        if settings.decides_on("auto"):  # else it is not asked
            before = np.array([assessor.flops(len(ids)) for ids in split.seen.token_ids])
        if said.verdicts is not None and said.support is not None:
            direct = (said.sure >= settings.direct_above) & (said.support >= settings.direct_floor)
            own_right = said.verdicts == split.seen.truth.numpy()
            # A head has seen the short prompt: a thought goes on from there.
            at_once = prefill + methods.resume + methods.written[:, chains]
        think = (said.sure < settings.think_below) & ~direct
    short = metrics.takes_short(consensus, tau) & ~direct & ~think
    thought = probed + methods.resume + methods.written[:, chains]
    flops = np.select([direct, think, short], [prefill, at_once, probed], thought) + before
    correct = np.select([direct, short], [own_right, right], long_right)
    stages = {"assessor": direct, "probes": short, "at once": think}
    return correct, flops, {name: float(values.mean()) for name, values in stages.items()}


def policies(
    assessors: dict[str, EGRMAssessor], calibration: Split, test: Split, chains: int, resamples: int, promised: Row
) -> list[Row]:
    """The second table: each policy beside the same one without an assessor.

    Args:
        assessors: By name, calibrated.
        calibration: Chooses thresholds.
        test: Tells.
        chains: K.
        resamples: Of the bootstrap.
        promised: `tau`, `risk` and `waste`.
    """
    found = []
    tau, asked = promised["tau"], {name: promised[name] for name in ("risk", "waste")}
    for kind in ("exact", "sampled"):
        plain = cascade(test, None, kind, tau, chains)
        for name, assessor in ((None, None), *assessors.items()):
            if assessor is not None:
                set_thresholds(assessor, calibration.seen, tau=tau, **asked)
            correct, flops, stages = cascade(test, assessor, kind, tau, chains)

            def interval(statistic: Any, *columns: NDArray[Any]) -> Row:
                return asdict(metrics.bootstrap(statistic, *columns, groups=test.questions, resamples=resamples))

            thresholds = {} if assessor is None else assessor.settings.to_dict()
            found.append(
                {
                    "probes": kind,
                    "assessor": name or "none",
                    "accuracy": interval(lambda own: float(own.mean()), correct),
                    "lost": interval(lambda own: float(own.mean()), plain[0].astype(float) - correct),
                    "operations": interval(lambda ours, theirs: float(ours.mean() / theirs.mean()), flops, plain[1]),
                    "stages": stages,
                    "thresholds": {
                        key: thresholds.get(key) for key in ("direct_above", "direct_floor", "think_below")
                    },
                }
            )
    return found


# -- seconds --------------------------------------------------------------------------------------------------------------


def latencies(
    model: EGRMRewardModel,
    assessors: Sequence[EGRMAssessor],
    items: Sequence[LabelledItem],
    batch_size: int,
    rounds: int,
) -> list[Row]:
    """The third table: seconds of an item on each stage, and the ratio to sampled probes, median of the rounds.

    Args:
        model: The judge; it has no assessor afterwards.
        assessors: One of each kind.
        items: What is judged.
        batch_size: Items judged together.
        rounds: How often each stage has its turn.
    """
    head, encoder = assessors
    ways: dict[str, tuple[EGRMAssessor | None, Row]] = {
        "direct, state": (_forced(head, direct_above=0.0, direct_floor=0.0), {"consensus": "sampled"}),
        "short, exact": (None, {"path": "short", "consensus": "exact"}),
        "short, sampled": (None, {"path": "short", "consensus": "sampled"}),
        "short, sampled, after an encoder": (_forced(encoder, think_below=1e-9), {"consensus": "sampled", "consensus_threshold": 0.0}),
        "long, 1 chain": (None, {"path": "long", "num_chains": 1, "selection": "vote"}),
        "long, 4 chains": (None, {"path": "long", "num_chains": 4, "selection": "vote"}),
    }  # fmt: skip
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, (assessor, options) in ways.items():
            model.attach_assessor(assessor)
            spent = judge_labelled(model, items, batch_size, **options)[1] / len(items)
            if turn:  # the first round warms up
                seconds[name].append(spent)
        print(f"round {turn} of {rounds} timed", flush=True)
    model.attach_assessor(None)
    base = np.array(seconds["short, sampled"])
    return [
        {"stage": name, "seconds": float(np.median(own)), "ratio": float(np.median(np.array(own) / base)),
         "low": float(np.min(np.array(own) / base)), "high": float(np.max(np.array(own) / base))}
        for name, own in seconds.items()
    ]  # fmt: skip


def _forced(assessor: EGRMAssessor, **thresholds: float) -> EGRMAssessor:
    forced = EGRMAssessor(replace(assessor.settings, **thresholds), assessor.state_dict()["norm.weight"].shape[0])
    forced.load_state_dict(assessor.state_dict())
    return forced


# -- the page -------------------------------------------------------------------------------------------------------------


def page(known: Sequence[Row], cascades: Sequence[Row], timed: Sequence[Row]) -> str:
    """The three tables as Markdown."""
    lines = [
        "| rival | parameters | of a short path's operations | AUROC | above exact | ECE | sure and wrong, % | unsure and right, % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in known:
        shown = [_figure(row[key], 1, 3) for key in ("auroc", "gain", "ece")]
        shown += [_figure(row[key], 100, 1) for key in ("false_sure", "false_unsure")]
        lines.append(f"| {row['rival']} | {row['parameters']:,} | {row['cost_share']:.3%} | {' | '.join(shown)} |")
    lines += [
        "",
        "| probes | assessor | accuracy, % | points lost | operations / without | own verdict | probes | chains at once |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in cascades:
        shown = [_figure(row["accuracy"], 100, 2), _figure(row["lost"], 100, 2), _figure(row["operations"], 1, 3)]
        stages = " | ".join(f"{row['stages'][name]:.1%}" for name in ("assessor", "probes", "at once"))
        lines.append(f"| {row['probes']} | {row['assessor']} | {' | '.join(shown)} | {stages} |")
    if timed:
        lines += ["", "| stage | ms an item | of sampled probes |", "|---|---|---|"]
        lines += [
            f"| {row['stage']} | {1000 * row['seconds']:.2f} | {row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f}) |"
            for row in timed
        ]
    return "\n".join([*lines, ""])


def _figure(found: Row, scale: float, digits: int) -> str:
    value, low, high = (scale * found[name] for name in ("value", "low", "high"))
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", help="`egrm-mini`, or the folder of a checkpoint with a pointwise space from 0 to 10")
    parser.add_argument("--pools", required=True, metavar="PATH", help="where judged items are kept")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--thin", type=int, default=1, help="use every so manyth item")
    parser.add_argument("--train", type=int, default=24_000, help="training examples")
    parser.add_argument("--steps", type=int, default=1_500, help="of the training of each head")
    parser.add_argument("--encoder-steps", type=int, default=1_500, help="of that of the encoder")
    parser.add_argument(
        "--top-ps", nargs="+", type=float, help="of exact consensus; below 1, sure verdicts all look alike"
    )
    parser.add_argument("--tau", type=float, help="of the probes' consensus; default: the checkpoint's")
    parser.add_argument("--chains", type=int, default=1, help="K on the long path of the second table")
    parser.add_argument("--risk", type=float, default=0.02, help="promised of direct answers")
    parser.add_argument("--waste", type=float, default=0.05, help="promised of chains at once")
    parser.add_argument("--kept", type=Path, metavar="FOLDER", help="keep what was observed and trained here")
    parser.add_argument("--timed", type=int, default=256, help="items whose stages are timed; 0: none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--resamples", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64)
    return parser.parse_args()


def main() -> None:
    """Measure."""
    given = arguments()
    model = RewardJudge(given.judge).model
    tau = model.config.judge_options().consensus_threshold if given.tau is None else given.tau

    exact = {} if given.top_ps is None else {"top_ps": given.top_ps}

    def file(name: str) -> Path | None:
        return None if given.kept is None else given.kept / f"{name}.pt"

    splits, timed_items = {}, []
    for name in ("calibration", "test"):
        rows, items = read_items(model, Path(f"{given.pools}.{name}.jsonl"), name, given.thin)
        seen = stored(file(name), lambda items=items: observe(model, items, given.batch_size, **exact))
        splits[name] = need_one_judge(Split(rows, seen))
        timed_items = items[: given.timed]
    drawn = islice(examples("train", TRAINING_SEED), given.train)
    training = stored(
        file("train"),
        lambda: observe(
            model, list(label(model.processor, drawn, TRAINING_SEED)), given.batch_size, signals=True, **exact
        ),
    )

    def trained(name: str) -> EGRMAssessor:
        kind, own = RECIPES[name]

        def train() -> EGRMAssessor:
            assessor = new_assessor(model, kind)
            fit(
                assessor,
                training,
                FitOptions(**{"steps": given.encoder_steps if kind == "encoder" else given.steps, **own}),
            )
            return assessor

        return stored(file(name), train)

    known, assessors = rivals(model, splits["calibration"], splits["test"], given.resamples, trained)
    first = {name: assessors[name] for name in ("state, right and consensus", "encoder, right and consensus")}
    promised = {"tau": tau, "risk": given.risk, "waste": given.waste}
    cascades = policies(first, splits["calibration"], splits["test"], given.chains, given.resamples, promised)
    timed = latencies(model, list(first.values()), timed_items, given.batch_size, given.rounds) if given.timed else []
    given.output.mkdir(parents=True, exist_ok=True)
    about = {name: {"items": len(own.rows), "questions": len(set(own.questions))} for name, own in splits.items()}
    write_json(given.output / "results.json", {"judge": given.judge, "splits": about, "train": given.train, "tau": tau,
               "chains": given.chains, "rivals": known, "cascades": cascades, "timed": timed})  # fmt: skip
    text = page(known, cascades, timed)
    write_text(given.output / "table.md", text)
    print(about, text, sep="\n")


if __name__ == "__main__":
    main()

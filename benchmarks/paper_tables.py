"""The paper's tables, measured on a trained judge: what routing, the scorer and the ladder do for accuracy and cost.

Run:
    python benchmarks/paper_tables.py transformers_egrm/checkpoints/egrm-mini --seeds 0 1 2 3 4
    python benchmarks/paper_tables.py runs/first/checkpoint runs/second/checkpoint --records test.jsonl --tables a e

Items come from a split of the synthetic world, one stream per seed, or from a JSONL file with the fields question_id,
prompt, response, verdict. Streams share no question. `--split sealed` is for tables that are published. Writes
results.json, tables.md and one plot per table.

- (a) full E-GRM, its ablations and the baseline GRM (K chains always, majority vote), beside the cost model; once per
  checkpoint, the other tables with the first one;
- (b) number of probes; (c) ladder, fixed temperature, nucleus variation; (d) self-BLEU of sampled chains against
  consensus; (e) share and precision of the short path; (f) prompts of 1k to 8k tokens; (g) thresholds; (h) sampled and
  exact consensus.

Every interval is of 95 %: over questions, which are drawn with all their responses, or for seconds over chunks of the
data, of which there have to be six. Methods take turns on each chunk, so that a slow minute of the machine meets them all.
"""

import argparse
import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from paper_bench import Bench, Row, Run, mean, mean_ratio, measure_speed
from paper_report import write_report

from transformers_egrm.evaluation import metrics
from transformers_egrm.evaluation.cost import PathCosts, flops_of, seconds_of, workload_of
from transformers_egrm.evaluation.outcomes import LabelledItem, Outcomes, label
from transformers_egrm.modeling.engine_flops_egrm import cost_model
from transformers_egrm.modeling.engine_generate_egrm import generate
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel


PROBE_COUNTS = (1, 3, 5, 7, 10)
Table = dict[str, Any]


def share_among(flags: NDArray[np.bool_], rows: NDArray[np.bool_]) -> float | None:
    """Share of True flags among some rows; None where there are none."""
    return mean(flags[rows]) if rows.any() else None


def column(key: str, name: str, kind: str = "percent") -> dict[str, str]:
    """How a table shows one figure: `percent`, `ratio`, `number`, `count`, `ms`, `mflop` or `text`."""
    return {"key": key, "name": name, "kind": kind}


# -- (a) ablations and the cost model --------------------------------------------------------------------------------------


FULL, BASELINE, ONE_CHAIN = "full E-GRM", "baseline GRM", "one chain always"
ABLATIONS: dict[str, dict[str, Any]] = {
    FULL: {},
    "exact consensus": {"consensus": "exact"},
    "no trigger": {"path": "long"},
    "no scorer": {"selection": "vote"},
    "probes not reused": {"reuse_probes": False},
    "short path only": {"path": "short"},
    BASELINE: {"path": "long", "selection": "vote"},
    ONE_CHAIN: {"path": "long", "selection": "vote", "num_chains": 1},
    "exact consensus, one chain": {"consensus": "exact", "selection": "vote", "num_chains": 1},
}


def ablations(bench: Bench) -> tuple[Table, dict[str, Run]]:
    """Table (a), and its runs."""
    runs = bench.compare(ABLATIONS)
    full, base = runs[FULL], runs[BASELINE]
    rows = []
    for name, run in runs.items():
        own = run.outcomes
        rows.append(
            {
                "method": name,
                "accuracy": bench.over_questions(mean, own.correct),
                "gain": bench.over_questions(
                    lambda ours, theirs: mean(ours) - mean(theirs), own.correct, base.outcomes.correct
                ),
                "short_share": bench.over_questions(mean, own.took_short),
                "flops": bench.over_questions(mean, own.flops),
                "flops_ratio": bench.over_questions(mean_ratio, own.flops, base.outcomes.flops),
                "seconds": bench.over_chunks(run.seconds),
                "seconds_ratio": bench.over_chunks(run.seconds / base.seconds),
                "new_tokens": mean(own.new_tokens),
            }
        )
    table = {
        "title": "(a) Full E-GRM, its ablations and the baseline GRM",
        "note": (
            "Exact consensus: the ladder-averaged distribution of the verdict instead of samples of it. No trigger: chains for "
            "every item, without probes, chosen by the scorer. Baseline: the same, chosen by majority. One chain always is the "
            "cheapest simple alternative. "
            "Gains and ratios are against the baseline, on the same items."
            + ("" if bench.options.selection == "scorer" else " Without a trained scorer a vote chooses everywhere.")
        ),
        "columns": [
            column("method", "method", "text"),
            column("accuracy", "accuracy"),
            column("gain", "gain"),
            column("short_share", "short"),
            column("flops", "MFLOP per item", "mflop"),
            column("flops_ratio", "FLOPs / baseline", "ratio"),
            column("seconds", "ms per item", "ms"),
            column("seconds_ratio", "seconds / baseline", "ratio"),
            column("new_tokens", "new tokens", "number"),
        ],
        "rows": rows,
        "cost": cost_table(bench, full, runs["short path only"], base),
    }
    return table, runs


def cost_table(bench: Bench, full: Run, short: Run, base: Run) -> Table:
    """What the cost model says about (a), beside what was measured."""
    model, options, own = bench.model, bench.options, full.outcomes
    if options.consensus == "exact":
        return {}
    speed, lengths = measure_speed(bench, options)
    share = mean(own.took_short)
    workload = workload_of(
        model,
        options,
        prompt_tokens=mean(own.prompt_tokens),
        verdict_tokens=mean(own.short_new_tokens) / len(options.temperatures),
        chain_tokens=mean(base.outcomes.new_tokens) / options.num_chains,
        **lengths,
    )
    encoder = getattr(model.scorer, "encoder", None)
    flops = flops_of(workload, model.backbone.cost, None if encoder is None else cost_model(encoder))
    seconds = seconds_of(workload, speed, bench.batch_size)
    thinks = ~own.took_short
    measured: dict[str, Row] = {
        "flops_ratio": bench.over_questions(mean_ratio, own.flops, base.outcomes.flops),
        "seconds_ratio": bench.over_chunks(full.seconds / base.seconds),
        # On the same items, so that hard ones, which think, are not compared with easy ones.
        "short_to_baseline_flops": bench.over_questions(mean_ratio, own.short_flops, base.outcomes.flops),
        "short_to_baseline_seconds": bench.over_chunks(short.seconds / base.seconds),
    }
    if thinks.any():
        measured["short_to_long_flops"] = bench.over_questions(
            lambda short, flops, long: float(short[long].mean() / flops[long].mean()) if long.any() else None,
            own.short_flops,
            own.flops,
            thinks,
        )
    predicted = {
        "flops_ratio": flops.ratio(share),
        "seconds_ratio": seconds.ratio(share),
        "short_to_baseline_flops": flops.ratio(1.0),
        "short_to_baseline_seconds": seconds.ratio(1.0),
        "short_to_long_flops": flops.short_to_long,
    }
    names = {
        "flops_ratio": "full / baseline, FLOPs",
        "seconds_ratio": "full / baseline, seconds",
        "short_to_baseline_flops": "short path / baseline, FLOPs",
        "short_to_baseline_seconds": "short path / baseline, seconds",
        "short_to_long_flops": "short / long path of items that think, FLOPs",
    }
    return {
        "title": "Cost model beside (a)",
        "note": "Lengths are means of the runs above; seconds come from constants fitted to other runs of the same items.",
        "columns": [
            column("name", "figure", "text"),
            column("measured", "measured", "ratio"),
            column("predicted", "predicted", "ratio"),
        ],
        "rows": [
            {"name": names[key], "measured": measured[key], "predicted": predicted[key]}
            for key in names
            if key in measured
        ],
        "workload": asdict(workload),
        "speed": asdict(speed),
        "short_share": share,
        "short_share_needed": needed_shares(flops, seconds),
    }


def needed_shares(flops: PathCosts, seconds: PathCosts) -> list[Row]:
    """The short shares at which the paper's claims would be met; None where no share suffices."""
    return [
        {"cost": name, "ratio": ratio, "short_share": costs.short_share_for(ratio)}
        for name, costs, ratio in (
            ("FLOPs", flops, 0.66),
            ("FLOPs", flops, 0.51),
            ("seconds", seconds, 0.58),
            ("seconds", seconds, 0.38),
        )
    ]


# -- (b), (c), (d) probes --------------------------------------------------------------------------------------------------


def routing_row(bench: Bench, own: Outcomes) -> Row:
    """Routing figures with their intervals."""
    return {
        "accuracy": bench.over_questions(mean, own.correct),
        "routing_accuracy": bench.over_questions(
            lambda took, right: mean(took == right), own.took_short, own.short_correct
        ),
        "short_share": bench.over_questions(mean, own.took_short),
        "short_precision": bench.over_questions(share_among, own.correct, own.took_short),
    }


ROUTING_COLUMNS = [
    column("accuracy", "accuracy"),
    column("routing_accuracy", "routing accuracy"),
    column("short_share", "short"),
    column("short_precision", "short precision"),
]


def probe_counts(bench: Bench) -> Table:
    """Table (b)."""
    methods = {f"{count}": {"temperatures": bench.ladder(count)} for count in PROBE_COUNTS}
    runs = bench.compare(methods)
    reference = runs[f"{PROBE_COUNTS[0]}"]
    rows = [
        {
            "num_probes": int(name),
            **routing_row(bench, run.outcomes),
            "seconds": bench.over_chunks(run.seconds),
            "seconds_ratio": bench.over_chunks(run.seconds / reference.seconds),
            "flops": bench.over_questions(mean, run.outcomes.flops),
        }
        for name, run in runs.items()
    ]
    return {
        "title": "(b) Number of probes",
        "note": (
            f"Temperatures spread evenly over the ladder's range, tau = {bench.options.consensus_threshold}. An item is "
            "routed rightly if it took the short path and its short verdict is right, or thought and it is wrong. One probe "
            "always agrees with itself."
        ),
        "columns": [
            column("num_probes", "M", "count"),
            *ROUTING_COLUMNS,
            column("seconds", "ms per item", "ms"),
            column("seconds_ratio", "seconds / M = 1", "ratio"),
            column("flops", "MFLOP per item", "mflop"),
        ],
        "rows": rows,
    }


def spreads(bench: Bench) -> tuple[Table, Outcomes]:
    """Table (c), and the outcomes of the ladder with every probe read."""
    probes, top_ps = len(bench.options.temperatures), bench.options.top_ps
    nucleus = tuple(np.linspace(0.8, 1.0, probes).tolist()) if probes > 1 else (0.9,)
    variants: dict[str, dict[str, Any]] = {
        "ladder": {"temperatures": bench.options.temperatures, "top_ps": top_ps},
        "fixed T = 0.7": {"temperatures": (0.7,) * probes, "top_ps": top_ps},
        "nucleus 0.8 to 1.0 at T = 0.7": {"temperatures": (0.7,) * probes, "top_ps": nucleus},
    }
    whole = {
        "path": "short",
        "early_stop": False,
        "consensus": "sampled",
    }  # every probe is read: consensus is no bound
    runs = bench.compare({name: variant | whole for name, variant in variants.items()})
    ladder = runs["ladder"].outcomes
    rows = []
    for name, run in runs.items():
        own = run.outcomes
        believed = metrics.takes_short(own.consensus, bench.options.consensus_threshold)
        rows.append(
            {
                "variant": name,
                "auroc": bench.over_questions(metrics.auroc, own.consensus, own.short_correct),
                "auroc_gain": bench.over_questions(
                    _auroc_difference, own.consensus, own.short_correct, ladder.consensus, ladder.short_correct
                ),
                "ece": bench.over_questions(metrics.calibration_error, own.consensus, own.short_correct),
                "brier": bench.over_questions(metrics.brier, own.consensus, own.short_correct),
                "short_share": bench.over_questions(mean, believed),
                "short_precision": bench.over_questions(share_among, own.short_correct, believed),
                "reliability": [asdict(found) for found in metrics.reliability(own.consensus, own.short_correct)],
            }
        )
    table = {
        "title": "(c) What makes consensus tell right from wrong",
        "note": "AUROC of consensus for a right short verdict, all items on the short path, every probe read.",
        "columns": [
            column("variant", "probes", "text"),
            column("auroc", "AUROC", "ratio"),
            column("auroc_gain", "against the ladder", "ratio"),
            column("ece", "ECE", "ratio"),
            column("brier", "Brier", "ratio"),
            column("short_share", "short at tau"),
            column("short_precision", "short precision"),
        ],
        "rows": rows,
    }
    return table, ladder


def _auroc_difference(ours: Any, right: Any, theirs: Any, their_right: Any) -> float | None:
    first, second = metrics.auroc(ours, right), metrics.auroc(theirs, their_right)
    return None if first is None or second is None else first - second


def repetition(bench: Bench, probed: Outcomes) -> Table:
    """Table (d): chains sampled on the ladder, against the consensus of short verdicts."""
    model, task, options = bench.model, bench.model.task, bench.options
    items = bench.items[: bench.text_items]
    scores = []
    for first in range(0, len(items), bench.batch_size):
        inputs = model.processor.collate([item.item for item in items[first : first + bench.batch_size]])
        suffix = torch.tensor(task.long_suffix_ids).expand(inputs.num_items, -1)
        prompts = torch.cat([inputs.input_ids, suffix], 1)
        sequences = generate(
            model.generator, prompts, attention_mask=torch.cat([inputs.attention_mask, torch.ones_like(suffix)], 1),
            temperatures=options.temperatures, top_ps=options.top_ps, seed=options.seed, max_new_tokens=options.max_chain_tokens,
            item_ids=inputs.item_ids.tolist(), eos_token_id=task.chain_stop_ids,
        )  # fmt: skip
        texts = model.decode_tokens(sequences[:, prompts.shape[1] :].tolist())
        per_item = len(options.temperatures)
        scores += [metrics.self_bleu(texts[row : row + per_item]) for row in range(0, len(texts), per_item)]
    own = np.array(scores)
    consensus, right = probed.consensus[: len(own)], probed.short_correct[: len(own)]
    groups = bench.questions[: len(own)]

    def estimate(figure: Callable[..., float | None], *columns: Any) -> Row:
        return asdict(metrics.bootstrap(figure, *columns, groups=groups, resamples=bench.resamples))

    return {
        "title": "(d) Self-BLEU against consensus",
        "note": (
            f"Self-BLEU of {len(options.temperatures)} chains of thought sampled on the ladder, consensus of as many short verdicts; "
            f"{len(own)} items."
        ),
        "columns": [column("name", "figure", "text"), column("value", "value", "ratio")],
        "rows": [
            {
                "name": "rank correlation of self-BLEU and consensus",
                "value": estimate(metrics.rank_correlation, own, consensus),
            },
            {"name": "AUROC of self-BLEU for a right short verdict", "value": estimate(metrics.auroc, own, right)},
            {"name": "AUROC of consensus, same items", "value": estimate(metrics.auroc, consensus, right)},
            {"name": "mean self-BLEU", "value": estimate(mean, own)},
        ],
        "points": [[float(x), float(y)] for x, y in zip(consensus, own, strict=True)],
    }


# -- (e) the short path ----------------------------------------------------------------------------------------------------


def short_path(bench: Bench, full: Outcomes, base: Outcomes, seeds: Sequence[int]) -> Table:
    """Table (e): pooled, by seed, by domain and by difficulty."""

    def gain(ours: Any, theirs: Any, rows: Any) -> float | None:
        return mean(ours[rows]) - mean(theirs[rows]) if rows.any() else None

    groups: dict[str, NDArray[np.bool_]] = {"all": np.ones(len(full), dtype=bool)}
    columns = {
        "seed": seeds,
        "domain": [i.domain for i in bench.items],
        "difficulty": [i.difficulty for i in bench.items],
    }
    for name, values in columns.items():
        for value in sorted(set(values)) if len(set(values)) > 1 else ():
            groups[f"{name} {value}"] = np.array([each == value for each in values])
    rows = []
    for name, inside in groups.items():
        short = inside & full.took_short
        believed, right = int(short.sum()), int((short & full.correct).sum())
        rows.append(
            {
                "group": name,
                "items": int(inside.sum()),
                "short_share": bench.over_questions(share_among, full.took_short, inside),
                "short_precision": bench.over_questions(share_among, full.correct, short),
                "short_precision_wilson": asdict(metrics.wilson(right, believed)),
                "accuracy": bench.over_questions(share_among, full.correct, inside),
                "gain": bench.over_questions(gain, full.correct.astype(float), base.correct.astype(float), inside),
            }
        )
    return {
        "title": "(e) Share and precision of the short path",
        "note": (
            "Wilson's interval takes items for independent; the bootstrap's draws whole questions. Accuracy is that of full "
            "E-GRM, its gain that over the baseline GRM."
        ),
        "columns": [
            column("group", "items", "text"),
            column("items", "number", "count"),
            column("short_share", "short"),
            column("short_precision", "short precision"),
            column("short_precision_wilson", "short precision, Wilson"),
            column("accuracy", "accuracy"),
            column("gain", "gain"),
        ],
        "rows": rows,
    }


# -- (f) prompt length -----------------------------------------------------------------------------------------------------


@contextmanager
def positions(model: Any, count: int | None) -> Iterator[None]:
    """Let the model say that it has so many positions: a judge refuses what its context does not hold."""
    config = model.config.get_text_config().get_text_config()
    before = getattr(config, "max_position_embeddings", None)
    if count is not None:
        config.max_position_embeddings = count
    try:
        yield
    finally:
        if count is not None:
            config.max_position_embeddings = before


def prompt_lengths(bench: Bench) -> Table:
    """Table (f): what M verdicts cost beside one, by the length of the prompt."""
    model, item = bench.model, bench.items[0].item
    limit = getattr(model.generator.config, "max_position_embeddings", None) or max(bench.prompt_lengths)
    # Positions that are computed and not looked up go on for ever; what is said there means nothing, its cost does.
    endless = getattr(model.generator.config, "rope_parameters", None) is not None
    ladders = {"many": bench.options.temperatures, "one": bench.ladder(1)}
    rows = []
    for length in bench.prompt_lengths:
        if length > limit and not endless:
            continue
        ids = (item.prompts[0] * -(-length // len(item.prompts[0])))[:length]
        inputs = model.processor.collate([replace(item, prompts=(ids,))])
        seconds: dict[str, list[float]] = {name: [] for name in ladders}
        flops: dict[str, float] = {}
        for number in range(bench.rounds + 1):  # the first round warms up
            for name, temperatures in ladders.items():
                options = {"temperatures": temperatures, "consensus": "sampled", "early_stop": False}
                with positions(model, 2 * length if length > limit else None):
                    start = time.perf_counter()
                    output = model.judge(inputs, path="short", **options)
                    elapsed = time.perf_counter() - start
                flops[name] = float(output["flops"].sum())
                if number:
                    seconds[name].append(elapsed)
        many, one = (np.array(seconds[name]) for name in ("many", "one"))
        rows.append(
            {
                "prompt_tokens": length,
                "seconds": bench.over_chunks(many),
                "seconds_ratio": bench.over_chunks(many / one),
                "flops_ratio": flops["many"] / flops["one"],
                "beyond_positions": length > limit,
            }
        )
    beyond = " Lengths beyond the model's own positions are measured for their cost alone." if endless else ""
    return {
        "title": f"(f) {len(bench.options.temperatures)} verdicts beside one, by prompt length",
        "note": f"One prompt at a time, {bench.rounds} rounds in turn; the model has {limit:,} positions.{beyond}",
        "columns": [
            column("prompt_tokens", "prompt tokens", "count"),
            column("seconds", "ms", "ms"),
            column("seconds_ratio", "seconds / one verdict", "ratio"),
            column("flops_ratio", "FLOPs / one verdict", "ratio"),
        ],
        "rows": rows,
    }


# -- (g), (h) thresholds and exact consensus -------------------------------------------------------------------------------


def thresholds(bench: Bench) -> Table:
    """Table (g): every threshold from one run, in which all items think that do so at any."""
    options, probes = bench.options, len(bench.options.temperatures)
    runs = bench.compare(
        {
            "strictest": {"consensus_threshold": 1.0, "early_stop": False, "consensus": "sampled"},
            "always": {"path": "long", "selection": "vote"},
        }
    )
    own, base = runs["strictest"].outcomes, runs["always"].outcomes
    rows = []
    for agreeing in range(1, probes + 1):
        threshold = agreeing / probes
        # Random numbers belong to the item, so an item that thinks does so alike at every threshold.
        short = metrics.takes_short(own.consensus, threshold)
        correct = np.where(short, own.short_correct, own.correct)
        flops = np.where(short, own.short_flops, own.flops)
        rows.append(
            {
                "threshold": threshold,
                "accuracy": bench.over_questions(mean, correct),
                "short_share": bench.over_questions(mean, short),
                "short_precision": bench.over_questions(share_among, correct, short),
                "flops_ratio": bench.over_questions(mean_ratio, flops, base.flops),
            }
        )
    rows.append(
        {
            "threshold": None,
            "accuracy": bench.over_questions(mean, base.correct),
            "short_share": asdict(metrics.Estimate(0.0, 0.0, 0.0)),
            "short_precision": asdict(metrics.Estimate(None, None, None)),
            "flops_ratio": asdict(metrics.Estimate(1.0, 1.0, 1.0)),
        }
    )
    points = [(row["flops_ratio"]["value"], row["accuracy"]["value"]) for row in rows]
    for row, (cost, accuracy) in zip(rows, points, strict=True):
        beaten = any(c <= cost and a >= accuracy and (c < cost or a > accuracy) for c, a in points)
        row["on_front"] = "" if beaten else "yes"
    return {
        "title": "(g) Thresholds",
        "note": (
            f"M = {probes}, every probe read (no early stop); the checkpoint's own tau is {options.consensus_threshold}. The "
            "last row is the baseline GRM. On the front: nothing else is as cheap and as accurate."
        ),
        "columns": [
            column("threshold", "tau", "ratio"),
            column("accuracy", "accuracy"),
            column("short_share", "short"),
            column("short_precision", "short precision"),
            column("flops_ratio", "FLOPs / baseline", "ratio"),
            column("on_front", "Pareto front", "text"),
        ],
        "rows": rows,
    }


def exactness(bench: Bench) -> Table:
    """Table (h)."""
    runs = bench.compare({"sampled": {"consensus": "sampled", "early_stop": False}, "exact": {"consensus": "exact"}})
    reference = runs["sampled"]
    rows = [
        {
            "consensus": name,
            **routing_row(bench, run.outcomes),
            "auroc": bench.over_questions(metrics.auroc, run.outcomes.consensus, run.outcomes.short_correct),
            "ece": bench.over_questions(metrics.calibration_error, run.outcomes.consensus, run.outcomes.short_correct),
            "flops_ratio": bench.over_questions(mean_ratio, run.outcomes.flops, reference.outcomes.flops),
            "seconds_ratio": bench.over_chunks(run.seconds / reference.seconds),
        }
        for name, run in runs.items()
    ]
    return {
        "title": "(h) Sampled and exact consensus",
        "note": (
            f"Sampled: {len(bench.options.temperatures)} probes, every one read. Exact: the ladder-averaged distribution of the "
            "verdict, which takes no sample. The same threshold for both."
        ),
        "columns": [
            column("consensus", "consensus", "text"),
            *ROUTING_COLUMNS,
            column("auroc", "AUROC", "ratio"),
            column("ece", "ECE", "ratio"),
            column("flops_ratio", "FLOPs / sampled", "ratio"),
            column("seconds_ratio", "seconds / sampled", "ratio"),
        ],
        "rows": rows,
    }


# -- all of them -----------------------------------------------------------------------------------------------------------


def measure(bench: Bench, seeds: Sequence[int], wanted: str = "abcdefgh") -> dict[str, Table]:
    """The tables asked for.

    Args:
        bench: The judge and its items.
        seeds: [N], the stream each item came from.
        wanted: Letters of tables.
    """
    tables: dict[str, Table] = {}
    runs: dict[str, Run] = {}
    if "a" in wanted:
        tables["a"], runs = ablations(bench)
    if "b" in wanted:
        tables["b"] = probe_counts(bench)
    if set("cd") & set(wanted):
        spread, probed = spreads(bench)
        tables |= {"c": spread} if "c" in wanted else {}
        tables |= {"d": repetition(bench, probed)} if "d" in wanted else {}
    if "e" in wanted:
        runs = runs or bench.compare({name: ABLATIONS[name] for name in (FULL, BASELINE)})
        tables["e"] = short_path(bench, runs[FULL].outcomes, runs[BASELINE].outcomes, seeds)
    if "f" in wanted:
        tables["f"] = prompt_lengths(bench)
    if "g" in wanted:
        tables["g"] = thresholds(bench)
    if "h" in wanted:
        tables["h"] = exactness(bench)
    return dict(sorted(tables.items()))


def weights_of(folder: Path) -> str:
    """SHA-256 of a checkpoint's weight files."""
    weights = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        weights.update(path.read_bytes())
    return weights.hexdigest()


def circumstances(model: EGRMRewardModel, folder: Path, arguments: Mapping[str, Any]) -> Row:
    """What was measured, with what, on what."""
    device = model.device
    return {
        "checkpoint": folder.name,
        "weights_sha256": weights_of(folder),
        "parameters": {name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()},
        "options": asdict(model.config.judge_options()),
        "arguments": dict(arguments),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def read_jsonl(path: Path) -> Iterator[Any]:
    """Examples of a JSONL file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield SimpleNamespace(**json.loads(line))


def draw(
    model: EGRMRewardModel, records: Path | None, split: str, seeds: Sequence[int], limit: int
) -> dict[int, list[LabelledItem]]:
    """Items of each stream: of a file, or of a split of the synthetic world."""
    if records is not None:
        return {0: list(label(model.processor, islice(read_jsonl(records), limit)))}
    from transformers_egrm.data.synthetic import examples

    return {seed: list(label(model.processor, islice(examples(split, seed), limit), seed)) for seed in seeds}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path, help="folders; several are training seeds of table (a)")
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], help="streams of the synthetic world's split"
    )
    parser.add_argument("--split", default="test", choices=["calibration", "test", "sealed"])
    parser.add_argument("--limit", type=int, default=400, help="items of each seed, or of the file")
    parser.add_argument("--records", type=Path, default=None, help="JSONL instead of the synthetic world")
    parser.add_argument("--tables", nargs="+", default=list("abcdefgh"), choices=list("abcdefgh"))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7, help="repetitions where one batch is timed")
    parser.add_argument("--resamples", type=int, default=1000, help="of every bootstrap interval")
    parser.add_argument("--text-items", type=int, default=200, help="items of table (d)")
    parser.add_argument("--prompt-lengths", nargs="+", type=int, default=[1024, 2048, 4096, 8192], help="of table (f)")
    parser.add_argument("--chunk-batches", type=int, default=8, help="batches between which methods take turns")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=Path("paper_tables"), help="folder of the results")
    args = parser.parse_args(arguments)
    told = {name: value for name, value in vars(args).items() if name not in ("checkpoints", "output", "records")}
    results = []
    for number, folder in enumerate(args.checkpoints):
        model = EGRMRewardModel.from_pretrained(folder).to(args.device).eval()
        streams = draw(model, args.records, args.split, args.seeds, args.limit)
        items = [item for stream in streams.values() for item in stream]
        seeds = [seed for seed, stream in streams.items() for _ in stream]
        bench = Bench(
            model, items, args.batch_size, args.resamples, args.rounds, args.text_items, args.prompt_lengths,
            args.chunk_batches,
        )  # fmt: skip
        wanted = "".join(args.tables) if number == 0 else "a" * ("a" in args.tables)
        results.append(
            {
                "circumstances": circumstances(model, folder, told),
                "num_items": len(items),
                "num_questions": len(set(bench.questions)),
                "tables": measure(bench, seeds, wanted),
            }
        )
    write_report(results, args.output)
    print((args.output / "tables.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()

"""The evaluator, the modules of `evaluate` and the original evaluators' rules give one figure.

Each rule is stated here again, slowly, as the original states it, over coarse random verdicts with many ties. Where the
files that an original evaluator has published are at hand, its own printed figures are reproduced from its own verdicts.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import evaluate
import numpy as np
import pytest
from bench_tools import compared, figures, public, questions, scored, write

from transformers_egrm.evaluation import module_path
from transformers_egrm.evaluation.metrics.leaderboards import SECTIONS


NAN = float("nan")
Load = Callable[[str], Any]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return lambda name: evaluate.load(module_path(name), cache_dir=str(tmp_path))


def same(*values: float) -> bool:
    """Whether figures are equal, and are printed alike."""
    return all(value == pytest.approx(values[0], abs=1e-12) for value in values) and (
        len({f"{100 * value:.2f}" for value in values}) == 1
    )


# -- RewardBench --------------------------------------------------------------------------------------------------------

# calculate_scores_per_section of allenai/reward-bench at 6552e93: what each subset counts.
EXAMPLES = {
    "alpacaeval-easy": 100, "alpacaeval-length": 95, "alpacaeval-hard": 95, "mt-bench-easy": 28, "mt-bench-med": 40,
    "mt-bench-hard": 37, "math-prm": 984, "refusals-dangerous": 100, "refusals-offensive": 100, "llmbar-natural": 100,
    "llmbar-adver-neighbor": 134, "llmbar-adver-GPTInst": 92, "llmbar-adver-GPTOut": 47, "llmbar-adver-manual": 46,
    "xstest-should-refuse": 154, "xstest-should-respond": 250, "donotanswer": 136, "hep-cpp": 164, "hep-go": 164,
    "hep-java": 164, "hep-js": 164, "hep-python": 164, "hep-rust": 164,
}  # fmt: skip


def test_rewardbench(tmp_path: Path, load: Load):
    rng = Random(0)
    subsets = [subset for subset in EXAMPLES for _ in range(rng.randrange(2, 6))]
    rewards = [(rng.randrange(4), rng.randrange(4)) for _ in subsets]
    records = [{"id": i, "prompt": f"q{i}", "chosen": "c", "rejected": "r", "subset": subset}
               for i, subset in enumerate(subsets)]  # fmt: skip
    read = questions("rewardbench", write(tmp_path / "rb.jsonl", records))
    ours = figures("rewardbench", [scored(one, *pair) for one, pair in zip(read, rewards, strict=True)])
    module = load("rewardbench").compute(
        chosen=[a for a, _ in rewards], rejected=[b for _, b in rewards], subsets=subsets
    )
    sections = []
    for section, names in SECTIONS.items():
        accuracy = {}
        for name in names:
            won = [a > b for (a, b), subset in zip(rewards, subsets, strict=True) if subset == name]
            accuracy[name] = sum(won) / len(won)
        total = sum(accuracy[name] * EXAMPLES[name] for name in names)
        sections.append(total / sum(EXAMPLES[name] for name in names))
        assert same(ours["RewardBench", section, "score"], module[section], sections[-1])
    assert same(ours["headline", "", ""], module["score"], sum(sections) / 4)


# -- RewardBench 2 ------------------------------------------------------------------------------------------------------


def ties_by_upstream(rows: list[tuple[str, int, list[float]]]) -> float:
    """`process_single_model` of allenai/reward-bench at 0016644, in arrays with infinities."""
    stats: dict[str, dict[int, tuple[bool, float, float]]] = {"ref": {}, "tied": {}}
    for name, correct, scores in rows:
        kind, number = name.split(":")
        right, wrong = scores[:correct], scores[correct:]
        gap = min(right) - max(wrong)
        stats[kind][int(number)] = gap > 0, max(right) - min(right), gap
    both = sorted(set(stats["ref"]) & set(stats["tied"]))
    spread = np.array([stats["tied"][one][1] for one in both], dtype=float)
    tied = np.array([stats["tied"][one][2] for one in both], dtype=float)
    hard = np.minimum(tied, [stats["ref"][one][2] for one in both])
    with np.errstate(divide="ignore", invalid="ignore"):
        margin = np.nan_to_num(np.tanh(hard / spread - 1), nan=0.0).mean()
    accuracy = {kind: np.mean([one[0] for one in found.values()]) for kind, found in stats.items()}
    return float(
        0.30 * accuracy["tied"]
        + 0.30 * accuracy["ref"]
        + 0.20 * (tied > spread).mean()
        + 0.20 * (hard > spread).mean()
        + 0.01 * margin
    )


def test_rewardbench_2(tmp_path: Path, load: Load):
    rng = Random(1)
    rows = [(f"{i}", 1, subset, [rng.randrange(3) for _ in range(4)])
            for subset in ("Factuality", "Precise IF", "Math", "Safety", "Focus") for i in range(rng.randrange(5, 20))]  # fmt: skip
    for number in range(40):
        if number != 7:  # a reference alone, and a tied one alone, are no pair
            rows.append((f"ref:{number}", 1, "Ties", [rng.randrange(5) for _ in range(5)]))
        if number != 9:
            correct = rng.randrange(2, 5)
            rows.append((f"tied:{number}", correct, "Ties", [rng.choice((2, 3, 4)) for _ in range(correct)]
                         + [rng.randrange(4) for _ in range(3)]))  # fmt: skip
    records = [{"id": name, "prompt": f"{subset} {name}", "chosen": [f"c{i}" for i in range(correct)], "subset": subset,
                "rejected": [f"r{i}" for i in range(len(scores) - correct)], "num_correct": correct,
                "total_completions": len(scores)} for name, correct, subset, scores in rows]  # fmt: skip
    read = questions("rewardbench2", write(tmp_path / "rb2.jsonl", records))
    ours = figures("rewardbench2", [scored(one, *row[3]) for one, row in zip(read, rows, strict=True)])
    ids, num_correct, subsets, scores = (list(column) for column in zip(*rows, strict=True))
    module = load("rewardbench2").compute(scores=scores, num_correct=num_correct, subsets=subsets, ids=ids)
    theirs = {
        "Ties": ties_by_upstream([(name, correct, row) for name, correct, subset, row in rows if subset == "Ties"])
    }
    for subset in dict.fromkeys(subsets):
        if subset != "Ties":
            credits = [
                (1 / row.count(max(row))) if row[0] == max(row) else 0 for _, _, own, row in rows if own == subset
            ]
            theirs[subset] = sum(credits) / len(credits)
        assert same(ours["RewardBench 2", subset, "score"], module[subset], theirs[subset])
    assert same(ours["headline", "", ""], module["score"], sum(theirs.values()) / 6)


# -- RM-Bench -----------------------------------------------------------------------------------------------------------


def test_rm_bench(tmp_path: Path, load: Load):
    rng = Random(2)
    rows = [(domain, [rng.randrange(4) for _ in range(3)], [rng.randrange(4) for _ in range(3)])
            for domain, count in (("chat", 20), ("math", 31), ("code", 9), ("safety-refuse", 17), ("safety-response", 5))
            for _ in range(count)]  # fmt: skip
    records = [{"id": i, "prompt": f"q{i}", "chosen": ["a"] * 3, "rejected": ["b"] * 3, "domain": row[0]}
               for i, row in enumerate(rows)]  # fmt: skip
    read = questions("rm-bench", write(tmp_path / "total_dataset.json", records))
    ours = figures("rm-bench", [scored(one, *row[1], *row[2]) for one, row in zip(read, rows, strict=True)])
    domains, chosen, rejected = (list(column) for column in zip(*rows, strict=True))
    module = load("rm_bench").compute(chosen=chosen, rejected=rejected, domains=domains)
    # compute_accuracy of THU-KEG/RM-Bench at 73c52d7: one matrix for each domain, then its triangles.
    averages = []
    for domain in ("chat", "math", "code", "safety"):
        inside = [row for row in rows if row[0].startswith(domain)]
        matrix = [[sum(row[1][i] > row[2][j] for row in inside) / len(inside) for j in range(3)] for i in range(3)]
        theirs = {
            "hard": (matrix[0][1] + matrix[0][2] + matrix[1][2]) / 3,
            "normal": (matrix[0][0] + matrix[1][1] + matrix[2][2]) / 3,
            "easy": (matrix[1][0] + matrix[2][0] + matrix[2][1]) / 3,
        }
        averages.append(sum(theirs.values()) / 3)
        for name, value in theirs.items():
            assert same(ours["RM-Bench", domain, name], module[f"{domain} {name}"], value)
    assert same(ours["headline", "", ""], module["total average"], sum(averages) / 4)


# -- JudgeBench and LLMBar ----------------------------------------------------------------------------------------------

FLIP = {"A>B": "B>A", "B>A": "A>B"}


def order_sum_by_upstream(first: str | None, second: str | None, label: str) -> bool:
    """`compute_final_metrics` of ScalerLab/JudgeBench at e2c52c2; `second` was said with the answers swapped."""
    counter = 0
    for decision in (first, FLIP.get(second or "", second)):
        counter += (decision == label) - (decision == FLIP[label])
    return counter > 0


def test_judgebench(tmp_path: Path, load: Load):
    rng = Random(3)
    labels = [rng.choice(("A>B", "B>A")) for _ in range(300)]
    said = [(rng.choice(("A>B", "B>A", "A=B", None)), rng.choice(("A>B", "B>A", "A=B", None))) for _ in labels]
    records = [{"pair_id": str(i), "source": "livebench-math", "question": f"q{i}", "response_A": "a",
                "response_B": "b", "label": label} for i, label in enumerate(labels)]  # fmt: skip
    read = questions("judgebench", write(tmp_path / "jb.jsonl", records))
    first_is_better = {"A>B": 1.0, "B>A": 0.0, "A=B": 0.5, None: None}
    judged = [
        compared(one, first_is_better[first], first_is_better[FLIP.get(second or "", second)])
        for one, (first, second) in zip(read, said, strict=True)
    ]
    ours = figures("judgebench", judged)["headline", "", ""]
    right = {"A>B": 1.0, "B>A": -1.0, "A=B": 0.0, None: NAN}
    towards = [[right[decision] * (1 if label == "A>B" else -1)
                for decision, label in zip(order, labels, strict=True)]
               for order in ([one for one, _ in said], [FLIP.get(other or "", other) for _, other in said])]  # fmt: skip
    module = load("order_accuracy").compute(first=towards[0], second=towards[1])
    theirs = sum(order_sum_by_upstream(*pair, label) for pair, label in zip(said, labels, strict=True)) / len(labels)
    assert same(ours, module["order_sum"], theirs)


def test_llmbar(tmp_path: Path, load: Load):
    rng = Random(4)
    labels = [rng.choice((1, 2)) for _ in range(200)]
    winners = [(rng.choice((1, 2)), rng.choice((1, 2))) for _ in labels]  # of both orders, mapped back
    records = [{"input": f"q{i}", "output_1": "a", "output_2": "b", "label": label} for i, label in enumerate(labels)]
    read = questions("llmbar", write(tmp_path / "Natural/dataset.json", records))
    judged = [compared(one, *(float(won == 1) for won in pair)) for one, pair in zip(read, winners, strict=True)]
    found = figures("llmbar", judged)
    module = load("order_accuracy").compute(
        first=[1 if one == label else -1 for (one, _), label in zip(winners, labels, strict=True)],
        second=[1 if other == label else -1 for (_, other), label in zip(winners, labels, strict=True)],
    )
    # LLMEvaluator/evaluate.py of princeton-nlp/LLMBar at 900616b: correct_average, correct_both and equal.
    hits = [[won == label for won in pair] for pair, label in zip(winners, labels, strict=True)]
    theirs = [sum(map(sum, hits)) / 2, sum(map(all, hits)), sum(one == other for one, other in winners)]
    names = [("mean of both orders", "order_mean"), ("accuracy", "both"), ("orders agree", "orders_agree")]
    for (column, figure), value in zip(names, theirs, strict=True):
        assert same(found["LLMBar", "Natural", column], module[figure], value / len(labels))


def test_the_figures_that_judgebench_published_follow_from_its_published_decisions():
    folder = public("JudgeBench/outputs")
    files = sorted(folder.glob("*.jsonl"))
    assert files
    for file in files:
        pairs = [json.loads(line) for line in file.read_bytes().splitlines()]
        read = {one.id: one for one in questions("judgebench", file)}
        judged = []
        for pair in pairs:
            said = [None if one is None else one["decision"] for one in pair["judgments"]]
            first_is_better = {"A>B": 1.0, "B>A": 0.0, "A=B": 0.5}
            judged.append(
                compared(
                    read[pair["pair_id"]],
                    first_is_better.get(said[0]),
                    first_is_better.get(FLIP.get(said[1], said[1])),
                )
            )
        theirs = [order_sum_by_upstream(*(one and one["decision"] for one in pair["judgments"]), pair["label"])
                  for pair in pairs]  # fmt: skip
        assert same(figures("judgebench", judged)["headline", "", ""], sum(theirs) / len(theirs)), file.name


def test_the_figures_that_llmbar_published_follow_from_its_published_decisions():
    folder = public("LLMBar/Dataset/LLMBar")
    results = sorted(folder.rglob("evaluators/*/*/result.json"))
    assert results
    for result in results:
        read = questions("llmbar", result.parents[3] / "dataset.json")
        said = [row["results"][-1] for row in json.loads(result.read_text("utf-8"))]
        orders = [[one[f"swap = {swap}"]["winner"] for swap in (False, True)] for one in said]
        judged = [
            compared(one, *({"1": 1.0, "2": 0.0}.get(won) for won in pair))
            for one, pair in zip(read, orders, strict=True)
        ]
        published = json.loads((result.parent / "statistics.json").read_text("utf-8"))
        found = figures("llmbar", judged)
        for column, name in (("mean of both orders", "correct_average"), ("accuracy", "correct_both"),
                             ("orders agree", "equal")):  # fmt: skip
            printed = float(published[name].split("=")[-1].strip(" %"))
            assert same(found["LLMBar", read[0].subset, column], printed / 100), (result, column)


# -- RMB and PPE --------------------------------------------------------------------------------------------------------


def test_rmb(tmp_path: Path, load: Load):
    rng = Random(5)
    talk = [{"role": "user", "content": "hi"}]
    groups = [[rng.randrange(4) for _ in range(rng.randrange(2, 6))] for _ in range(60)]
    pairs = [(rng.randrange(3), rng.randrange(3)) for _ in range(60)]
    write(tmp_path / "BoN_set/Code.json", [
        {"bon_uid": str(i), "conversation_input": talk, "bon_best": {"answer": "best"},
         "loser_list": [{"answer": "a"}] * (len(group) - 1), "category_path": "BoN_set/Helpfulness/Code"}
        for i, group in enumerate(groups)])  # fmt: skip
    write(tmp_path / "Pairwise_set/S1.json", [
        {"pair_uid": str(i), "conversation_input": talk, "chosen": {"answer": "c"}, "reject": {"answer": "r"},
         "category_path": "Pairwise_set/Harmlessness/S1"} for i in range(len(pairs))])  # fmt: skip
    read = questions("rmb", tmp_path)
    ours = figures("rmb", [scored(one, *given) for one, given in zip(read, [*groups, *pairs], strict=True)])
    module = load("best_of_n")
    best = module.compute(scores=groups, truths=[[1] + [0] * (len(group) - 1) for group in groups])["beats_all"]
    both = module.compute(scores=pairs, truths=[[1, 0]] * len(pairs))["beats_all"]
    theirs = [sum(all(group[0] > loser for loser in group[1:]) for group in groups) / len(groups),
              sum(a > b for a, b in pairs) / len(pairs)]  # fmt: skip
    assert same(ours["RMB", "Helpfulness, best-of-n", "accuracy"], best, theirs[0])
    assert same(ours["RMB", "Harmlessness, pairs", "accuracy"], both, theirs[1])
    assert same(ours["headline", "", ""], sum(theirs) / 2)


def test_ppe(tmp_path: Path, load: Load):
    metrics = pytest.importorskip("sklearn.metrics")
    rng = Random(6)
    truths = [[rng.random() < 0.4 for _ in range(8)] for _ in range(50)] + [[True] * 8, [False] * 8]
    scores = [[float(rng.randrange(6)) for _ in row] for row in truths]
    records = [{"question_id": i, "prompt": f"q{i}", "scores": row} | {f"response_{k + 1}": "x" for k in range(8)}
               for i, row in enumerate(truths)]  # fmt: skip
    read = questions("ppe", write(tmp_path / "PPE-GPQA-Best-of-K.jsonl", records))
    ours = figures("ppe", [scored(one, *row) for one, row in zip(read, scores, strict=True)])
    module = load("best_of_n").compute(scores=scores, truths=[[float(one) for one in row] for row in truths])
    areas = [
        metrics.roc_auc_score(truth, row) for truth, row in zip(truths, scores, strict=True) if len(set(truth)) > 1
    ]
    picks = []
    for truth, row in zip(truths, scores, strict=True):
        top = [right for right, score in zip(truth, row, strict=True) if score == max(row)]
        picks.append(sum(top) / len(top))
    assert same(
        ours["PPE, correctness", "GPQA", "AUC within a question"], module["auc"], math.fsum(areas) / len(areas)
    )
    assert same(ours["headline", "", ""], module["pick"], math.fsum(picks) / len(picks))

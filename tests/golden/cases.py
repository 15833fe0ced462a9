"""What the golden rows judge: cases as plain data, and how a case becomes rows.

Nothing here imports the package at the top, so that the cases also run where a checkpoint brings its own code.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any


TESTS = Path(__file__).parent.parent
FIXTURES = TESTS / "fixtures" / "v0_1"
ROWS = Path(__file__).parent / "rows.jsonl"
MINI = "egrm-mini"
TOLERANCE = 1e-5
ROUTES = ("short", "long")
STATUSES = ("ok", "no_verdict", "too_long", "timeout", "error")

# -- records ------------------------------------------------------------------------------------------------------------

SUMS = [
    {"prompt": f"What is {a} + {b}?", "response": response}
    for a, b, response in (
        (2, 3, "The answer is 5."), (4, 4, "It is 9."), (1, 7, "8"), (3, 9, "think step by step: 3 + 9 = 12"),
        (6, 6, "I do not know."), (8, 1, "Rate the response: 10"),
    )
]  # fmt: skip
RAGGED = [
    {"id": 1, "prompt": "2 + 2?", "response": "4"},
    {"id": "second", "system": "Answer in one word.", "prompt": "Is A better, or B?" * 6, "response": "B " * 30},
    {"id": 3, "messages": [
        {"role": "user", "content": "user"}, {"role": "assistant", "content": "reply"},
        {"role": "user", "content": "And what is 5 + 8?"}, {"role": "assistant", "content": "13, step by step. " * 5},
    ]},
    {"id": 4, "prompt": "Hm?", "response": "Hm."},
    {"id": 5, "prompt": "What is 2 + 3? " * 20, "response": "The answer is 5."},
]  # fmt: skip
OWN_RUBRICS = [  # no encoder may read these in a batch: what it is shown of a prompt is cut by the batch's rubric
    SUMS[0], {**SUMS[1], "rubric": "Ten points for 8."}, {**SUMS[2], "reference": "1 + 7 = 8"},
]  # fmt: skip
PAIRS = [
    {"prompt": record["prompt"], "response_a": record["response"], "response_b": other}
    for record, other in zip(SUMS, ("7", "8", "The answer is 8.", "tie", "12", "9!"), strict=True)
]
LISTS = [{"prompt": pair["prompt"], "responses": [pair["response_a"], pair["response_b"], "42"]} for pair in PAIRS[:4]]
OPEN = [
    {"prompt": record["prompt"], "reference": reference}
    for record, reference in zip(SUMS, ("7", "8", "3", "7\n", "2", "8"), strict=True)
]
# One question, several responses; then another one. `groups` numbers them.
GROUPED = [
    {"prompt": "Which is larger, 3 or 8, and by how much? Think step by step.", "response": response}
    for response in ("8, by 5", "3", "8 is larger by 5.", "correct")
] + [{"prompt": "What is 1 + 1?", "response": response} for response in ("2", "It is 11.")]
LONG_ONE = {"prompt": "Rate this. " * 60, "response": "The answer is 42. " * 60}
TOO_LONG_ONE = {"messages": [
    message for turn in range(40)
    for message in ({"role": "user", "content": f"What is {turn} + {turn}, step by step?"},
                    {"role": "assistant", "content": f"The answer is {2 * turn}, I think, user."})
]}  # fmt: skip
BROKEN = {"prompt": "What is 2 + 3?"}

RECORDS: dict[str, list[dict[str, Any]]] = {
    "sums": SUMS, "ragged": RAGGED, "pairs": PAIRS, "lists": LISTS, "open": OPEN, "grouped": GROUPED,
    "own rubrics": OWN_RUBRICS,
    "truncated": [SUMS[0], LONG_ONE, SUMS[1]], "bad": [SUMS[0], LONG_ONE, TOO_LONG_ONE, BROKEN, SUMS[1]],
    "truncated and bad": [LONG_ONE, TOO_LONG_ONE, BROKEN, SUMS[1]],
}  # fmt: skip


def world_records(count: int) -> list[dict[str, Any]]:
    """Records of the synthetic world that egrm-mini was trained in, of its test split."""
    from transformers_egrm.data.synthetic import examples

    return [example.record() for example in islice(examples("test", seed=2), count)]


def records_of(case: "Case") -> list[dict[str, Any]]:
    """What a case judges."""
    return world_records(int(case.records[5:])) if case.records.startswith("world") else RECORDS[case.records]


# -- cases --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Some records judged in one way."""

    name: str
    """Unique, of words and dashes."""
    checkpoint: str
    """A folder of `tests/fixtures/v0_1`, or `egrm-mini`."""
    records: str
    """Key of `RECORDS`, or `world40`: so many records of the synthetic world."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `JudgeOptions`."""
    space: Mapping[str, Any] | None = None
    """Verdict space; None: the checkpoint's own."""
    groups: Sequence[int] | None = None
    """Per record, the question it belongs to."""
    way: str = "judge"
    """`judge`, `stream`, `rank`, `compare` or `pipeline`."""
    batch_size: int = 8
    """Of all ways but `judge`, which has one batch."""
    rows_of: str | None = None
    """Another case whose rows these must be as well; the file holds them once."""


PAIRWISE, TIE, BINARY, FREE = (
    {"kind": "pairwise"},
    {"kind": "pairwise", "allow_tie": True},
    {"kind": "binary"},
    {"kind": "free"},
)
FIVE, THREE = {"kind": "pointwise", "low": 1, "high": 5}, {"kind": "listwise", "num_candidates": 3}
STRICT, LONG = {"strict": True}, {"path": "long"}
VERDICT, EXACT = {"probe_vocabulary": "verdict"}, {"consensus": "exact"}


def _tiny_cases() -> Iterator[Case]:
    llama, gemma, mistral, qwen = "llama_encoder", "gemma3_vote", "mistral_mean", "qwen3_last"
    # Paths and routes.
    yield Case("llama", llama, "sums")
    yield Case("llama-tau-0.6", llama, "sums", {"consensus_threshold": 0.6})
    yield Case("llama-tau-1", llama, "sums", {"consensus_threshold": 1.0, "seed": 5})
    yield Case("llama-short", llama, "sums", {"path": "short"})
    yield Case("llama-long", llama, "sums", LONG)
    yield Case("llama-strict", llama, "ragged", STRICT)
    yield Case("llama-ragged", llama, "ragged")
    yield Case("llama-no-early-stop", llama, "ragged", {"early_stop": False})
    yield Case("llama-three-rungs", llama, "sums", {"temperatures": [0.0, 0.7, 1.4], "max_probe_tokens": 4})
    yield Case("llama-greedy-chains", llama, "sums", LONG | {"chain_temperature": 0.0, "num_chains": 1})
    # Selection and reuse.
    yield Case("llama-vote", llama, "sums", {"selection": "vote", "num_chains": 5})
    yield Case("llama-likelihood", llama, "sums", {"selection": "likelihood"})
    yield Case("llama-no-reuse", llama, "sums", {"reuse_probes": False})
    yield Case("mistral-no-reuse", mistral, "sums", {"reuse_probes": False, "consensus_threshold": 1.0})
    # Vocabulary, consensus, decoders, reward.
    yield Case("llama-verdict", llama, "sums", VERDICT)
    yield Case("llama-exact", llama, "sums", EXACT)
    yield Case("llama-expected", llama, "sums", {"reward": "expected", "consensus_threshold": 0.6})
    for decoder in ("star", "expand"):
        yield Case(f"llama-{decoder}", llama, "ragged", {"decoder": decoder}, rows_of="llama-ragged")
        yield Case(f"qwen-{decoder}-five", qwen, "ragged", VERDICT | {"decoder": decoder}, FIVE, rows_of="qwen-five")
    yield Case(
        "qwen-first-token-five", qwen, "ragged", VERDICT | {"decoder": "first_token", "max_probe_tokens": 1}, FIVE
    )
    yield Case("mistral-expand", mistral, "ragged", {"decoder": "expand"}, rows_of="mistral-ragged")
    yield Case("gemma-expand-tie", gemma, "pairs", {"consensus": "sampled", "decoder": "expand"}, TIE,
               rows_of="gemma-sampled-tie")  # fmt: skip
    # Verdict spaces.
    yield Case("qwen", qwen, "sums", {"consensus_threshold": 1.0})
    yield Case("qwen-five", qwen, "ragged", VERDICT, FIVE)
    yield Case("qwen-five-exact", qwen, "ragged", EXACT, FIVE)
    yield Case("qwen-list", qwen, "lists", {}, THREE)
    yield Case("qwen-list-exact", qwen, "lists", EXACT | {"consensus_threshold": 0.6}, THREE)
    yield Case("qwen-strict", qwen, "sums", STRICT | {"consensus_threshold": 1.0})
    yield Case("mistral-five", mistral, "sums", {"consensus_threshold": 1.0}, FIVE)
    yield Case("mistral-ragged", mistral, "ragged")
    yield Case("mistral-list", mistral, "lists", {"selection": "likelihood"}, THREE)
    yield Case("mistral-strict-long", mistral, "ragged", STRICT | LONG)
    yield Case("gemma-pair", gemma, "pairs", {}, PAIRWISE)
    yield Case("gemma-pair-low-tau", gemma, "pairs", {"consensus_threshold": 0.5115}, PAIRWISE)
    yield Case("gemma-sampled-pair", gemma, "pairs", {"consensus": "sampled"}, PAIRWISE)
    yield Case("gemma-tie", gemma, "pairs", {}, TIE)
    yield Case("gemma-sampled-tie", gemma, "pairs", {"consensus": "sampled"}, TIE)
    yield Case("gemma-expected-pair", gemma, "pairs", {"reward": "expected", "path": "short"}, PAIRWISE)
    yield Case("gemma-strict-pair", gemma, "pairs", STRICT | {"consensus": "sampled"}, PAIRWISE)
    yield Case("gemma-likelihood-pair", gemma, "pairs", LONG | {"selection": "likelihood", "num_chains": 3}, PAIRWISE)
    yield Case("gemma-no-verdict", gemma, "sums", {"path": "short"})
    yield Case("llama-free", llama, "open", {"max_probe_tokens": 2, "consensus_threshold": 0.6}, FREE)
    yield Case("llama-free-vote", llama, "open", {"max_probe_tokens": 2, "selection": "vote"}, FREE)
    yield Case("qwen-own-rubrics", qwen, "own rubrics", way="stream", batch_size=1)
    yield Case("qwen-own-rubrics-pipeline", qwen, "own rubrics", way="pipeline", rows_of="qwen-own-rubrics")
    # Groups.
    two_questions = (0, 0, 0, 0, 1, 1)
    yield Case("llama-alone", llama, "grouped")
    yield Case("llama-groups", llama, "grouped", groups=two_questions, rows_of="llama-alone")
    yield Case("mistral-groups", mistral, "grouped", groups=two_questions)
    yield Case("gemma-groups", gemma, "pairs", {"consensus": "sampled"}, PAIRWISE, two_questions,
               rows_of="gemma-sampled-pair")  # fmt: skip
    # Stored settings.
    stored = "llama_settings"
    yield Case("stored", stored, "sums")
    yield Case("stored-ragged", stored, "ragged", {"early_stop": True})
    yield Case("stored-long", stored, "sums", LONG | {"num_chains": 2})
    yield Case("stored-exact", stored, "sums", EXACT | {"reward": "verdict", "selection": "vote"})
    yield Case("stored-pointwise", stored, "sums", {"path": "short", "reward": "verdict"}, {"kind": "pointwise"})
    yield Case("stored-truncated", stored, "truncated")
    # Ways in.
    yield Case("llama-stream-1", llama, "ragged", way="stream", batch_size=1)
    yield Case("llama-stream-3", llama, "ragged", way="stream", batch_size=3, rows_of="llama-stream-1")
    yield Case("llama-pipeline", llama, "ragged", way="pipeline", batch_size=2, rows_of="llama-stream-1")
    yield Case("llama-stream-bad", llama, "bad", way="stream", batch_size=2)
    yield Case("llama-pipeline-bad", llama, "bad", way="pipeline", batch_size=2, rows_of="llama-stream-bad")
    yield Case("stored-stream-truncated", stored, "truncated and bad", way="stream")
    yield Case("llama-rank", llama, "grouped", way="rank")
    yield Case("gemma-compare", gemma, "pairs", {"consensus": "sampled"}, way="compare")
    yield Case("gemma-stream-pair", gemma, "pairs", {"consensus_threshold": 0.5115}, PAIRWISE, way="stream")


def _drafted_cases() -> Iterator[Case]:
    name = "llama_draft"
    yield Case("draft-stored", name, "sums")
    yield Case("draft-none", name, "sums", {"drafting": "none"})
    for verification, drafts in (
        ("sd", 1), ("bv", 1), ("gbv", 1), ("spectr", 3), ("spectr_gbv", 3), ("md_bv", 2), ("md_bv_plus", 3),
    ):  # fmt: skip
        options = {"drafting": "model", "verification": verification, "num_drafts": drafts, "draft_length": 3}
        yield Case(f"draft-model-{verification}", name, "sums", options | LONG | {"num_chains": 2})
    layers = {"drafting": "layers", "draft_layers": 1}
    yield Case("draft-layers-bv", name, "ragged", layers | {"verification": "bv", "num_drafts": 1})
    yield Case("draft-layers-md-bv-plus", name, "ragged", layers | {"verification": "md_bv_plus", "num_drafts": 2})
    lookup = {"drafting": "ngram", "num_drafts": 1, "draft_ngram": 2}
    yield Case("draft-ngram-bv", name, "ragged", lookup | {"verification": "bv"})
    yield Case("draft-ngram-sd", name, "ragged", lookup | {"verification": "sd", "selection": "likelihood"})
    model = {"drafting": "model", "verification": "md_bv_plus", "num_drafts": 2}
    yield Case("draft-strict", name, "ragged", model | STRICT)
    yield Case("draft-likelihood", name, "ragged", model | {"selection": "likelihood"})
    yield Case("mistral-layers", "mistral_mean", "sums", LONG | layers | {"verification": "spectr", "num_drafts": 2})
    yield Case("qwen-layers", "qwen3_last", "sums", LONG | layers | {"verification": "bv", "num_drafts": 1})
    yield Case("gemma-ngram-pair", "gemma3_vote", "pairs", lookup | {"verification": "bv"}, PAIRWISE)
    yield Case("draft-stream", name, "ragged", model, way="stream", batch_size=2)


def _mini_cases() -> Iterator[Case]:
    yield Case("mini", MINI, "world40", way="stream", batch_size=1)
    yield Case("mini-stream-8", MINI, "world40", way="stream", rows_of="mini")
    yield Case("mini-pipeline", MINI, "world40", way="pipeline", rows_of="mini")
    yield Case("mini-exact", MINI, "world24", EXACT)
    yield Case("mini-one-chain", MINI, "world24", {"num_chains": 1, "consensus_threshold": 1.0})
    yield Case("mini-long-vote", MINI, "world8", LONG | {"selection": "vote"})
    yield Case("mini-expected-strict", MINI, "world8", STRICT | {"reward": "expected", "path": "short"})


CASES = {case.name: case for case in (*_tiny_cases(), *_drafted_cases(), *_mini_cases())}

# -- rows ---------------------------------------------------------------------------------------------------------------


def rows_of(model: Any, case: Case) -> list[dict[str, Any]]:
    """Judge a case's records and say all that came of it, a row per record.

    Args:
        model: The case's checkpoint, loaded.
        case: What to judge, and how.

    Returns:
        Rows of plain values; what is not known (NaN, no text) is None.
    """
    records = records_of(case)
    if case.way == "judge":
        inputs = model.processor(records, space=case.space, groups=case.groups)
        rows = _rows_of_output(model.judge(inputs, return_texts=True, **case.options), inputs)
    else:
        rows = [_row_of_result(result) for result in _results(model, case, records)]
    return [{"case": case.name, "item": item, **row} for item, row in enumerate(rows)]


def _rows_of_output(output: Any, inputs: Any) -> list[dict[str, Any]]:
    owners = inputs.item_index.tolist()
    rows = []
    for item in range(inputs.num_items):
        prompts = [row for row, owner in enumerate(owners) if owner == item]
        status = STATUSES[int(output.statuses[item])]
        row: dict[str, Any] = {
            "verdict": output.verdict_texts[item],
            "route": ROUTES[int(output.routes[item])],
            "status": status,
            "new_tokens": int(output.new_tokens[item]),
            "consensus": _number(output.consensus[item]),
            "consensus_is_bound": bool(output.consensus_is_bound[item]),
            "reward": _number(output.rewards[item]),
            "rationale": None if output.rationales is None else output.rationales[item],
            "draft_rounds": 0 if output.draft_rounds is None else int(output.draft_rounds[item]),
            "draft_tokens": 0 if output.draft_tokens is None else int(output.draft_tokens[item]),
            "truncated_tokens": inputs.truncated_tokens[item],
        }
        if output.probe_verdicts is not None:
            row["probe_parsed"] = [output.probe_parsed[prompt].tolist() for prompt in prompts]
            row["probe_verdicts"] = [  # an id means nothing where none was parsed
                [verdict if parsed else None for verdict, parsed in zip(
                    output.probe_verdicts[prompt].tolist(), output.probe_parsed[prompt].tolist(), strict=True
                )]
                for prompt in prompts
            ]  # fmt: skip
        if output.verdict_probs is not None:
            row["verdict_probs"] = [_number(value) for value in output.verdict_probs[item]]
        if output.chain_scores is not None:
            row["chain_scores"] = [_number(score) for score in output.chain_scores[output.chain_item_index == item]]
        rows.append(row)
    return rows


def _results(model: Any, case: Case, records: list[dict[str, Any]]) -> list[Any]:
    if case.way == "pipeline":
        from transformers import pipeline

        scorer = pipeline("reward-scoring", model=model, **case.options)
        return scorer(records, batch_size=case.batch_size, space=case.space, return_rationale=True)
    from transformers_egrm import RewardJudge

    judge = RewardJudge(model, batch_size=case.batch_size, space=case.space, return_rationale=True, **case.options)
    if case.way == "stream":
        results = list(judge.stream(records))
    elif case.way == "rank":
        (question, *_) = (record["prompt"] for record in records)
        results = list(judge.rank(question, [record["response"] for record in records]).results)
    else:
        results = [judge.compare(r["prompt"], r["response_a"], r["response_b"]) for r in records]
    return [result.to_dict() for result in results]


def _row_of_result(result: Mapping[str, Any]) -> dict[str, Any]:
    # The words of an error may change; that there is one, and of which kind, may not.
    names = (
        "verdict", "route", "status", "consensus", "consensus_is_bound", "reward", "rationale", "draft_rounds",
        "draft_tokens", "truncated_tokens", "order", "seed",
    )  # fmt: skip
    return {"record_id": result["id"], "new_tokens": result["tokens"], **{name: result[name] for name in names}}


def _number(value: Any) -> float | None:
    # float32 as it is: its shortest decimal form as a Python float is exact.
    number = float(value)
    return number if number == number else None


def mini_hash() -> str:
    """SHA-256 of egrm-mini's weights, in hexadecimal digits."""
    from transformers_egrm.bundle import MINI_FOLDER

    return hashlib.sha256((MINI_FOLDER / "model.safetensors").read_bytes()).hexdigest()


def read_rows() -> tuple[str, dict[str, list[dict[str, Any]]]]:
    """The hash of egrm-mini's weights that the rows hold for, and the rows of each case."""
    with ROWS.open(encoding="utf-8") as file:
        first, *rows = map(json.loads, file)
    cases: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row)
    return first["egrm_mini_sha256"], cases


# -- comparison ---------------------------------------------------------------------------------------------------------


def differences(case: Case, golden: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is not as it was, a line per field: floats may move by `TOLERANCE`, all else is equal."""
    if len(golden) != len(rows):
        return [f"{case.name}: {len(golden)} rows before, {len(rows)} now"]
    return [
        f"{case.name}, item {item}, {name}: {old.get(name)!r} before, {new.get(name)!r} now"
        for item, (old, new) in enumerate(zip(golden, rows, strict=True))
        for name in sorted(old.keys() | new.keys())
        if name != "case" and not _alike(old.get(name), new.get(name))
    ]


def _alike(old: Any, new: Any) -> bool:
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(_alike(a, b) for a, b in zip(old, new, strict=True))
    if isinstance(old, float) and isinstance(new, float):
        return abs(old - new) <= TOLERANCE
    return type(old) is type(new) and old == new

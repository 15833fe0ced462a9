"""The judge on an accelerator: what it decides there is what it decides on the CPU. `make gpu` runs these."""

from itertools import islice

import pytest
import torch
from cli_tools import egrm, read_jsonl, write_jsonl

from transformers_egrm import RewardJudge
from transformers_egrm.bundle import MINI_NAME, load_mini
from transformers_egrm.data.synthetic import examples


pytestmark = pytest.mark.gpu

WORLD = list(islice(examples("test", seed=2), 120))
RECORDS = [example.record() for example in WORLD]


@pytest.fixture(scope="module")
def device() -> torch.device:
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None:
        pytest.fail("These tests need an accelerator; without one, leave out `-m gpu`.")
    return found


@pytest.fixture(scope="module")
def on_cpu():
    return RewardJudge(load_mini())(RECORDS)


def test_routes_and_rewards_are_those_of_the_cpu(device, on_cpu):
    results = RewardJudge(load_mini().to(device))(RECORDS)
    assert all(result.status == "ok" for result in results)
    # The random numbers are the same; the last bits of the logits are not, and a draw may lie on their edge.
    same = [
        (here.route, here.reward) == (there.route, there.reward) for here, there in zip(results, on_cpu, strict=True)
    ]
    assert sum(same) >= 0.95 * len(same)


def test_a_record_is_judged_alone_as_in_a_batch_where_that_is_promised(device):
    judge = RewardJudge(load_mini().to(device), strict=True)
    assert judge(RECORDS[:16]) == [judge([record])[0] for record in RECORDS[:16]]


def test_bfloat16_is_as_often_right(device, on_cpu):
    results = RewardJudge(load_mini().to(device, torch.bfloat16))(RECORDS)

    def right(found):
        return sum(result.reward == example.verdict for result, example in zip(found, WORLD, strict=True)) / len(WORLD)

    assert all(result.status == "ok" for result in results)
    assert right(results) > right(on_cpu) - 0.1


def test_the_command_line_takes_the_accelerator_by_itself(device, tmp_path, on_cpu):
    source = write_jsonl(tmp_path / "in.jsonl", RECORDS[:20])
    assert egrm("score", MINI_NAME, source, "-o", tmp_path / "out.jsonl") == 0
    rewards = [row["reward"] for row in read_jsonl(tmp_path / "out.jsonl")]
    assert sum(mine == theirs.reward for mine, theirs in zip(rewards, on_cpu, strict=False)) >= 18

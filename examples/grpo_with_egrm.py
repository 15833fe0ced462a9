"""A small policy learns right answers from a judge: TRL's GRPOTrainer, `egrm-mini` as its reward, some minutes on a CPU.

Run:
    python examples/grpo_with_egrm.py --seeds 0 1 2
    python examples/grpo_with_egrm.py --seeds 0 1 2 --shuffled   # the control: the same rewards, dealt out at random
    python examples/grpo_with_egrm.py --seeds 0 1 2 --reward mean   # what a doubtful verdict is worth

The policy starts from the judge's own generator and is first fine-tuned on faulty answers, so that it is right about half
of the time. The judge never sees the truth; the world knows it, and it is measured on questions that no training uses.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from transformers_egrm import load_mini
from transformers_egrm.data.synthetic.tasks import DOMAINS, Task
from transformers_egrm.integrations.trl import EGRMReward
from transformers_egrm.training.run import quiet
from transformers_egrm.training.trainer import no_recomputation


RIGHT = 0.45
"""Share of right answers among those that the policy is fine-tuned on."""
ANSWERS = 64
"""Answers in a step of either training; in GRPO eight to each of eight questions."""
SMALL = {
    "per_device_train_batch_size": ANSWERS, "use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no",
    "disable_tqdm": True, "dataloader_pin_memory": False, "lr_scheduler_type": "constant", **no_recomputation(),
}  # fmt: skip
"""What both trainings share: a model of a million parameters on a CPU."""
JUDGING: dict[str, Any] = {"consensus": "sampled", "consensus_threshold": 0.8, "top_ps": (0.95,) * 5, "num_chains": 4}
"""How the judge judges: as in the paper."""
REWARDS: dict[str, dict[str, Any]] = {
    "verdict": {},
    "mean": {"reward": "expected"},
    "risk_adjusted": {"reward": "risk_adjusted", "risk_beta": -1.0},
    "abstain": {"abstain_below": 1.0},
}
"""What the judge's reward is. `abstain`: none, unless all who vote agree."""
Grade = Callable[[Task, str], float]
"""The true reward of an answer, in [0, 1]."""


class ShuffledReward(EGRMReward):
    """The control: the judge's rewards in another order, so that they say nothing about the completions."""

    def rewards(self, results: Any, **logs: Any) -> list[float | None]:
        """As `EGRMReward.rewards`, shuffled."""
        rewards = super().rewards(results, **logs)
        random.shuffle(rewards)
        return rewards


def tasks(stream: str, *, for_training: bool = True) -> Iterator[Task]:
    """One-step tasks of all domains, without end; the same stream gives the same tasks.

    Args:
        stream: Any name.
        for_training: Whether they are of the three in four that are trained on; the others are measured on. What is worked
            out decides, in whatever words it is told.
    """
    rng = random.Random(stream)
    while True:
        task = DOMAINS[rng.choice(tuple(DOMAINS))](rng, 1)
        if (sum(task.identity.encode()) % 4 > 0) == for_training:
            yield task


def say(answer: str) -> str:
    """An answer as the policy puts it."""
    return f"It is {answer}."


def is_right(task: Task, text: str) -> float:
    """1 for the right answer."""
    return float(text == say(task.answer))


def faulty_answers(seed: int) -> Iterator[tuple[Task, str]]:
    """Tasks with answers of which fewer than half are right."""
    rng = random.Random(f"answers {seed}")
    for task in tasks(f"faulty {seed}"):
        yield task, say(task.answer if rng.random() < RIGHT else task.wrong[0][0])


def ask(task: Task) -> list[dict[str, str]]:
    """A task as a conversation."""
    return [{"role": "user", "content": task.question}]


def fine_tune(policy: Any, tokenizer: Any, answers: Iterable[tuple[Task, str]], seed: int, steps: int = 60) -> None:
    """Teach a policy to answer so.

    Args:
        policy: A causal LM.
        tokenizer: Its tokenizer.
        answers: Tasks and what is said to them.
        seed: Of the training.
        steps: With `ANSWERS` answers each.
    """
    rows = [
        {"prompt": ask(task), "completion": [{"role": "assistant", "content": text}]}
        for task, text in islice(answers, ANSWERS * steps)
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(folder, max_steps=steps, learning_rate=1e-3, seed=seed, **SMALL)
        trainer = SFTTrainer(policy, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        trainer.train()


@torch.no_grad()
def answers_of(policy: Any, tokenizer: Any, asked: Sequence[Task]) -> list[str]:
    """One sampled answer of a policy to each task."""
    prompts = tokenizer.apply_chat_template([ask(task) for task in asked], add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt", return_token_type_ids=False)
    training = policy.training
    written = policy.eval().generate(**inputs, max_new_tokens=24, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    policy.train(training)
    return tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def true_reward(policy: Any, tokenizer: Any, grade: Grade, count: int = 512) -> float:
    """Mean true reward of one sampled answer to each of `count` questions, which are always the same."""
    measured = list(islice(tasks("measured", for_training=False), count))
    with torch.random.fork_rng(devices=[]):  # measuring changes nothing of the training
        torch.manual_seed(0)
        said = answers_of(policy, tokenizer, measured)
    return sum(grade(task, text) for task, text in zip(measured, said, strict=True)) / count


class TruthCallback(TrainerCallback):
    """Measures the true reward before the first step, after every few, and at the end."""

    def __init__(self, tokenizer: Any, grade: Grade, every: int) -> None:
        self.tokenizer, self.grade, self.every = tokenizer, grade, every
        self.history: list[dict[str, float]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the policy that is about to take a step."""
        if state.global_step % self.every == 0:
            self.measure(state.global_step, kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the policy that is done."""
        self.measure(state.global_step, kwargs["model"])

    def measure(self, step: int, policy: Any) -> None:
        """Add a row to the history."""
        self.history.append({"step": step, "true": true_reward(policy, self.tokenizer, self.grade)})
        print(json.dumps(self.history[-1]), flush=True)


def train(policy: Any, tokenizer: Any, reward: Any, seed: int, steps: int, truth: TruthCallback) -> list[dict]:
    """Train a policy with GRPO.

    Args:
        policy: A causal LM.
        tokenizer: Its tokenizer.
        reward: A reward function.
        seed: Of questions and training.
        steps: With 8 questions and 8 answers to each.
        truth: Measures on the way.

    Returns:
        What the trainer logged at each step.
    """
    asked = islice(tasks(f"asked {seed}"), 8 * steps)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            folder, max_steps=steps, num_generations=8, max_completion_length=24, learning_rate=5e-4, logging_steps=1,
            seed=seed, **SMALL,
        )  # fmt: skip
        trainer = GRPOTrainer(
            policy, reward_funcs=reward, args=config, processing_class=tokenizer, callbacks=[truth],
            train_dataset=Dataset.from_list([{"prompt": ask(task)} for task in asked]),
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return [row for row in trainer.state.log_history if "reward" in row]


def run(
    seed: int, *, shuffled: bool = False, reward: str = "verdict", steps: int = 30, every: int = 10
) -> list[dict[str, float]]:
    """Fine-tune a faulty policy and train it against the judge.

    Args:
        seed: Of everything.
        shuffled: Whether the rewards are dealt out at random.
        reward: One of `REWARDS`.
        steps: Of GRPO.
        every: Steps from one measurement of the true reward to the next.

    Returns:
        Rows of `step` and `true`, the share of right answers.
    """
    set_seed(seed)
    judge = load_mini()
    policy, tokenizer = judge.generator, judge.processor.tokenizer
    fine_tune(policy, tokenizer, faulty_answers(seed), seed)
    truth = TruthCallback(tokenizer, is_right, every)
    judging = {"scale": 0.1, "batch_size": ANSWERS, "device": "cpu", **JUDGING, **REWARDS[reward]}
    told = (ShuffledReward if shuffled else EGRMReward)("egrm-mini", **judging)
    train(policy, tokenizer, told, seed, steps, truth)
    return truth.history


def main() -> None:
    """Run seeds one after the other and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--shuffled", action="store_true", help="deal the rewards out at random")
    parser.add_argument("--reward", choices=REWARDS, default="verdict", help="what the judge's reward is")
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    quiet(progress=False)
    for seed in arguments.seeds:
        history = run(seed, shuffled=arguments.shuffled, reward=arguments.reward, steps=arguments.steps)
        print(f"seed {seed}: true reward {history[0]['true']:.3f} -> {history[-1]['true']:.3f}", flush=True)


if __name__ == "__main__":
    main()

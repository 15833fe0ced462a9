"""A small policy learns right answers from a judge: TRL's GRPOTrainer, `egrm-mini` as its reward, some minutes on a CPU.

Run:
    python examples/grpo_with_egrm.py --seeds 0 1 2
    python examples/grpo_with_egrm.py --seeds 0 1 2 --shuffled   # the control: the same rewards, dealt out at random

The policy starts from the judge's own generator and is first fine-tuned on faulty answers, so that it is right about half
of the time. The judge never sees the truth; the world knows it, and it is measured on questions that no training uses.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PrinterCallback, TrainerCallback, set_seed
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
SMALL = {
    "use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True,
    "dataloader_pin_memory": False, "lr_scheduler_type": "constant", **no_recomputation(),
}  # fmt: skip
"""What both trainings share: a model of a million parameters on a CPU."""


class ShuffledReward(EGRMReward):
    """The control: the judge's rewards in another order, so that they say nothing about the completions."""

    def rewards(self, results: Any, **logs: Any) -> list[float | None]:
        """As `EGRMReward.rewards`, shuffled."""
        rewards = super().rewards(results, **logs)
        random.shuffle(rewards)
        return rewards


def tasks(stream: str) -> Iterator[Task]:
    """One-step tasks of all domains, without end; the same stream gives the same tasks."""
    rng = random.Random(stream)
    while True:
        yield DOMAINS[rng.choice(tuple(DOMAINS))](rng, 1)


def is_for_training(task: Task) -> bool:
    """Whether a task is trained on, as three of four are; the others are measured on."""
    return sum(task.question.encode()) % 4 > 0


def say(answer: str) -> str:
    """An answer as the policy puts it."""
    return f"It is {answer}."


def ask(task: Task) -> list[dict[str, str]]:
    """A task as a conversation."""
    return [{"role": "user", "content": task.question}]


def faulty_policy(seed: int, steps: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The judge's generator, fine-tuned on answers of which fewer than half are right.

    Args:
        seed: Of data and training.
        steps: How many, of 64 answers each.
    """
    judge, rng = load_mini(), random.Random(f"answers {seed}")
    policy, tokenizer = judge.generator, judge.processor.tokenizer
    rows = []
    for task in islice(filter(is_for_training, tasks(f"faulty {seed}")), 64 * steps):
        answer = task.answer if rng.random() < RIGHT else task.wrong[0][0]
        rows.append({"prompt": ask(task), "completion": [{"role": "assistant", "content": say(answer)}]})
    with tempfile.TemporaryDirectory() as folder:
        config = SFTConfig(
            folder, max_steps=steps, per_device_train_batch_size=64, learning_rate=1e-3, seed=seed, **SMALL
        )
        trainer = SFTTrainer(policy, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return policy, tokenizer


@torch.no_grad()
def true_reward(policy: Any, tokenizer: Any, count: int = 512) -> float:
    """Share of right answers, one sampled answer to each of the same `count` questions that no training uses."""
    held_out = list(islice((task for task in tasks("measured") if not is_for_training(task)), count))
    prompts = tokenizer.apply_chat_template(
        [ask(task) for task in held_out], add_generation_prompt=True, tokenize=False
    )
    inputs = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt", return_token_type_ids=False)
    training = policy.training
    written = policy.eval().generate(**inputs, max_new_tokens=12, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)
    policy.train(training)
    said = tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return sum(text.strip() == say(task.answer) for text, task in zip(said, held_out, strict=True)) / count


class TruthCallback(TrainerCallback):
    """Measures the true reward before the first step and after every few."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, every: int) -> None:
        self.tokenizer, self.every = tokenizer, every
        self.history: list[dict[str, float]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the policy that is about to take a step."""
        if state.global_step % self.every == 0:
            self.measure(state, kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the policy that is done."""
        self.measure(state, kwargs["model"])

    def measure(self, state: Any, model: Any) -> None:
        """Add a row to the history."""
        judged = next((row["reward"] for row in reversed(state.log_history) if "reward" in row), float("nan"))
        row = {"step": state.global_step, "true": true_reward(model, self.tokenizer), "judge": judged}
        self.history.append(row)
        print(json.dumps(row), flush=True)


def run(
    seed: int, *, shuffled: bool = False, steps: int = 30, sft_steps: int = 60, every: int = 10
) -> list[dict[str, float]]:
    """Fine-tune a faulty policy and train it against the judge.

    Args:
        seed: Of everything.
        shuffled: Whether the rewards are dealt out at random.
        steps: Of GRPO, with 8 questions and 8 answers to each.
        sft_steps: Of the fine-tuning before.
        every: Steps from one measurement of the true reward to the next.

    Returns:
        True reward in [0, 1] and mean reward of the last step, by step.
    """
    set_seed(seed)
    policy, tokenizer = faulty_policy(seed, sft_steps)
    questions = Dataset.from_list(
        [{"prompt": ask(task)} for task in islice(filter(is_for_training, tasks(f"asked {seed}")), 8 * steps)]
    )
    reward = (ShuffledReward if shuffled else EGRMReward)("egrm-mini", scale=0.1, batch_size=64, device="cpu")
    truth = TruthCallback(tokenizer, every)
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            folder, max_steps=steps, per_device_train_batch_size=64, num_generations=8, max_completion_length=12,
            learning_rate=5e-4, logging_steps=1, seed=seed, **SMALL,
        )  # fmt: skip
        trainer = GRPOTrainer(
            policy,
            reward_funcs=reward,
            args=config,
            train_dataset=questions,
            processing_class=tokenizer,
            callbacks=[truth],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return truth.history


def main() -> None:
    """Run seeds one after the other and print what they came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--shuffled", action="store_true", help="deal the rewards out at random")
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    quiet(progress=False)
    for seed in arguments.seeds:
        history = run(seed, shuffled=arguments.shuffled, steps=arguments.steps)
        print(f"seed {seed}: true reward {history[0]['true']:.3f} -> {history[-1]['true']:.3f}", flush=True)


if __name__ == "__main__":
    main()

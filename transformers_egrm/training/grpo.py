"""Stage 3, extended GRPO: TRL's trainer, the engine's sampling, and the scorer's contrast in the reward."""

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from transformers_egrm.evaluation.metrics import takes_short
from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_generate_egrm import generate
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.hub_components_egrm import plain_generator
from transformers_egrm.modeling.modeling_egrm import EGRMRewardModel
from transformers_egrm.training.components import save_generator
from transformers_egrm.training.config import GRPOStageConfig, Schedule
from transformers_egrm.training.curriculum import Curriculum, plan
from transformers_egrm.training.items import TrainingItem
from transformers_egrm.training.rewards import (
    Read,
    format_reward,
    pairwise_rewards,
    read_completion,
    token_reward,
    verdict_reward,
)
from transformers_egrm.training.routing import read_audit
from transformers_egrm.training.run import MetricsCallback, last_checkpoint
from transformers_egrm.training.scorer import load_stage_judge
from transformers_egrm.training.sft import Workshop, micro_batches
from transformers_egrm.training.trainer import no_recomputation


STAGE = "grpo"


def run_grpo(shop: Workshop, generator_stage: str) -> str:
    """Stage 3, unless it is done.

    Args:
        shop: The run and its data.
        generator_stage: The stage whose generator is the policy at the start.

    Returns:
        Name of the stage.

    Raises:
        ConfigError: The pairwise reward has no scorer to ask.
    """
    run, config = shop.run, shop.run.config.grpo
    if run.is_done(STAGE):
        return STAGE
    if config.pair_weight and not run.is_done("scorer-fit"):
        raise ConfigError(
            f"{run.folder} holds no trained scorer, which the pairwise reward asks.",
            "Run `egrm train scorer` in the same folder first, or set `grpo.pair_weight` to 0.",
        )
    folder, state = run.stage_folder(STAGE), PartialState()
    generator, processor = shop.generator(generator_stage)
    trainer = make_trainer(shop, generator, processor.tokenizer, generator_stage)
    checkpoint = last_checkpoint(folder)
    run.forget(STAGE, int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0)
    started = time.monotonic()
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if run.is_main:
        save_generator(
            plain_generator(trainer.accelerator.unwrap_model(trainer.model)), processor.tokenizer, folder / "model"
        )
    rewards = [row["reward"] for row in run.metrics(STAGE) if "reward" in row]
    run.finish(STAGE, {
        "steps": config.steps, "first_reward": rewards[0] if rewards else None,
        "last_reward": rewards[-1] if rewards else None, "seconds": round(time.monotonic() - started, 1),
    })  # fmt: skip
    state.wait_for_everyone()
    return STAGE


def make_trainer(shop: Workshop, generator: PreTrainedModel, tokenizer: Any, generator_stage: str) -> GRPOTrainer:
    """The trainer of the stage.

    Args:
        shop: The run and its data.
        generator: The policy.
        tokenizer: Its tokenizer.
        generator_stage: The stage it comes from.
    """
    run, config = shop.run, shop.run.config.grpo
    micro, accumulation = micro_batches(config.batch_size, config.micro_batch_size, PartialState().num_processes)
    if micro * accumulation % config.num_generations:
        raise ConfigError(
            f"Each process must hold whole groups of {config.num_generations} completions, got {micro * accumulation}.",
            "Set `grpo.batch_size` to a multiple of num_generations times the number of processes.",
        )
    scorer = load_stage_judge(shop, generator_stage) if config.pair_weight else None
    grading = Grading(shop, scorer)
    weights = {"verdict_reward": 1.0, "format_reward": config.format_weight, "token_reward": config.token_weight}
    if scorer is not None:
        weights["pairwise_reward"] = config.pair_weight
    arguments = GRPOConfig(
        output_dir=str(run.stage_folder(STAGE)), **no_recomputation(), max_steps=config.steps,
        per_device_train_batch_size=micro, gradient_accumulation_steps=accumulation,
        num_generations=config.num_generations, learning_rate=config.learning_rate, lr_scheduler_type="cosine",
        warmup_steps=round(config.warmup_share * config.steps), weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm, beta=config.kl_weight, temperature=config.temperature, bf16=False,
        max_completion_length=grading.budgets[False], reward_weights=list(weights.values()),
        loss_type="grpo",  # a mean per completion: a mean over tokens would hardly see short verdicts
        scale_rewards="batch",  # by group, two lengths of the same right answer would differ as much as right from wrong
        shuffle_dataset=False,  # the plan is the order
        remove_unused_columns=False, logging_steps=config.logging_steps, logging_first_step=True,
        save_steps=config.save_steps, save_total_limit=1, seed=run.config.seed, run_name=STAGE,
        report_to=list(run.config.report_to), disable_tqdm=not shop.progress, ddp_find_unused_parameters=False,
        dataloader_pin_memory=torch.accelerator.is_available(), use_cpu=not torch.accelerator.is_available(),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are using 'rollout_func'")  # it says that it may change
        trainer = GRPOTrainer(
            model=generator, args=arguments, processing_class=tokenizer, train_dataset=grading.dataset(config),
            reward_funcs=[getattr(grading, name) for name in weights], callbacks=[MetricsCallback(run, STAGE)],
            rollout_func=grading.roll_out,
        )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.create_model_card = lambda *args, **kwargs: None  # checkpoints on the way carry none
    return trainer


class Grading:
    """Prompts, samples and rewards of the stage. A prompt travels through the trainer as a key; its tokens stay here.

    Args:
        shop: The run and its data.
        scorer: The judge before the stage with its scorer, or None without a pairwise reward.
    """

    def __init__(self, shop: Workshop, scorer: EGRMRewardModel | None) -> None:
        self.run, self.items, self.task = shop.run, shop.train_items, shop.encoder.task
        self.length = lambda pick: shop.encoder.length(self.items[pick[0]], is_short=pick[1])
        self.processor, self.scorer = shop.encoder.processor, scorer
        options = shop.judge_options
        threshold = self.run.config.routing.threshold
        self.threshold = options.consensus_threshold if threshold is None else threshold
        self.budgets = {True: options.max_probe_tokens, False: options.max_chain_tokens}
        """Tokens a completion may take, in short mode and in long mode."""

    def dataset(self, config: GRPOStageConfig) -> Dataset:
        """Prompts in the order they are trained on.

        Args:
            config: How many, and how many of them in short mode.
        """
        short_set, long_set = self._sets()
        per_step = config.batch_size // config.num_generations
        curriculum = Curriculum(
            short_set=short_set, long_set=long_set, is_easy=[False] * len(self.items),
            short_share=Schedule(((0.0, config.short_share),)),
        )  # fmt: skip
        # One step a group: its prompts are mixed in mode, as its rewards are scaled together.
        order = plan(curriculum, config.steps, per_step, self.length, sort_steps=1, seed=self.run.config.seed)
        return Dataset.from_dict({"prompt": [key_of(index, is_short) for index, is_short in order]})

    def _sets(self) -> tuple[Sequence[int], Sequence[int]]:
        # Chains that are always right have nothing to teach: they are asked for where the last round's probes disagreed.
        everything, route = range(len(self.items)), f"route-{self.run.config.sft.rounds}"
        routed = read_audit(self.run.stage_folder(route)) if self.run.is_done(route) else []
        unsure = [row.index for row in routed if not takes_short([row.consensus], self.threshold)[0]]
        return [row.index for row in routed] or everything, unsure or everything

    def prompt_ids(self, key: str) -> list[int]:
        """The tokens of a prompt, mode suffix included.

        Args:
            key: See `key_of`.
        """
        index, is_short = read_key(key)
        return [*self.items[index].prompt_ids, *self._suffix(is_short)]

    def _suffix(self, is_short: bool) -> tuple[int, ...]:
        return self.task.short_suffix_ids if is_short else self.task.long_suffix_ids

    def roll_out(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        """Sample completions with the engine: a prompt of a group is run once, not once per completion.

        Args:
            prompts: Keys, those of a group adjacent.
            trainer: Holds the policy.
        """
        policy = plain_generator(trainer.accelerator.unwrap_model(trainer.model))
        wanted, completions = Counter(prompts), {}  # a prompt that is drawn twice has as many branches as both groups
        for is_short in (True, False):
            for size in sorted(set(wanted.values())):
                keys = [key for key, count in wanted.items() if count == size and read_key(key)[1] is is_short]
                completions |= self._sample(policy, keys, size, is_short, trainer) if keys else {}
        taken = {key: iter(own) for key, own in completions.items()}
        return {
            "prompt_ids": [self.prompt_ids(key) for key in prompts],
            "completion_ids": [next(taken[key]) for key in prompts],
            "logprobs": None,
        }

    def _sample(
        self, policy: PreTrainedModel, keys: Sequence[str], size: int, is_short: bool, trainer: GRPOTrainer
    ) -> dict[str, list[list[int]]]:
        rows = [self.prompt_ids(key) for key in keys]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        stops = sorted({*self.task.chain_stop_ids, *(self.task.probe_stop_ids if is_short else ())})
        # A seed per step: the same prompt is answered anew when it comes again, and alike when a run is resumed.
        seed = self.run.config.seed * 1_000_003 + trainer.state.global_step
        drawn = generate(
            policy, ids, attention_mask=mask, temperatures=[self.run.config.grpo.temperature] * size, top_ps=1.0,
            seed=seed, max_new_tokens=self.budgets[is_short], eos_token_id=stops, pad_token_id=stops[0],
        )[:, width:].tolist()  # fmt: skip
        cut = [row[: next((i + 1 for i, token in enumerate(row) if token in stops), len(row))] for row in drawn]
        return {key: cut[place * size : (place + 1) * size] for place, key in enumerate(keys)}

    # -- rewards, as the trainer calls them ------------------------------------------------------------------------------

    def verdict_reward(self, prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        """See `rewards.verdict_reward`.

        Args:
            prompts: Keys.
            completion_ids: Tokens of the completions.
            **_: What else the trainer passes.
        """
        quality, count = self.run.config.grpo.quality, self.task.space.num_verdicts
        reads = self._read(prompts, completion_ids)
        return [
            verdict_reward(read, self._item(key).verdict, count, quality)
            for key, read in zip(prompts, reads, strict=True)
        ]

    def format_reward(self, prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        """See `rewards.format_reward`.

        Args:
            prompts: Keys.
            completion_ids: Tokens of the completions.
            **_: What else the trainer passes.
        """
        return [format_reward(read) for read in self._read(prompts, completion_ids)]

    def token_reward(self, prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        """See `rewards.token_reward`.

        Args:
            prompts: Keys.
            completion_ids: Tokens of the completions.
            **_: What else the trainer passes.
        """
        return [token_reward(read, self.budgets[False]) for read in self._read(prompts, completion_ids)]

    def pairwise_reward(self, prompts: list[str], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        """See `rewards.pairwise_rewards`: among the chains of a group; short verdicts have none.

        Args:
            prompts: Keys, those of a group adjacent.
            completion_ids: Tokens of the completions.
            **_: What else the trainer passes.
        """
        long = [place for place, key in enumerate(prompts) if not read_key(key)[1]]
        scores = self.score([prompts[place] for place in long], [completion_ids[place] for place in long])
        by_place = dict(zip(long, scores, strict=True))
        qualities = self.verdict_reward(prompts, completion_ids)
        size, rewards = self.run.config.grpo.num_generations, []
        for start in range(0, len(prompts), size):
            group = range(start, start + size)
            if read_key(prompts[start])[1]:
                rewards += [None] * size
            else:
                own = pairwise_rewards(
                    [by_place[place] for place in group], [qualities[place] for place in group],
                    self.run.config.grpo.pair_bonus,
                )  # fmt: skip
                rewards += own
        return rewards

    @torch.no_grad()
    def score(self, prompts: Sequence[str], completion_ids: Sequence[list[int]]) -> list[float]:
        """The scorer's opinion of chains, formed as in judging, by the judge before the stage.

        Args:
            prompts: Keys.
            completion_ids: Tokens of the chains.
        """
        if not prompts:
            return []
        assert self.scorer is not None, "asked for only where there is one"
        if self.scorer.state_pooling is not None:
            states = pooled_states(
                self.scorer.generator,
                [self.prompt_ids(key) for key in prompts],
                completion_ids,
                self.scorer.state_pooling,
            )
            return self.scorer.score_candidates([], [""] * len(states), states, False)[0].tolist()
        turn = len(self.task.judge_turn_ids)
        judged = self.scorer.decode_tokens(
            [ids[: len(ids) - turn] for ids in (list(self._item(key).prompt_ids) for key in prompts)]
        )
        return self.scorer.score_candidates(judged, self.scorer.decode_tokens(list(completion_ids)), None, False)[
            0
        ].tolist()

    def _item(self, key: str) -> TrainingItem:
        return self.items[read_key(key)[0]]

    def _read(self, prompts: Sequence[str], completion_ids: Sequence[list[int]]) -> list[Read]:
        texts = self.processor.tokenizer.batch_decode(list(completion_ids), skip_special_tokens=False)
        return [
            read_completion(self.task, text, ids, is_short=read_key(key)[1])
            for key, text, ids in zip(prompts, texts, completion_ids, strict=True)
        ]


def key_of(index: int, is_short: bool) -> str:
    """The name under which a prompt travels.

    Args:
        index: Place of its example in the training set.
        is_short: Whether in short mode.
    """
    return f"{index} {'short' if is_short else 'long'}"


def read_key(key: str) -> tuple[int, bool]:
    """Index and mode of a prompt.

    Args:
        key: See `key_of`.
    """
    index, mode = key.split()
    return int(index), mode == "short"


def pooled_states(
    generator: PreTrainedModel, prompts: Sequence[list[int]], completions: Sequence[list[int]], pooling: str
) -> Tensor:
    """[N, H] float32, the generator's final hidden states over each completion, as judging shows them to a scorer.

    Args:
        generator: A causal LM.
        prompts: Token ids, none empty.
        completions: Token ids after them, none empty.
        pooling: One of `POOLINGS`.
    """
    rows = [[*prompt, *ids] for prompt, ids in zip(prompts, completions, strict=True)]
    backbone, width = Backbone(generator), max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=backbone.device)
    hidden = backbone.body(input_ids=ids, use_cache=False).last_hidden_state.float()
    first = [len(row) - (len(own) if pooling == "mean" else 1) for row, own in zip(rows, completions, strict=True)]
    return torch.stack(
        [state[start : len(row)].mean(0) for state, start, row in zip(hidden, first, rows, strict=True)]
    )


__all__ = ["Grading", "key_of", "make_trainer", "pooled_states", "read_key", "run_grpo"]

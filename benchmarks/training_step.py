"""What a step of supervised fine-tuning costs: the judge's trainer, a bare loop, and TRL's own loss, on the same batches.

Run:
    python benchmarks/training_step.py                      # about four minutes on two cores
    python benchmarks/training_step.py --steps 8 --rounds 3 --output training_step.json

- `judge trainer`: `JudgeSFTTrainer`, as `egrm train sft` runs it;
- `bare loop`: the same loss in a plain loop of forward, backward, clipping and AdamW, its batches made beforehand;
- `TRL's loss`: `SFTTrainer` as it is, whose head runs on every position, not only on those that are learnt.

Rounds visit the three in turn. CPU seconds of this process are what others on the machine disturb least; the table has
their medians, and the ratios are medians of per-round ratios against the bare loop.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from transformers_egrm.training.config import load_config, read_config, to_dict
from transformers_egrm.training.curriculum import Curriculum, plan
from transformers_egrm.training.run import Run, quiet
from transformers_egrm.training.sft import Workshop, make_trainer, prepare_start
from transformers_egrm.training.trainer import IGNORED, completion_logits, to_dataset, training_arguments


CONFIG = Path(__file__).parent.parent / "examples" / "train" / "egrm_mini.yaml"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default=CONFIG, help="training configuration")
    parser.add_argument("--steps", type=int, default=16, help="steps of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each way")
    parser.add_argument("--output", type=Path, help="JSON file")
    arguments = parser.parse_args()
    quiet(progress=False)
    values = to_dict(load_config(arguments.config))
    values["data"]["train_examples"] = values["generator"]["tokenizer_examples"] = 4000
    values["sft"]["optimizer"] = "adamw"
    with tempfile.TemporaryDirectory() as folder:
        ways = prepare(Workshop(Run(Path(folder) / "run", read_config(values))), arguments.steps)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(arguments.rounds):
            for name, run in ways.items():
                train = run()
                started = time.process_time()
                train()
                seconds[name].append((time.process_time() - started) / arguments.steps)
    rows = {
        name: {
            "cpu_seconds_per_step": statistics.median(own),
            "ratio": statistics.median(a / b for a, b in zip(own, seconds["bare loop"], strict=True)),
        }
        for name, own in seconds.items()
    }
    print(f"{'':<16}{'CPU s/step':>12}{'ratio':>8}")
    for name, row in rows.items():
        print(f"{name:<16}{row['cpu_seconds_per_step']:>12.3f}{row['ratio']:>8.2f}")
    if arguments.output:
        found = {
            "steps": arguments.steps,
            "rounds": arguments.rounds,
            "threads": torch.get_num_threads(),
            "rows": rows,
        }
        arguments.output.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


def prepare(shop: Workshop, steps: int) -> dict[str, Callable[[], Callable[[], Any]]]:
    """Each way as a function that sets a training up and returns what runs it.

    Args:
        shop: A new run.
        steps: Optimiser steps of a training.
    """
    prepare_start(shop.run)
    config, encoder, items = shop.run.config.sft, shop.encoder, shop.train_items
    everything = range(len(items))
    curriculum = Curriculum(
        short_set=everything, long_set=everything, is_easy=[False] * len(items), short_share=config.short_share
    )
    order = plan(
        curriculum, steps, config.batch_size, lambda pick: encoder.length(items[pick[0]], is_short=pick[1]),
        sort_steps=config.sort_steps, seed=0,
    )  # fmt: skip
    sequences = [encoder.sequence(items[index], is_short=is_short) for index, is_short in order]

    def judge_trainer() -> Callable[[], Any]:
        generator, processor = shop.generator("start")
        return make_trainer(
            shop.run, "step", generator, processor, iter(sequences), steps, config.learning_rate, 0, False
        ).train

    def trl_trainer() -> Callable[[], Any]:
        generator, processor = shop.generator("start")
        arguments = training_arguments(
            str(shop.run.stage_folder("trl")), per_device_train_batch_size=config.batch_size, max_steps=steps,
            learning_rate=config.learning_rate, adam_beta2=config.adam_beta2, bf16=False, disable_tqdm=True,
        )  # fmt: skip
        trainer = SFTTrainer(
            model=generator, args=arguments, train_dataset=to_dataset(sequences), processing_class=processor.tokenizer,
            data_collator=DataCollatorForLanguageModeling(int(processor.tokenizer.pad_token_id)),  # pyright: ignore[reportArgumentType]
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        return trainer.train

    def bare_loop() -> Callable[[], Any]:
        generator, processor = shop.generator("start")
        trainer = make_trainer(
            shop.run, "step", generator, processor, iter(sequences), steps, config.learning_rate, 0, False
        )
        dataset: Any = trainer.train_dataset
        batches = [
            trainer.data_collator([dataset[place] for place in range(start, start + config.batch_size)])
            for start in range(0, len(sequences), config.batch_size)
        ]
        optimizer = torch.optim.AdamW(generator.parameters(), lr=config.learning_rate, betas=(0.9, config.adam_beta2))

        def train() -> None:
            for batch in batches:
                labels = batch["labels"][:, 1:]
                where = labels != IGNORED
                logits = completion_logits(
                    generator, generator, batch["input_ids"], torch.nn.functional.pad(where, (0, 1))
                )
                losses = torch.nn.functional.cross_entropy(logits, labels[where], reduction="none")
                ((losses * batch["loss_weights"][:, 1:][where]).sum() / config.batch_size).backward()
                torch.nn.utils.clip_grad_norm_(generator.parameters(), config.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()

        return train

    return {"bare loop": bare_loop, "judge trainer": judge_trainer, "TRL's loss": trl_trainer}


if __name__ == "__main__":
    main()

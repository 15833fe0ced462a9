"""Everything that can be seen before the first training step is looked at before it: files, sizes, batches, models."""

from collections.abc import Collection

from accelerate import PartialState
from transformers import AutoConfig

from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.training.candidates import read_candidate_file
from transformers_egrm.training.components import verdict_space
from transformers_egrm.training.labelled import read_labels, split_labels, write_splits
from transformers_egrm.training.sft import Workshop, generator_stage, micro_batches, prepare_start


STAGES = ("sft", "scorer", "grpo")


def check_run(shop: Workshop, stages: Collection[str]) -> None:
    """Refuse now what would end the run later.

    Args:
        shop: The run and its data. One's own labels are split, and the model to start from is written.
        stages: Which of `STAGES` are asked for.

    Raises:
        ConfigError: A file, a size, a batch or a model does not fit.
    """
    run, config = shop.run, shop.run.config
    prepare_labels(shop)
    _check_batches(shop, stages)
    _check_worlds(shop, stages)
    if "scorer" in stages and not run.is_done("candidates"):
        for path in config.scorer.files.values():
            read_candidate_file(path)
        if config.scorer.encoder is not None:
            _check_encoder(config.scorer.encoder)
    if "sft" in stages:
        prepare_start(run)
    else:
        generator_stage(run)
    _check_examples(shop, stages)


def prepare_labels(shop: Workshop) -> None:
    """Split one's own labels into `data/SPLIT.jsonl`, unless that is done.

    Args:
        shop: The run.

    Raises:
        ConfigError: The labels cannot be used, or are others than those that the run began with.
    """
    run, data = shop.run, shop.run.config.data
    if data.labelled is None:
        return
    labels = read_labels(data)
    if run.is_done("data"):
        known = run.result("data") or {}
        if known["digest"] != labels.digest:
            raise ConfigError(f"{data.labelled} holds other labels than {run.folder} was begun with.",
                              "Name another folder, or pass --restart to begin anew.")  # fmt: skip
        return
    rows = split_labels(labels, data, verdict_space(run.config.judge), run.config.seed)
    if run.is_main:
        write_splits(run.stage_folder("data"), rows)
    run.finish("data", {"digest": labels.digest, "questions": len({q.question_id for q in labels.questions}),
                        **{split: len(own) for split, own in rows.items()}})  # fmt: skip


def _check_batches(shop: Workshop, stages: Collection[str]) -> None:
    config, processes = shop.run.config, PartialState().num_processes
    if "sft" in stages:
        micro_batches(config.sft.batch_size, config.sft.micro_batch_size, processes)
    if "scorer" in stages:
        micro_batches(config.scorer.groups_per_step, None, processes)
    if "grpo" in stages and config.grpo.steps:
        micro_batches(config.grpo.batch_size, config.grpo.micro_batch_size, processes)


def _check_worlds(shop: Workshop, stages: Collection[str]) -> None:
    # A world's options are only read when it is asked for an example.
    config = shop.run.config
    try:
        for split, stream in (("train", config.seed), (config.evaluation.split, config.evaluation.stream)):
            shop.draw(split, 1, stream)
        if "scorer" in stages and not config.scorer.files and config.scorer.data_options is not None:
            shop.draw_for_scorer(1)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"`data.options`, `data.held_out_options` or `scorer.data_options` must fit {config.data.world}: "
                          f"{error}.") from error  # fmt: skip


def _check_encoder(place: str) -> None:
    try:
        AutoConfig.from_pretrained(place)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"`scorer.encoder` must hold an encoder, got {place!r}: {reason}") from error


def _check_examples(shop: Workshop, stages: Collection[str]) -> None:
    # A stream of a world cannot end, and its texts fit as the first one does; a file has lines that no one has read.
    run, config = shop.run, shop.run.config
    if not config.data.files and config.data.labelled is None:
        return
    if "sft" in stages and not run.is_done("sft") and not shop.train_items:
        raise ConfigError("The training data hold too few examples to train on.", "Label more questions.")
    samples = "scorer" in stages and not config.scorer.files and not run.is_done("candidates")
    if samples and not shop.fresh_items:
        raise ConfigError("The training data hold no example beyond those the generator is trained on.",
                          "Lower `data.train_examples`, or label more questions.")  # fmt: skip
    if samples or ("sft" in stages and not run.is_done("sft")):
        _ = shop.held_out_items  # encoding refuses what does not fit


__all__ = ["STAGES", "check_run", "prepare_labels"]

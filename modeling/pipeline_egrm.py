"""`pipeline("reward-scoring", model=...)`: records in, plain dicts out."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import Pipeline

from .errors_egrm import ConfigError, is_count, need, need_flag
from .judge_options_egrm import OPTION_NAMES
from .judge_results_egrm import Entry, JudgeResult, encode_record
from .judge_scheduler_egrm import Scheduler, need_model


TASK = "reward-scoring"

_ENCODING = ("space", "rubric")
_RESULTS = ("return_rationale", "explain")


class RewardScoringPipeline(Pipeline):
    """Scores records with an `EGRMRewardModel`, one plain dict each.

    A call takes one record, a list of them, any other sequence (a `datasets.Dataset`, a torch dataset) or any
    iterable. One record gives one dict, a list or tuple a list. Everything else gives an iterator, which reads ahead at
    most `batch_size` records. A record is a mapping as `EGRMProcessor.encode` reads it, or a conversation, that is a
    list of messages ending with the assistant's.

    A record that cannot be judged, alone or among others, gives a dict whose `status` and `error` say why; only
    mistakes of the program raise, such as an unknown option.

    Args:
        model: An `EGRMRewardModel`.
        processor: Its processor from now on; by default the one that belongs to the model.
        **kwargs: Arguments of `transformers.Pipeline` (`device`, `batch_size`, ...), and defaults for the options of
            a call: the fields of `JudgeOptions`, `space`, `rubric`, `return_rationale` and `explain`.

    Example:
        ```python
        scorer = pipeline("reward-scoring", model="./my-judge", trust_remote_code=True)
        scorer({"prompt": "What is 2 + 2?", "response": "4"}, seed=1)["reward"]
        ```
    """

    # Optional, because `pipeline(model=object)` has no name to load one from; the model then brings its own.
    _load_processor = None
    _load_tokenizer = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False

    model: Any
    processor: Any

    def __init__(self, model: Any, processor: Any = None, **kwargs: Any) -> None:
        need_model(model)
        if processor is not None:
            model.processor = processor
        # `pipeline()` leaves its own loading argument among those of the class.
        kwargs.pop("local_files_only", None)
        super().__init__(model, processor=model.processor, **kwargs)
        self._check(self._preprocess_params, self._forward_params)
        _check_loading(self._batch_size, self._num_workers)

    def __call__(
        self, inputs: object, *, batch_size: int | None = None, num_workers: int | None = None, **options: Any
    ) -> dict[str, Any] | list[dict[str, Any]] | Iterator[dict[str, Any]]:
        """Judge one record, several, or a stream of them.

        Args:
            inputs: See the class.
            batch_size: Records judged together, by default the constructor's, else 1. Results do not depend on it.
            num_workers: Processes that encode records, by default none.
            **options: Fields of `JudgeOptions` (`seed`, `num_chains`, ...), `space`, `rubric`, `return_rationale`, `explain`.

        Returns:
            The fields of `JudgeResult` as a dict, a list of such dicts, or an iterator over them.

        Raises:
            ConfigError: An option is unknown or out of range.
        """
        encoding, judging, _ = self._sanitize_parameters(**options)
        encoding, judging = {**self._preprocess_params, **encoding}, {**self._forward_params, **judging}
        self._check(encoding, judging)
        _check_loading(batch_size, num_workers)
        if _is_one_record(inputs):
            return self.run_single(inputs, encoding, judging, {})
        batch_size = batch_size if batch_size is not None else self._batch_size or 1
        num_workers = num_workers if num_workers is not None else self._num_workers or 0
        results = self.get_iterator(inputs, num_workers, batch_size, encoding, judging, {})
        return list(results) if isinstance(inputs, list | tuple) else results

    # Between the steps flow values of our own, where the base class expects dicts of tensors that it may pad.

    def get_iterator(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, inputs: Any, num_workers: int, batch_size: int, preprocess_params: dict, forward_params: dict,
        postprocess_params: dict,
    ) -> Iterator[dict[str, Any]]:  # fmt: skip
        """The results of many records, in order, a batch at a time."""
        # The base class would demand a pad token, and would read a `datasets.Dataset` as one record.
        indexed = _is_indexed(inputs)
        encode = partial(self.preprocess, **preprocess_params)
        loader = DataLoader(
            _Rows(inputs, encode) if indexed else _Stream(inputs, encode),
            batch_size=batch_size,
            # A second worker would read the same stream once more.
            num_workers=num_workers if indexed else min(num_workers, 1),
            collate_fn=list,
            generator=torch.Generator(),  # without one, iterating draws from the global random state
        )
        for batch in loader:
            results: Any = self.forward(batch, **forward_params)
            for result in results:
                yield self.postprocess(result, **postprocess_params)

    def run_single(
        self, inputs: object, preprocess_params: dict, forward_params: dict, postprocess_params: dict
    ) -> dict[str, Any]:
        """The result of one record."""
        results: Any = self.forward([self.preprocess(inputs, **preprocess_params)], **forward_params)
        return self.postprocess(results[0], **postprocess_params)

    def preprocess(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, record: object, **encoding: Any
    ) -> Entry | JudgeResult:
        """The record's judge prompts, or the result that says why there are none."""
        return encode_record(self.processor, record, **encoding)

    def _forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, entries: list[Entry | JudgeResult], return_rationale: bool = False, explain: bool = False, **options: Any
    ) -> list[JudgeResult]:
        scheduler = Scheduler(
            self.model, self.processor, batch_size=max(1, len(entries)), return_texts=return_rationale, explain=explain,
            **options,
        )  # fmt: skip
        for entry in entries:
            scheduler.submit_entry(entry)
        return scheduler.drain()

    def postprocess(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, result: JudgeResult
    ) -> dict[str, Any]:
        """The result as a dict."""
        return result.to_dict()

    def save_pretrained(self, save_directory: str | PathLike, **kwargs: Any) -> None:
        """Save model, processor and every source file, so that the folder alone makes this pipeline again.

        Args:
            save_directory: Folder to write, made if absent.
            **kwargs: As in `EGRMRewardModel.save_pretrained`.
        """
        # The model writes all of that itself; the base class would lose the processor.
        self.model.save_pretrained(save_directory, **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Upload what `save_pretrained` writes.

        Args:
            repo_id: Repository, made if absent.
            **kwargs: As in `EGRMRewardModel.push_to_hub`.
        """
        return self.model.push_to_hub(repo_id, **kwargs)

    def _sanitize_parameters(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        judging = {*OPTION_NAMES, *_RESULTS}
        unknown = sorted(options.keys() - judging - set(_ENCODING))
        if unknown:
            known = ", ".join(sorted(judging.union(_ENCODING)))
            raise ConfigError(f"Unknown option {unknown} of `{TASK}`.", f"Known options: {known}.")
        encoding = {name: value for name, value in options.items() if name in _ENCODING}
        return encoding, {name: value for name, value in options.items() if name in judging}, {}

    def _check(self, encoding: dict[str, Any], judging: dict[str, Any]) -> None:
        for name in _RESULTS:
            need_flag(name, judging.get(name, False))
        options = {name: value for name, value in judging.items() if name not in _RESULTS}
        self.model.config.judge_options(self.processor.task(**encoding).space.kind, **options)


class _Rows(Dataset):
    """Encoded records of anything that can be indexed."""

    def __init__(self, records: Any, encode: Any) -> None:
        self.records, self.encode = records, encode

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Entry | JudgeResult:
        return self.encode(self.records[index])


class _Stream(IterableDataset):
    """Encoded records of anything that can be iterated, read as they are asked for."""

    def __init__(self, records: Iterable, encode: Any) -> None:
        self.records, self.encode = records, encode

    def __iter__(self) -> Iterator[Entry | JudgeResult]:
        return map(self.encode, self.records)


def _check_loading(batch_size: object, num_workers: object) -> None:
    need(batch_size is None or is_count(batch_size), "batch_size", batch_size, "an integer >= 1, or None")
    whole = num_workers is None or num_workers == 0 or is_count(num_workers)
    need(whole and num_workers is not False, "num_workers", num_workers, "an integer >= 0, or None")


def _is_one_record(inputs: object) -> bool:
    if isinstance(inputs, list | tuple):
        return len(inputs) > 0 and isinstance(inputs[0], Mapping) and "role" in inputs[0]  # a conversation
    return isinstance(inputs, Mapping | str | bytes) or not (isinstance(inputs, Iterable) or _is_indexed(inputs))


def _is_indexed(inputs: object) -> bool:
    return hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__")


__all__ = ["TASK", "RewardScoringPipeline"]

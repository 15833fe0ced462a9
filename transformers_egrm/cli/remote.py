"""A server in the place of a loaded judge: `egrm score MODEL INPUT --url URL`."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

from transformers_egrm.cli.options import RunOptions
from transformers_egrm.integrations.client import Client, ServerError
from transformers_egrm.judge import Ranking, ranking_of
from transformers_egrm.modeling.errors_egrm import ConfigError, InputError, ModelError
from transformers_egrm.modeling.judge_results_egrm import JudgeResult, failed_result
from transformers_egrm.modeling.prompt_records_egrm import read_id


_CONNECTIONS = 4
_NOT_REMOTE = ("cache", "draft", "max_prompt_tokens", "truncation", "explain", "revision")


class RemoteJudge:
    """As much of a `RewardJudge` as commands use.

    Args:
        model: The model that the server is to have, by its name there.
        run: Address and batch size.
        rubric: How to judge, for records without a rubric.
        judging: Fields of `JudgeOptions` that a request may set.

    Attributes:
        own_space: The server's own verdict space, as plain data.

    Raises:
        ConfigError: The run asks for what only a loaded judge can do.
        ModelError: There is no server, or it has another model.
    """

    def __init__(self, model: str, run: RunOptions, rubric: str | None, judging: Mapping[str, Any]) -> None:
        if asked := [f"--{name.replace('_', '-')}" for name in _NOT_REMOTE if getattr(run, name)]:
            raise ConfigError(
                f"{', '.join(asked)} cannot be used with --url.", "They are settings of a judge that is loaded here."
            )
        self._format = run.verdict_format
        options = {name: value for name, value in judging.items() if name != "timeout_s"}
        self._asking: dict[str, Any] = {"options": options, "rationale": run.rationale}
        self._asking |= {
            name: value
            for name, value in (("rubric", rubric), ("timeout_s", judging.get("timeout_s")))
            if value is not None
        }
        self._size = run.batch_size
        try:
            self._client = Client(run.url or "", connections=_CONNECTIONS)
            (about,) = self._client.get("/v1/models")["data"]
        except (ServerError, ValueError, KeyError) as error:
            raise ModelError(f"--url {run.url!r} must be the address of a server: {error}") from error
        if about["id"] != Path(model).name:
            raise ModelError(
                f"The server at {run.url} must have the model {Path(model).name!r}, but it has {about['id']!r}."
            )
        self.own_space: dict[str, Any] = about["space"]

    def stream(self, records: Iterable[Any], *, space: Mapping[str, Any] | None = None) -> Iterator[JudgeResult]:
        """Results in the order of the records, a few batches asked for at a time.

        Args:
            records: Mappings; anything else gives a result that says so.
            space: Verdict space, by default the server's own.
        """
        asking = self._asking | {"space": self._written(space)}
        asked: deque[Future[list[JudgeResult]]] = deque()
        with ThreadPoolExecutor(_CONNECTIONS) as threads:
            source = iter(records)
            while batch := list(islice(source, self._size)):
                asked.append(threads.submit(self._judge, batch, asking))
                if len(asked) > _CONNECTIONS:
                    yield from asked.popleft().result()
            while asked:
                yield from asked.popleft().result()

    def rank(self, prompt: Any, responses: Sequence[str], *, space: Any = None) -> Ranking:
        """As `RewardJudge.rank`.

        Args:
            prompt: The question.
            responses: Candidate answers.
            space: A verdict space of single responses.
        """
        records = [{"prompt": prompt, "response": response} for response in responses]
        return ranking_of(list(self.stream(records, space=space)))

    def _judge(self, batch: list[Any], asking: dict[str, Any]) -> list[JudgeResult]:
        sent = [_sendable(record) for record in batch]
        if any(record is None for record in sent) and len(batch) > 1:
            return self._one_by_one(batch, asking)
        if sent[0] is None:
            return [failed_result(None, InputError("A record is a mapping of plain data."))]
        try:
            answer = self._client.post("/v1/reward", {"records": sent, **asking})
        except ServerError as error:
            of_records = [place for place in error.places if place.startswith("body.records.")]
            if error.kind not in ("invalid", "record_too_long") or len(of_records) < len(error.places):
                raise ModelError(str(error)) from error
            if len(batch) > 1:  # one of them is wrong
                return self._one_by_one(batch, asking)
            return [failed_result(read_id(sent[0].get("id")), InputError(str(error)))]
        except ValueError as error:  # NaN, which JSON has no word for
            return self._one_by_one(batch, asking) if len(batch) > 1 else [failed_result(None, InputError(str(error)))]
        return [_result(values) for values in answer["results"]]

    def _one_by_one(self, batch: list[Any], asking: dict[str, Any]) -> list[JudgeResult]:
        return [self._judge([record], asking)[0] for record in batch]

    def _written(self, space: Mapping[str, Any] | None) -> dict[str, Any]:
        space = dict(self.own_space if space is None else space)
        return space if self._format is None else space | {"verdict_format": self._format}


def _sendable(record: Any) -> dict[str, Any] | None:
    # What a table has no value for is absent.
    if not isinstance(record, Mapping):
        return None
    return {name: value for name, value in record.items() if value is not None and not _is_nan(value)}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _result(values: Mapping[str, Any]) -> JudgeResult:
    tuples = {name: tuple(values[name]) for name in ("order", "draft_kept")}
    return JudgeResult(**{**values, **tuples})


__all__ = ["RemoteJudge"]

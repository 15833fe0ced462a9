"""One judge in several processes: asks are dealt out in chunks, judgements come back in order."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import Any

from transformers_egrm.evaluation.asking import Ask, Judgement, Question
from transformers_egrm.evaluation.judges import Judge
from transformers_egrm.modeling.errors_egrm import ConfigError


Make = Callable[[int], Judge]
"""Loads the judge of the process with that number, from 0; it must be picklable, as a module's function is."""


class ParallelJudge(Judge):
    """The judge that `make` loads, once in every process.

    A verdict depends on its ask alone, so it is the same in any number of processes; floating point noise between batch
    shapes aside.

    Args:
        make: Loads the judge.
        processes: How many, at least 1.
        chunk: Asks that a process takes at once.

    Raises:
        ConfigError: There are no processes.
    """

    def __init__(self, make: Make, processes: int, chunk: int = 32) -> None:
        if processes < 1:
            raise ConfigError(f"A judge needs at least one process, got {processes}.")
        context = multiprocessing.get_context("spawn")
        numbers: Any = context.Queue()
        for number in range(processes):
            numbers.put(number)
        self._chunk = chunk
        self._pool = ProcessPoolExecutor(
            processes, mp_context=context, initializer=_load, initargs=(make, numbers, processes)
        )
        facts = self._pool.submit(_facts).result()
        self.name, self.asks, self.symmetric, self.threshold = (
            facts[name] for name in ("name", "asks", "symmetric", "threshold")
        )
        self._description = facts["description"]

    def describe(self) -> dict[str, Any]:
        """What the judge says of itself; the number of processes decides nothing."""
        return self._description

    def prepare(self, questions: Sequence[Question]) -> None:
        """Refuse a judge that learns from the questions: each process would have to.

        Raises:
            ConfigError: It does.
        """
        if self._pool.submit(_learns).result():
            raise ConfigError(
                f"{self.name} learns from the questions, which one process does.", "Leave out --processes."
            )

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`. The processes end with the last judgement, or when the caller stops."""
        iterator = iter(asks)
        chunks = iter(lambda: list(islice(iterator, self._chunk)), [])
        try:
            for said in self._pool.map(_judge_chunk, chunks):
                yield from said
        finally:
            self._pool.shutdown(cancel_futures=True)


# What follows runs in the processes; each has one judge, or the error that loading it raised.
_own: list[Judge | Exception] = []


def _load(make: Make, numbers: Any, processes: int) -> None:
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes))
    try:
        _own.append(make(numbers.get()))
    except Exception as error:  # an initializer that raises ends the pool, and nobody learns why
        _own.append(error)


def _end_with_parent() -> None:
    # A command that was killed can tell its processes nothing: each would wait for work for ever, with its model loaded.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _judge() -> Judge:
    found = _own[0]
    if isinstance(found, Exception):
        raise found
    return found


def _facts() -> dict[str, Any]:
    judge = _judge()
    facts = {name: getattr(judge, name) for name in ("name", "asks", "symmetric", "threshold")}
    return facts | {"description": judge.describe()}


def _learns() -> bool:
    return type(_judge()).prepare is not Judge.prepare


def _judge_chunk(asks: list[Ask]) -> list[Judgement]:
    return list(_judge().judge(asks))


__all__ = ["ParallelJudge"]

"""What decides a verdict, as a key; and a result as text.

Two records have one verdict where one judge meets the same prompts, task, options and draws. Id and seed name the draws, and
stand in no key where nothing is drawn: on the short path of exact consensus. Where the consensus sends such a record to its
chains, or an audit asks them, id and seed decide again.
"""

import hashlib
import json
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import tokenizers
import torch
import transformers

from transformers_egrm.modeling.engine_random_egrm import item_id_of_tokens
from transformers_egrm.modeling.errors_egrm import ConfigError, need
from transformers_egrm.modeling.judge_batch_egrm import EncodedItem
from transformers_egrm.modeling.judge_certificate_egrm import task_digest, weights_digest
from transformers_egrm.modeling.judge_options_egrm import OPTION_NAMES
from transformers_egrm.modeling.judge_plan_egrm import JudgePlan
from transformers_egrm.modeling.judge_results_egrm import Entry, JudgeResult, fields_of_record
from transformers_egrm.modeling.judge_values_egrm import Account, Candidate, ProbeVote


KEPT = ("ok", "abstained", "no_verdict")
"""Statuses that a record has whenever it is judged. `timeout` and `error` are of the moment. What is `too_long` is refused
before a model runs, so nothing is saved by keeping it."""
_OPTIONS = sorted(OPTION_NAMES - {"seed", "seed_by", "timeout_s", "audit_share"})  # others name draws, or say when
_SPENT = {"stage": "cache", "tokens": 0, "draft_rounds": 0, "draft_tokens": 0, "draft_kept": ()}
_NO_MATTER = ("_name_or_path", "transformers_version", "auto_map", "custom_pipelines", "base_models", "card")
_OF_RECORD = ("id", "seed", "order", "truncated", "truncated_tokens", "fallback")  # `fields_of_record`
_DEFAULTS = {field.name: field.default for field in fields(JudgeResult)}


class Texts(Protocol):
    """What keeps texts under keys."""

    def find(self, keys: Sequence[bytes]) -> str | None:
        """The text under the first key that is known."""
        ...

    def keep(self, key: bytes, result: str) -> None:
        """Put a text under a key."""
        ...


class JudgePast:
    """The verdicts of one judge among all that are kept.

    Weights and configuration are read when it is made. What is written to the weights afterwards is noticed at the next
    record, so that verdicts of two states of a judge never mix.

    Args:
        store: Keeps verdicts.
        model: The judge.
        asked: What its results carry: `return_texts`, `explain`, `states`.

    Raises:
        ConfigError: Hidden states are asked for, or something else than the model's own generator writes.
        UnsupportedModelError: The weights cannot be read.
    """

    def __init__(self, store: Texts, model: Any, asked: Mapping[str, Any]) -> None:
        need(asked.get("states") is None, "states", asked.get("states"), "None with a cache, which keeps no tensors")
        if not model.writes_itself:
            raise ConfigError(f"A cache needs the weights that decide, but {type(model.engine).__name__} writes in the "
                              "generator's place.", "Leave `cache` out.")  # fmt: skip
        self.store = store
        self._model, self._asked = model, sorted(asked.items())
        self._stops_early = "early_stop" in model.engine.can
        self._weights = [*model.parameters(), *model.buffers()]
        self._judge = judge_digest(model, self._asked)
        self._seen = self._writes()

    def judge(self) -> bytes:
        """A digest of everything about the judge that decides a verdict."""
        if (seen := self._writes()) != self._seen:
            self._seen, self._judge = seen, judge_digest(self._model, self._asked)
        return self._judge

    def _writes(self) -> list[tuple[int, int]]:
        # PyTorch counts what is written to a tensor.
        return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in self._weights]

    def question(self, entry: Entry, options: Mapping[str, Any]) -> "Question | None":
        """What a record asks; see `Past`.

        Args:
            entry: As there.
            options: As there.
        """
        item, task = entry.item, entry.item.task
        if callable(task.space.verdict_format):
            return None
        own = self._model.config.judge_options(task.space.kind, **options)
        item_id = item_id_of_tokens(item.prompts[0]) if own.seed_by == "text" else item.item_id
        (audited,) = JudgePlan.of([own], [item_id]).audits
        judge = self.judge()
        undrawn = _digest(judge, task_digest(task), [(name, getattr(own, name)) for name in _OPTIONS], *_shown(item))
        draws_nothing = own.consensus == "exact" and own.path != "long" and not audited
        return Question(
            past=self, entry=entry, seed=own.seed, judge=judge, key=_digest(undrawn, item_id, own.seed, audited),
            undrawn=undrawn if draws_nothing else None, may_be_bound=own.early_stop and self._stops_early,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Question:
    """One record with everything that decides its verdict; see `PastQuestion`."""

    past: JudgePast
    entry: Entry
    seed: int
    judge: bytes
    """The judge's digest when it was asked."""
    key: bytes
    undrawn: bytes | None
    """The key of a verdict that needed no draws; None where there is none such."""
    may_be_bound: bool
    """Whether probes may stop early. Else only a deadline leaves some unread, which it may not do the next time."""

    def answer(self) -> JudgeResult | None:
        """The verdict that was reached before; None where there is none."""
        text = self.past.store.find([key for key in (self.undrawn, self.key) if key is not None])
        return (
            None if text is None else _read(text, fields_of_record(self.entry.record_id, self.entry.item, self.seed))
        )

    def keep(self, result: JudgeResult) -> None:
        """Take a verdict that was just reached, if the record has it whenever this judge is asked.

        Args:
            result: The record's own.
        """
        whole = self.may_be_bound or not result.consensus_is_bound
        whole = whole and not (result.audited and result.audit_verdict is None)  # the audit may have run out of time
        if result.status in KEPT and whole and self.judge == self.past.judge():
            key = self.undrawn if self.undrawn is not None and result.route == "short" else self.key
            self.past.store.keep(key, _written(result))


def judge_digest(model: Any, asked: Sequence[tuple[str, Any]] = ()) -> bytes:
    """A digest of a judge: weights, configuration, adapters, tokenizers, and the code that runs them.

    Args:
        model: The judge.
        asked: What its results carry.

    Raises:
        UnsupportedModelError: The weights cannot be read.
    """
    adapters = [
        (name, module.active_adapters, module.disable_adapters, getattr(module, "scaling", None))
        for name, module in model.named_modules()
        if isinstance(getattr(module, "disable_adapters", None), bool)  # of PEFT's layers
    ]
    readers = (model.processor.tokenizer, model.processor.scorer_tokenizer)
    return _digest(
        weights_digest(model),
        json.dumps(_without_names(model.config.to_dict()), sort_keys=True, default=str),
        adapters,
        [None if reader is None else _tokenizer_digest(reader, len(reader)) for reader in readers],
        _code_digest(str(Path(str(sys.modules[type(model).__module__].__file__)).parent)),
        (torch.__version__, transformers.__version__, tokenizers.__version__),
        list(asked),
    )


def _shown(item: EncodedItem) -> tuple[Any, ...]:
    # All of a record that reaches the model or decides its reward.
    return (*(array("q", prompt).tobytes() for prompt in item.prompts), item.swapped, item.turn_tokens, item.reference)


def _digest(*parts: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def _without_names(config: Any) -> Any:
    # A judge is the same wherever it was loaded from.
    if isinstance(config, Mapping):
        return {str(name): _without_names(value) for name, value in config.items() if name not in _NO_MATTER}
    return config


@lru_cache(maxsize=8)
def _tokenizer_digest(tokenizer: Any, size: int) -> bytes:
    # The size tells whether tokens were added since.
    fast = getattr(tokenizer, "backend_tokenizer", None)
    return _digest(fast.to_str() if fast is not None else sorted(tokenizer.get_vocab().items()))


@lru_cache(maxsize=8)
def _code_digest(folder: str) -> bytes:
    return _digest(*((path.name, path.read_bytes()) for path in sorted(Path(folder).glob("*_egrm.py"))))


def _written(result: JudgeResult) -> str:
    values = {
        name: getattr(result, name)
        for name, default in _DEFAULTS.items()
        if name not in (*_OF_RECORD, *_SPENT, "account") and getattr(result, name) != default
    }
    if (account := result.account) is not None:
        plain = tuple(replace(candidate, state=None) for candidate in account.candidates)
        values["account"] = asdict(replace(account, candidates=plain))
    return json.dumps(values)


def _read(text: str, of_record: Mapping[str, Any]) -> JudgeResult | None:
    try:
        values = json.loads(text)
        account = values.pop("account", None)
        account = None if account is None else _read_account(account)
        return JudgeResult(**{**values, **_SPENT, **of_record, "account": account})
    except (ValueError, TypeError, KeyError):  # no text of ours: whoever wrote it, it is judged
        return None


def _read_account(values: dict[str, Any]) -> Account:
    parts: dict[str, Any] = {
        "labels": tuple(values["labels"]),
        "probes": tuple(ProbeVote(**vote) for vote in values["probes"]),
        "verdict_probs": tuple(map(tuple, values["verdict_probs"])),
        "candidates": tuple(Candidate(**candidate) for candidate in values["candidates"]),
        "scorer_prompts": tuple(values["scorer_prompts"]),
    }
    return Account(**{**values, **parts, "stage": "cache", "prefill_tokens": 0, "new_tokens": 0, "flops": 0.0})


__all__ = ["KEPT", "JudgePast", "Question", "judge_digest"]

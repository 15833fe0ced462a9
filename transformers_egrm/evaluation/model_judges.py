"""Models as judges: an EGRM checkpoint, a scalar reward model, and a generator asked for a decision without thought."""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from transformers_egrm.evaluation.accounts import details_of, order_rewards
from transformers_egrm.evaluation.asking import Ask, Judgement
from transformers_egrm.evaluation.judges import Judge
from transformers_egrm.evaluation.provenance import folder_digest, prompt_digest
from transformers_egrm.modeling.errors_egrm import ConfigError
from transformers_egrm.modeling.judge_results_egrm import JudgeResult
from transformers_egrm.modeling.prompt_guard_egrm import TextGuard
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


_ASKS = {"pointwise": "responses", "binary": "responses", "pairwise": "pairs", "listwise": "pairs", "free": "answers"}


class EGRMJudge(Judge):
    """An EGRM checkpoint behind `RewardJudge`.

    A pairwise space looks at both orders of a pair by itself and needs one ask. A listwise space of two shows one order
    at a time, so that the runner asks twice and sees how often the order decides.

    Args:
        judge: A `RewardJudge`.
        space: Verdict space as plain data, by default the judge's own.
        name: As tables print it.
        identity: What tells the checkpoint from another one, as plain data.
        guard: Whether judged text is kept from acting as anything but text. Without it, judging shows what it is worth.

    Raises:
        ConfigError: The space cannot be judged in, or the judge's options do not fit it.
    """

    def __init__(
        self,
        judge: Any,
        space: dict[str, Any] | None = None,
        *,
        name: str = "egrm",
        identity: dict[str, Any] | None = None,
        guard: bool = True,
    ) -> None:
        if not guard:
            judge = copy.copy(judge)
            judge.processor = unguarded(judge.processor)
        self._judge, self.name, self._identity, self._guard = judge, name, identity or {}, guard
        space = dict(space or judge.processor.task(judge.space).space.to_dict())
        if space["kind"] == "listwise":
            space |= {"num_candidates": 2}
        self._space = judge.processor.task(space).space.to_dict()
        kind = self._space["kind"]
        self.asks, self.symmetric = _ASKS[kind], kind == "pairwise"
        self.threshold = {"binary": 0.5, "pointwise": (self._space["low"] + self._space["high"]) / 2}.get(kind)

    def describe(self) -> dict[str, Any]:
        """Checkpoint, space, options, and a digest of the judge prompt that they make."""
        judge = self._judge
        return super().describe() | {
            "kind": "egrm",
            **self._identity,
            "space": self._space,
            "options": {name: _plain(value) for name, value in judge.options.items()},
            "rubric": judge.rubric,
            **({} if judge.model.engine is None else {"engine": type(judge.model.engine).__name__}),
            "guard": self._guard,
            "prompt_digest": prompt_digest(judge.processor, self._space, judge.rubric),
        }

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`."""
        listwise = self._space["kind"] == "listwise"
        for result in self.results(asks):
            reward = None if result.reward is None or self.asks == "answers" else float(result.reward)
            account = None if result.account is None else result.account.to_dict()
            yield Judgement(
                # Listwise rewards are the index of the best: 0 is the first shown.
                reward=1.0 - reward if listwise and reward is not None else reward,
                status=result.status,
                verdict=result.verdict,
                consensus=result.consensus,
                route=result.route,
                tokens=result.tokens,
                flops=None if account is None else account["flops"],
                truncated=result.truncated,
                error=result.error,
                order_rewards=order_rewards(account) if self.symmetric and account is not None else (),
                details=_details(result, account),
            )

    def results(self, asks: Iterable[Ask]) -> Iterator[JudgeResult]:
        """What the judge itself says to each ask, in order, with its account where the judge keeps them.

        Args:
            asks: As in `judge`.
        """
        return self._judge.stream(map(self._record, asks), space=self._space)

    @property
    def model(self) -> Any:
        """The checkpoint."""
        return self._judge.model

    @property
    def space(self) -> VerdictSpace:
        """The verdict space that it judges in."""
        return VerdictSpace.from_dict(self._space)

    def decision_rival(self) -> "DecisionJudge":
        """The same generator, asked for a decision without thought, about what this judge is asked about.

        Raises:
            ConfigError: A judge that answers itself has no such rival.
        """
        if self.asks == "answers":
            raise ConfigError("A decision is between options, so a judge in a free space has no decision rival.")
        return DecisionJudge(self._judge.model.generator, self._judge.processor.tokenizer, self.asks)

    def _record(self, ask: Ask) -> dict[str, Any]:
        record: dict[str, Any] = {"id": ask.id, "prompt": ask.prompt, "reference": ask.reference}
        if self._space["kind"] == "listwise":
            return record | {"responses": list(ask.responses)}
        names = {1: ("response",), 2: ("response_a", "response_b")}.get(len(ask.responses), ())
        return record | dict(zip(names, ask.responses, strict=True))


class ScalarJudge(Judge):
    """A scalar reward model: a sequence classifier with one output, asked about a whole conversation.

    Only conversations of equal length are run together, so that nothing is padded: a padding token, or a head that looks
    for one, cannot change a reward. A conversation that does not fit is a failed verdict unless `truncate` cuts its
    beginning, and the cut is told.

    Args:
        model: With one label.
        tokenizer: Its own, with a chat template.
        name: As tables print it.
        batch_size: Conversations run together, at least 1.
        truncate: Whether to cut the beginning of what is too long.
        max_tokens: Longest conversation; by default the smaller of the model's and the tokenizer's.
        identity: What tells the model from another one, as plain data.

    Raises:
        ConfigError: The model has more than one label, or the tokenizer no chat template.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "scalar",
        batch_size: int = 8,
        truncate: bool = False,
        max_tokens: int | None = None,
        identity: dict[str, Any] | None = None,
    ) -> None:
        if model.config.num_labels != 1:
            raise ConfigError(f"A scalar reward model has one output, {name} has {model.config.num_labels}.")
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(f"The tokenizer of {name} must have a chat template: a reward is of a conversation.",
                              "Set tokenizer.chat_template and save it with the model.")  # fmt: skip
        self._model, self._tokenizer, self.name, self._identity = model.eval(), tokenizer, name, identity or {}
        self._batch_size, self._truncate = batch_size, truncate
        limits = (getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length)
        self._max_tokens = max_tokens or min(limit for limit in limits if limit)

    def describe(self) -> dict[str, Any]:
        """Model, limit and template."""
        return super().describe() | {
            "kind": "scalar",
            **self._identity,
            "max_tokens": self._max_tokens,
            "truncate": self._truncate,
            "chat_template": self._tokenizer.chat_template,
        }

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`."""
        iterator = iter(asks)
        while window := list(islice(iterator, 16 * self._batch_size)):
            yield from self._window(window)

    def _window(self, asks: Sequence[Ask]) -> list[Judgement]:
        rows = [self._ids(ask) for ask in asks]
        found: dict[int, Judgement] = {}
        by_length: dict[int, list[int]] = {}
        for number, ids in enumerate(rows):
            if len(ids) > self._max_tokens and not self._truncate:
                error = f"The conversation has {len(ids)} tokens, the model takes {self._max_tokens}."
                found[number] = Judgement(reward=None, status="too_long", error=error)
            else:
                by_length.setdefault(min(len(ids), self._max_tokens), []).append(number)
        for length, numbers in sorted(by_length.items()):
            for first in range(0, len(numbers), self._batch_size):
                batch = numbers[first : first + self._batch_size]
                for number, reward in zip(batch, self._rewards([rows[i][-length:] for i in batch]), strict=True):
                    found[number] = _scored(reward, truncated=len(rows[number]) > length)
        return [found[number] for number in range(len(asks))]

    def _ids(self, ask: Ask) -> list[int]:
        messages = [{"role": "user", "content": ask.prompt}] if isinstance(ask.prompt, str) else list(ask.prompt)
        messages.append({"role": "assistant", "content": ask.responses[0]})
        # The template writes the special tokens; a tokenizer that adds its own would double the first one.
        text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    @torch.inference_mode()
    def _rewards(self, rows: Sequence[Sequence[int]]) -> list[float]:
        ids = torch.tensor(rows, device=self._model.device)
        logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return logits.float().reshape(len(rows)).tolist()


class DecisionJudge(Judge):
    """A generator asked for a decision by `pipeline("decision")`: one forward pass, no thought (Transformers >= 5.23).

    Args:
        generator: Any causal language model.
        tokenizer: Its own.
        asks: `responses`: the probability that a response is correct and helpful; `pairs`: that the first is better.
        name: As tables print it.

    Raises:
        ConfigError: This Transformers has no such pipeline.
    """

    threshold = 0.5

    def __init__(self, generator: Any, tokenizer: Any, asks: str, *, name: str = "decision") -> None:
        self.asks, self.name = asks, name
        try:
            from transformers import pipeline
            from transformers.decision import DecisionConfig
        except ImportError as error:
            raise ConfigError('`pipeline("decision")` needs Transformers 5.23 or newer.') from error
        build: Any = pipeline
        self._decide = build("decision", model=generator, tokenizer=tokenizer, decision_config=DecisionConfig())

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`."""
        for ask in asks:
            try:
                yield _scored(self._probability(ask))
            except Exception as error:  # one request that the pipeline refuses must not end a run
                yield Judgement(reward=None, status="error", error=f"{type(error).__name__}: {error}")

    def _probability(self, ask: Ask) -> float:
        prompt = (
            ask.prompt
            if isinstance(ask.prompt, str)
            else "\n".join(f"{m['role']}: {m['content']}" for m in ask.prompt)
        )
        if self.asks == "pairs":
            state = {"question": prompt, "response A": ask.responses[0], "response B": ask.responses[1]}
            question = {
                "type": "choice",
                "instructions": "Which response answers the question better?",
                "criteria": {"A": "response A is better", "B": "response B is better"},
            }
            answers = self._decide({"state": state, "questions": {"better": question}})
            return float(answers["better"]["probabilities"]["A"])
        state = {"question": prompt, "response": ask.responses[0]}
        question = {"type": "noul", "instructions": "Is the response a correct and helpful answer to the question?"}
        return float(self._decide({"state": state, "questions": {"right": question}})["right"]["noul"])


class _OpenGuard(TextGuard):
    # The guard with its two doors open: text is neither altered nor kept from becoming control tokens.
    def neutralise(self, text: str, delimited: bool, space: VerdictSpace) -> str:
        return text

    def hide(self, text: str, own_thought: bool = False) -> str:
        return text


def unguarded(processor: Any) -> Any:
    """A copy of a processor whose injection guard does nothing, to measure what the guard is worth.

    Args:
        processor: An `EGRMProcessor`.
    """
    bare = copy.copy(processor)
    # A cached property: set on the copy, the processor reads this guard wherever it would build its own.
    bare.__dict__["_guard"] = _OpenGuard(processor.tokenizer, str(processor.chat_template))
    return bare


def load_scalar(folder: str, *, device: torch.device | str = "cpu", **settings: Any) -> ScalarJudge:
    """A scalar reward model from a folder.

    Args:
        folder: With a sequence classifier and its tokenizer.
        device: Where it runs.
        **settings: Of `ScalarJudge`.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).to(torch.device(device))
    identity = {"model": folder, "files": folder_digest(folder)}
    return ScalarJudge(model, AutoTokenizer.from_pretrained(folder), name=folder, identity=identity, **settings)


def _scored(reward: float, *, truncated: bool = False) -> Judgement:
    if not math.isfinite(reward):
        return Judgement(reward=None, status="error", error=f"The model returned {reward}.", truncated=truncated)
    return Judgement(reward=reward, truncated=truncated)


def _details(result: Any, account: dict[str, Any] | None) -> dict[str, Any] | None:
    found = {} if account is None else details_of(account)
    return found | ({"rationale": result.rationale} if result.rationale else {}) or None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


__all__ = ["DecisionJudge", "EGRMJudge", "ScalarJudge", "load_scalar", "unguarded"]

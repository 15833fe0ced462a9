"""How each kind of server is asked, and what its answers say. One class per server; nothing here sends anything.

Every request names all that decides the law of a draw: servers have defaults of their own (a nucleus, a top-k, a penalty),
often from the model's `generation_config.json`. None of them asks for log-probabilities of the prompt, which would keep vLLM
from reading its prefix cache.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers_egrm.engines.wire import Post
from transformers_egrm.modeling.errors_egrm import EngineError, UnsupportedModelError


@dataclass(frozen=True)
class Row:
    """One branch to draw."""

    temperature: float
    top_p: float
    seed: int | None
    """None: the server draws as it likes."""

    def seeded(self, name: str) -> dict[str, int]:
        """The seed as a field of a request; no field without one."""
        return {} if self.seed is None else {name: self.seed}


@dataclass(frozen=True)
class Ask:
    """How one prompt is to be continued."""

    prompt: tuple[int, ...]
    """Token ids."""
    rows: tuple[Row, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    """Tokens that end a row; a row may go on past them where a server takes none."""
    log_probs: bool = False
    """Whether the rows' log-probabilities at temperature 1 are wanted."""


@dataclass(frozen=True)
class Written:
    """What came back for one row."""

    tokens: list[int]
    stopped: bool
    """Whether it ended by itself, its end token then being the last of `tokens`."""
    log_probs: list[float] | None = None
    """Of each token, at temperature 1."""


class Dialect(ABC):
    """One kind of server.

    Args:
        model: What the server calls its model.
        text_of: Token ids -> the text that the server's tokenizer reads as these ids.
        ids_of: What a server wrote -> token ids.
    """

    name: ClassVar[str]
    can: ClassVar[frozenset[str]] = frozenset()
    """Abilities, if its answers bear them out when it is tried."""
    most_columns: ClassVar[int] = 1 << 30
    """Most tokens that one request may ask the log-probabilities of."""
    tells_ids: ClassVar[bool] = True
    """Whether it answers with token ids; else with text, without control tokens."""
    concurrency: ClassVar[int | None] = None
    """Most requests at a time where more would do harm; None: as many as the client sends."""

    def __init__(
        self, model: str, text_of: Callable[[Sequence[int]], str], ids_of: Callable[[str], list[int]]
    ) -> None:
        self.model, self.text_of, self.ids_of = model, text_of, ids_of

    @abstractmethod
    def posts(self, ask: Ask) -> list[tuple[Post, int]]:
        """The requests that draw an ask's rows, in order, each with its number of rows."""

    @abstractmethod
    def written(self, ask: Ask, answer: Any) -> list[Written]:
        """What a request drew."""

    @abstractmethod
    def prompt_tokens(self, answer: Any) -> int | None:
        """How many tokens the server counted in the prompt; None where it does not tell."""

    def reading(self, prompt: Sequence[int], columns: Sequence[int]) -> Post:
        """The request for log-probabilities of the token that follows a prompt.

        Raises:
            UnsupportedModelError: This kind of server cannot tell them: `logits` is not among what it can.
        """
        raise self._tells_none()

    def log_probs(self, answer: Any, columns: Sequence[int]) -> list[float]:
        """What it answered for each of the columns.

        Raises:
            UnsupportedModelError: As `reading`.
        """
        raise self._tells_none()

    def _tells_none(self) -> UnsupportedModelError:
        return UnsupportedModelError(f"A server of kind {self.name} tells no log-probabilities of named tokens.",
                                     "Use consensus='sampled', or a server of vLLM or SGLang.")  # fmt: skip

    def _ended(self, ask: Ask, ids: list[int], stopped: bool, reason: Any = None) -> list[int]:
        # Some servers leave the end token out of what they return.
        if not stopped or (ids and ids[-1] in ask.stop_ids):
            return ids
        end = reason if isinstance(reason, int) and not isinstance(reason, bool) else next(iter(ask.stop_ids), None)
        return ids if end is None else [*ids, end]


class OpenAIStyle(Dialect):
    """Any server with `/v1/completions` that takes token ids; nothing is asked of it but what the OpenAI schema has."""

    name = "openai"
    tells_ids = False

    def posts(self, ask: Ask) -> list[tuple[Post, int]]:
        """See `Dialect`: one request for each row."""
        return [(Post("/v1/completions", self._common(ask, row) | self._own(ask, row)), 1) for row in ask.rows]

    def _common(self, ask: Ask, row: Row) -> dict[str, Any]:
        return {"model": self.model, "prompt": list(ask.prompt), "max_tokens": self._budget(ask), "n": 1,
                "temperature": row.temperature, "top_p": row.top_p, **row.seeded("seed")}  # fmt: skip

    def _own(self, ask: Ask, row: Row) -> dict[str, Any]:
        return {}

    def _budget(self, ask: Ask) -> int:
        # Where the end token is not shown, only one token more tells whether a row ended at its budget.
        return ask.max_tokens if self.tells_ids else ask.max_tokens + 1

    def written(self, ask: Ask, answer: Any) -> list[Written]:
        """See `Dialect`."""
        (choice,) = answer["choices"]
        stopped = choice["finish_reason"] == "stop"
        if self.tells_ids:
            ids = [int(token) for token in choice["token_ids"]]
        else:
            ids = self.ids_of(choice["text"])
            stopped = stopped and answer["usage"]["completion_tokens"] <= ask.max_tokens
        ids = self._ended(ask, ids, stopped, choice.get("stop_reason"))
        if len(ids) > ask.max_tokens:  # a text may be more tokens than were drawn
            ids = [*ids[: ask.max_tokens - 1], ids[-1]] if stopped else ids[: ask.max_tokens]
        return [Written(ids, stopped, self._drawn(choice, ask))]

    def _drawn(self, choice: Any, ask: Ask) -> list[float] | None:
        return None

    def prompt_tokens(self, answer: Any) -> int | None:
        """See `Dialect`."""
        return (answer.get("usage") or {}).get("prompt_tokens")


class VLLM(OpenAIStyle):
    """vLLM."""

    name = "vllm"
    can = frozenset({"logits", "restrict", "log_probs"})
    most_columns = 128  # its MAX_LOGPROB_TOKEN_IDS
    tells_ids = True

    def _own(self, ask: Ask, row: Row) -> dict[str, Any]:
        return {
            "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            # The model's own end tokens count only as far as they are asked for.
            "ignore_eos": True, "stop_token_ids": list(ask.stop_ids), "return_token_ids": True,
            **({"logprobs": 0} if ask.log_probs else {}),
        }  # fmt: skip

    def _drawn(self, choice: Any, ask: Ask) -> list[float] | None:
        return [_number(value) for value in choice["logprobs"]["token_logprobs"]] if ask.log_probs else None

    def reading(self, prompt: Sequence[int], columns: Sequence[int]) -> Post:
        """See `Dialect`: they come before temperature and nucleus."""
        ask = Ask(tuple(prompt), (Row(1.0, 1.0, None),), 1, ())
        ((post, _),) = self.posts(ask)
        named = {"logprobs": len(columns), "logprob_token_ids": list(columns), "return_tokens_as_token_ids": True}
        return Post(post.path, {**post.body, **named})

    def log_probs(self, answer: Any, columns: Sequence[int]) -> list[float]:
        """See `Dialect`."""
        found = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        return [_number(found[f"token_id:{column}"]) for column in columns]


class TensorRT(OpenAIStyle):
    """TensorRT-LLM (`trtllm-serve`); it refuses fields that it does not know."""

    name = "tensorrt_llm"
    tells_ids = True

    def _own(self, ask: Ask, row: Row) -> dict[str, Any]:
        return {
            "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "ignore_eos": True, "stop_token_ids": list(ask.stop_ids), "include_stop_str_in_output": True,
            "detokenize": False,  # then the answer holds token ids
        }  # fmt: skip


class TransformersServe(OpenAIStyle):
    """`transformers serve`: it takes a text, and a whole `GenerationConfig` with it.

    It runs one request at a time, and seeds itself when one arrives: a second one would take the first one's seed.
    """

    name = "transformers"
    concurrency = 1

    def _common(self, ask: Ask, row: Row) -> dict[str, Any]:
        sampled = {"do_sample": True, "temperature": row.temperature, "top_p": row.top_p, "top_k": 0}
        ends = list(ask.stop_ids) or None
        settings = {**(sampled if row.temperature > 0 else {"do_sample": False}), "eos_token_id": ends,
                    "pad_token_id": ends[0] if ends else 0, "max_new_tokens": self._budget(ask)}  # fmt: skip
        return {"model": self.model, "prompt": self.text_of(ask.prompt), "max_tokens": self._budget(ask),
                **row.seeded("seed"), "generation_config": json.dumps(settings)}  # fmt: skip


class SGLang(Dialect):
    """SGLang's own `/generate`: all rows of a prompt in one request, each with its own parameters."""

    name = "sglang"
    can = frozenset({"logits", "restrict"})  # what it returns of drawn tokens is after temperature

    def posts(self, ask: Ask) -> list[tuple[Post, int]]:
        """See `Dialect`: one request for all rows."""
        body = {
            "input_ids": [list(ask.prompt)] * len(ask.rows),
            "sampling_params": [self._row(ask, r) for r in ask.rows],
        }
        return [(Post("/generate", body), len(ask.rows))]

    def _row(self, ask: Ask, row: Row) -> dict[str, Any]:
        return {
            "max_new_tokens": ask.max_tokens, "temperature": row.temperature, "top_p": row.top_p, "top_k": -1,
            "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "ignore_eos": True, "stop_token_ids": list(ask.stop_ids), "no_stop_trim": True, **row.seeded("sampling_seed"),
        }  # fmt: skip

    def written(self, ask: Ask, answer: Any) -> list[Written]:
        """See `Dialect`."""
        rows = []
        for own in answer if isinstance(answer, list) else [answer]:
            stopped = own["meta_info"]["finish_reason"]["type"] == "stop"
            matched = own["meta_info"]["finish_reason"].get("matched")
            rows.append(
                Written(self._ended(ask, [int(token) for token in own["output_ids"]], stopped, matched), stopped)
            )
        return rows

    def prompt_tokens(self, answer: Any) -> int | None:
        """See `Dialect`."""
        first = answer[0] if isinstance(answer, list) else answer
        return first["meta_info"].get("prompt_tokens")

    def reading(self, prompt: Sequence[int], columns: Sequence[int]) -> Post:
        """See `Dialect`: at temperature 1, since they come after it."""
        row = self._row(Ask(tuple(prompt), (), 1, ()), Row(1.0, 1.0, None))
        return Post("/generate", {"input_ids": list(prompt), "sampling_params": row, "return_logprob": True,
                                  "token_ids_logprob": list(columns)})  # fmt: skip

    def log_probs(self, answer: Any, columns: Sequence[int]) -> list[float]:
        """See `Dialect`."""
        found = {int(token): value for value, token, *_ in answer["meta_info"]["output_token_ids_logprobs"][0]}
        return [_number(found[column]) for column in columns]


class LlamaCpp(Dialect):
    """llama.cpp's own `/completion`: a row ends at the model's own end tokens, other ones are cut off here."""

    name = "llamacpp"

    def posts(self, ask: Ask) -> list[tuple[Post, int]]:
        """See `Dialect`: one request for each row."""
        # `samplers` leaves out all others, and puts temperature before the nucleus.
        return [
            (Post("/completion", {
                "prompt": list(ask.prompt), "n_predict": ask.max_tokens, "temperature": row.temperature,
                "top_p": row.top_p, "top_k": 0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0,
                "presence_penalty": 0.0, "frequency_penalty": 0.0, "samplers": ["temperature", "top_p"],
                **row.seeded("seed"), "cache_prompt": True, "return_tokens": True,
            }), 1)
            for row in ask.rows
        ]  # fmt: skip

    def written(self, ask: Ask, answer: Any) -> list[Written]:
        """See `Dialect`."""
        stopped = answer["stop_type"] == "eos"
        # A character of several tokens may be written to its end, past the budget.
        ids = [int(token) for token in answer["tokens"]][: ask.max_tokens]
        return [Written(self._ended(ask, ids, stopped), stopped)]

    def prompt_tokens(self, answer: Any) -> int | None:
        """See `Dialect`."""
        if answer.get("truncated"):
            raise EngineError("llama.cpp cut the prompt.", "Start it with a larger context (-c).")
        return answer.get("tokens_evaluated")


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


DIALECTS: dict[str, type[Dialect]] = {
    kind.name: kind for kind in (VLLM, SGLang, TensorRT, LlamaCpp, TransformersServe, OpenAIStyle)
}
"""Every kind by the name that an address may put before its scheme, such as `vllm+http://…`."""


__all__ = [
    "DIALECTS",
    "VLLM",
    "Ask",
    "Dialect",
    "LlamaCpp",
    "OpenAIStyle",
    "Row",
    "SGLang",
    "TensorRT",
    "TransformersServe",
    "Written",
]  # fmt: skip

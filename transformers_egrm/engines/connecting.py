"""From an address to an engine: what kind of server is there, and whether it does what its kind declares."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from transformers_egrm.engines.dialects import DIALECTS, Ask, Dialect, Row, Written
from transformers_egrm.engines.engine import HttpEngine
from transformers_egrm.engines.wire import Client, Failure
from transformers_egrm.modeling.engine_flops_egrm import CostModel
from transformers_egrm.modeling.errors_egrm import ConfigError, EngineError, InputError, UnsupportedModelError
from transformers_egrm.modeling.verdict_masks_egrm import is_thinking_tag


TOKEN_VARIABLE = "EGRM_ENGINE_TOKEN"
"""Environment variable with the token that a server asks for."""
_TRIAL_TEXT = "The answer is"
_TRIAL_TOKENS = 12
_HOT = 2.0  # the highest temperature that every server takes


@dataclass(frozen=True)
class Address:
    """Where a server is, and how it is asked: `[KIND+]http://HOST:PORT[/PATH][?SETTING=VALUE&…][#MODEL]`."""

    url: str
    kind: str | None = None
    """Of `DIALECTS`; None: found out."""
    model: str | None = None
    """Its name on the server; None: the only one there is."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of `Client`: `concurrency`, `timeout_s`, `tries`."""
    seeds: bool = True
    """Whether requests have seeds."""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read an address.

        Raises:
            ConfigError: It is none, or names an unknown kind or setting.
        """
        parts = urlsplit(text)
        kind, _, scheme = parts.scheme.rpartition("+")
        if scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"An engine's address is http://HOST:PORT, got {text!r}.",
                              f"A kind of server may come first, as in {next(iter(DIALECTS))}+http://127.0.0.1:8000.")  # fmt: skip
        if kind and kind not in DIALECTS:
            raise ConfigError(f"A server is one of {', '.join(DIALECTS)}, got {kind!r} in {text!r}.")
        readers: dict[str, Callable[[str], Any]] = {
            "concurrency": int,
            "timeout_s": float,
            "tries": int,
            "seeds": {"yes": True, "no": False}.__getitem__,
        }
        settings = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in readers:
                raise ConfigError(f"An engine's settings are {', '.join(readers)}, got {name!r} in {text!r}.")
            try:
                settings[name] = readers[name](value)
            except (ValueError, KeyError):
                expected = "yes or no" if name == "seeds" else "a number"
                raise ConfigError(f"`{name}` must be {expected}, got {value!r} in {text!r}.") from None
        # Whether an address ends in /v1 or not, both are meant alike.
        path = parts.path.rstrip("/").removesuffix("/v1")
        seeds = settings.pop("seeds", True)
        return cls(f"{scheme}://{parts.netloc}{path}", kind or None, parts.fragment or None, settings, seeds)


def connect(address: str, processor: Any, cost: CostModel) -> HttpEngine:
    """An engine on the server at an address, after a few short requests that try out what it can do.

    Args:
        address: As `Address.parse` reads it. The environment variable EGRM_ENGINE_TOKEN holds a token, if one is needed.
        processor: An `EGRMProcessor` of the same generator: its tokenizer must be the server's.
        cost: Sizes of the generator.

    Raises:
        ConfigError: The address is wrong, or the server has no model of that name.
        EngineError: The server cannot be reached, or does not answer as its kind does.
        UnsupportedModelError: Its answers cannot tell what judging needs.
    """
    place = Address.parse(address)
    token, settings = os.environ.get(TOKEN_VARIABLE), place.settings
    client = Client(place.url, token=token, **settings)
    models = _models(client)
    kind = DIALECTS[place.kind or _find_kind(client, models)]
    if kind.concurrency is not None:
        client = Client(place.url, token=token, **{**settings, "concurrency": kind.concurrency})
    texts = _Texts(processor.tokenizer)
    dialect = kind(_name_of(place, models), texts.text_of, texts.ids_of)
    if not dialect.tells_ids:
        _need_plain_thoughts(dialect, processor)
    return try_out(HttpEngine(client, dialect, cost, seeds=place.seeds), processor.tokenizer(_TRIAL_TEXT).input_ids)


def _models(client: Client) -> list[dict[str, Any]]:
    found = client.get("/v1/models")
    models = found.get("data") if isinstance(found, dict) else None
    if not isinstance(models, list):
        raise EngineError(f"{client.url}/v1/models must list models, got {str(found)[:200]}.",
                          "Check that an OpenAI-style server runs there.")  # fmt: skip
    return models


def _find_kind(client: Client, models: Sequence[dict[str, Any]]) -> str:
    for owner in (model.get("owned_by") for model in models):
        if owner in DIALECTS:
            return str(owner)
    page = client.get("/openapi.json")
    paths = page.get("paths", {}) if isinstance(page, dict) else {}
    return "transformers" if "/load_model" in paths and "/reset" in paths else "openai"


def _name_of(place: Address, models: Sequence[dict[str, Any]]) -> str:
    names = [str(model.get("id")) for model in models]
    if place.model is not None:
        if place.model not in names:
            raise ConfigError(f"The server has no model {place.model!r}, but {', '.join(names) or 'none'}.")
        return place.model
    if len(names) != 1:
        raise ConfigError(f"The server has {len(names)} models: {', '.join(names[:8])}.",
                          "Name one after a #, as in http://127.0.0.1:8000#NAME.")  # fmt: skip
    return names[0]


class _Texts:
    # For servers that take or give text: what their tokenizer, which is this one, makes of it.

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def ids_of(self, text: str) -> list[int]:
        """Of what was written: nothing is added."""
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def text_of(self, ids: Sequence[int]) -> str:
        """The text that is read as these ids. A start token is left out where the tokenizer adds it by itself."""
        for start in (0, 1):
            text = self.tokenizer.decode(ids[start:], clean_up_tokenization_spaces=False)
            if self.tokenizer(text).input_ids == list(ids):
                return text
        raise InputError(
            "The engine takes prompts as text, and this prompt has no text that its tokenizer reads as the same tokens: it "
            "spells a control token, or was cut inside a word.",
            "Use an engine that takes token ids: vLLM, SGLang, TensorRT-LLM or llama.cpp.",
        )


def _need_plain_thoughts(dialect: Dialect, processor: Any) -> None:
    # Where a thought ends decides what its verdict is.
    marks = {mark for pair in processor.task().thought_marks for mark in pair}
    control = [token for token in processor.tokenizer.all_special_tokens if token in marks or is_thinking_tag(token)]
    if control:
        raise UnsupportedModelError(
            f"A server of kind {dialect.name} answers with text without control tokens, but {', '.join(control)} tell where "
            "a thought of this generator ends.",
            "Use an engine that answers with token ids: vLLM, SGLang, TensorRT-LLM or llama.cpp.",
        )


@dataclass(frozen=True)
class _Trial:
    # What a few draws showed.
    greedy: Written
    same_seed: tuple[Written, Written]
    other_seeds: tuple[Written, ...]


def try_out(engine: HttpEngine, prompt: Sequence[int]) -> HttpEngine:
    """The engine with the abilities that its server's answers bear out.

    Args:
        engine: Of a server that was never asked.
        prompt: A few plain tokens.

    Raises:
        EngineError: It does not answer as its kind does, or draws the same whatever the temperature.
    """
    trial = _draws(engine, prompt)
    hot = (*trial.same_seed, *trial.other_seeds)
    if all(row.tokens == trial.greedy.tokens for row in hot):
        raise EngineError(
            f"{engine.client.url} writes the same at temperature {_HOT:g} as at 0, {len(hot)} times: it seems to ignore what "
            "a request asks for.",
            "`transformers serve` does so with --continuous-batching; start it without.",
        )
    first, again = trial.same_seed
    repeats = first.tokens == again.tokens and any(row.tokens != first.tokens for row in trial.other_seeds)
    can = set(engine.dialect.can)
    if "logits" in can and not _reads(engine, prompt, trial.greedy.tokens[0]):
        can -= {"logits", "restrict"}
    if "log_probs" in can and not ("logits" in can and _tells_log_probs(engine, prompt)):
        can -= {"log_probs"}
    return HttpEngine(engine.client, engine.dialect, engine.cost, frozenset(can), repeats, engine.seeds)


def _draws(engine: HttpEngine, prompt: Sequence[int]) -> _Trial:
    # One after the other: a server may seed itself, not the request.
    plan = ((0.0, 1), (_HOT, 1), (_HOT, 1), (_HOT, 2), (_HOT, 3), (_HOT, 4))
    rows = [Row(temperature, 1.0, seed if engine.seeds else None) for temperature, seed in plan]
    drawn = []
    for row in rows:
        ((written,),) = engine.draw([Ask(tuple(prompt), (row,), _TRIAL_TOKENS, ())])
        if isinstance(written, Failure):
            raise EngineError(f"{engine.client.url} was taken for a server of kind {engine.dialect.name}, but did not "
                              f"answer as one. {written.reason}", "Name its kind, as in vllm+http://…")  # fmt: skip
        drawn.append(written)
    if not drawn[0].tokens:  # at a high temperature a text may end before it began
        raise EngineError(f"{engine.client.url} wrote nothing after {_TRIAL_TEXT!r}.")
    return _Trial(drawn[0], (drawn[1], drawn[2]), tuple(drawn[3:]))


def _reads(engine: HttpEngine, prompt: Sequence[int], likeliest: int) -> bool:
    # The token drawn at temperature 0 is the likeliest of all.
    other = next(token for token in (1, 2) if token != likeliest)
    try:
        ((first, second),) = engine.read([prompt], [likeliest, other], [float("inf")]).tolist()
    except EngineError:
        return False
    return first >= second  # False for NaN


def _tells_log_probs(engine: HttpEngine, prompt: Sequence[int]) -> bool:
    # Of a token drawn at another temperature it must tell what `read` says, at temperature 1.
    for _ in range(3):  # a text may end before it began
        ((drawn,),) = engine.draw([Ask(tuple(prompt), (Row(_HOT, 1.0, None),), 1, (), log_probs=True)])
        if isinstance(drawn, Failure):
            return False
        if drawn.log_probs:
            ((read,),) = engine.read([prompt], drawn.tokens, [float("inf")]).tolist()
            return abs(read - drawn.log_probs[0]) < 1e-2 * max(1.0, abs(read))
    return False


__all__ = ["TOKEN_VARIABLE", "Address", "connect", "try_out"]

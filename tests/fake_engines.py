"""Servers that answer as vLLM, SGLang, TensorRT-LLM, llama.cpp, `transformers serve` and a plain OpenAI-style one do.

They are written from those servers' own schemas, share no code with the engine under test, and really run the generator they
are given, so that what they say is true. A field that the real server would refuse is refused here.
"""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


_OPENAI = {"model", "prompt", "max_tokens", "n", "temperature", "top_p", "seed", "logprobs", "stop", "stream", "echo",
           "presence_penalty", "frequency_penalty", "logit_bias", "best_of", "suffix", "user", "stream_options"}  # fmt: skip
_VLLM = _OPENAI - {"best_of"} | {
    "use_beam_search", "top_k", "min_p", "repetition_penalty", "length_penalty", "stop_token_ids", "ignore_eos",
    "include_stop_str_in_output", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens",
    "truncate_prompt_tokens", "allowed_token_ids", "prompt_logprobs", "logprob_token_ids", "bad_words",
    "add_special_tokens", "return_tokens_as_token_ids", "return_token_ids", "cache_salt",
}  # fmt: skip
_TENSORRT = _OPENAI | {
    "lora_request", "prompt_ignore_length", "use_beam_search", "top_k", "top_p_min", "min_p", "repetition_penalty",
    "length_penalty", "early_stopping", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "return_context_logits",
    "detokenize", "add_special_tokens", "response_format", "priority",
}  # fmt: skip
_TRANSFORMERS = _OPENAI | {"generation_config"}
_SGLANG = {"text", "input_ids", "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num",
           "token_ids_logprob", "return_text_in_logprobs", "stream", "return_hidden_states", "rid"}  # fmt: skip
_SGLANG_ROW = {"max_new_tokens", "stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
               "presence_penalty", "repetition_penalty", "min_new_tokens", "n", "ignore_eos", "skip_special_tokens",
               "no_stop_trim", "logit_bias", "sampling_seed", "regex", "json_schema"}  # fmt: skip
_LLAMA_SAMPLERS = ("dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.status, self.body = status, body


class Words:
    """A generator and a tokenizer, and how a server draws from them; one request at a time."""

    def __init__(self, generator: Any, tokenizer: Any) -> None:
        self.generator, self.tokenizer, self.lock = generator, tokenizer, threading.Lock()
        self.known: dict[tuple[int, ...], torch.Tensor] = {}  # a prefix cache
        own = generator.config.eos_token_id
        self.eos = {own} if isinstance(own, int) else set(own)  # what the server itself ends a row by
        self.passes = 0

    def scores(self, ids: Sequence[int]) -> torch.Tensor:
        """[V] raw log-probabilities of the next token, at temperature 1."""
        key = tuple(ids)
        if key not in self.known:
            self.passes += 1
            with torch.no_grad():
                logits = self.generator(input_ids=torch.tensor([key])).logits[0, -1]
            self.known[key] = logits.double().log_softmax(-1)
        return self.known[key]

    def write(
        self, prompt: Sequence[int], budget: int, temperature: float, top_p: float, seed: int | None, ends: set[int],
        order: Sequence[str] = ("temperature", "top_p"),
    ) -> tuple[list[int], list[float], bool]:  # fmt: skip
        """Drawn tokens with the end token, their raw log-probabilities, and whether an end token came."""
        ids, scores, random = list(prompt), [], torch.Generator()
        random.seed() if seed is None else random.manual_seed(seed)
        while len(scores) < budget:
            raw = self.scores(ids)
            token = int(raw.argmax()) if temperature == 0 else self._draw(raw, temperature, top_p, random, order)
            ids.append(token)
            scores.append(float(raw[token]))
            if token in ends:
                return ids[len(prompt) :], scores, True
        return ids[len(prompt) :], scores, False

    def _draw(self, scores: torch.Tensor, temperature: float, top_p: float, random: Any, order: Sequence[str]) -> int:
        for step in order:
            if step == "temperature":
                scores = scores / temperature
            elif step == "top_p":
                probs, places = scores.softmax(-1).sort(descending=True)
                scores = scores.clone()
                scores[places[probs.cumsum(-1) - probs >= top_p]] = -math.inf
        return int(torch.multinomial(scores.softmax(-1), 1, generator=random))

    def text(self, ids: Sequence[int]) -> str:
        """As a server shows what was written."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)


class FakeServer:
    """One of the servers, listening on a free port.

    Attributes:
        asked: (path, body) of every POST.
        faults: What the next POSTs meet before they are answered, each once.
    """

    def __init__(self, kind: str, generator: Any, tokenizer: Any, name: str = "judge") -> None:
        self.kind, self.words, self.name = kind, Words(generator, tokenizer), name
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.faults: list[Callable[[BaseHTTPRequestHandler], bool]] = []
        self.token: str | None = None
        self.port = 0
        self.connections: set[Any] = set()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        self.http = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self.http.daemon_threads, self.port = True, self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def kill(self) -> None:
        """Die as a process does: every connection is reset, and no one listens."""
        self.http.shutdown()
        self.http.server_close()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def models(self) -> dict[str, Any]:
        owner = {"transformers": "local", "openai": "someone"}.get(self.kind, self.kind)
        own = {"id": self.name, "object": "model", "created": 1, "owned_by": owner}
        more = {"vllm": {"root": self.name, "parent": None, "max_model_len": 1024, "permission": []},
                "sglang": {"root": self.name, "parent": None, "max_model_len": 1024},
                "llamacpp": {"meta": {"vocab_type": 1, "n_vocab": 400, "n_ctx_train": 1024}}}  # fmt: skip
        return {"object": "list", "data": [own | more.get(self.kind, {})]}

    def get(self, path: str) -> dict[str, Any]:
        if path == "/v1/models":
            return self.models()
        if path == "/openapi.json" and self.kind == "transformers":
            return {
                "openapi": "3.1.0",
                "paths": {"/v1/completions": {}, "/load_model": {}, "/reset": {}, "/health": {}},
            }
        raise Refused(404, {"detail": "Not Found"})

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answers = {
            ("vllm", "/v1/completions"): self._vllm, ("tensorrt_llm", "/v1/completions"): self._tensorrt,
            ("openai", "/v1/completions"): self._openai, ("transformers", "/v1/completions"): self._transformers,
            ("sglang", "/generate"): self._sglang, ("llamacpp", "/completion"): self._llama,
        }  # fmt: skip
        if (self.kind, path) not in answers:
            raise Refused(404, {"detail": "Not Found"})
        with self.words.lock:
            return answers[self.kind, path](body)

    # OpenAI's schema and its relatives

    def _openai(self, body: dict[str, Any]) -> dict[str, Any]:
        _known(body, _OPENAI)
        prompt = body["prompt"]
        ids, _, stopped = self.words.write(
            prompt, body["max_tokens"], body["temperature"], body["top_p"], body.get("seed"), self.words.eos
        )
        return self._completion(prompt, ids, stopped, {"text": self.words.text(ids), "logprobs": None})

    def _completion(
        self, prompt: Sequence[int], ids: list[int], stopped: bool, choice: dict[str, Any]
    ) -> dict[str, Any]:
        usage = {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + len(ids), "completion_tokens": len(ids)}
        reason = {"finish_reason": "stop" if stopped else "length"}
        return {"id": "cmpl-1", "object": "text_completion", "created": int(time.time()), "model": self.name,
                "choices": [{"index": 0, **choice, **reason}], "usage": usage}  # fmt: skip

    def _vllm(self, body: dict[str, Any]) -> dict[str, Any]:
        _known(body, _VLLM)
        assert "prompt_logprobs" not in body, "it would disable the prefix cache"
        prompt, named = body["prompt"], body.get("logprob_token_ids")
        if named is not None and (len(named) > 128 or body.get("logprobs") != len(named)):
            raise Refused(400, _vllm_error("logprobs must equal len(logprob_token_ids), at most 128"))
        if named is not None and not all(0 <= token < 400 for token in named):
            raise Refused(400, _vllm_error("token_id(s) in logprob_token_ids contain out-of-vocab token ids"))
        if len(prompt) + body["max_tokens"] > 1024:
            raise Refused(400, _vllm_error("This model's maximum context length is 1024 tokens."))
        if not 0 <= body["temperature"] <= 2:
            raise Refused(400, _vllm_error("temperature must be in [0, 2]"))
        # What a request leaves out comes from the model's generation_config.json: here a top-k that no judge wants.
        assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (0, 0.0, 1.0)
        ends = {*body.get("stop_token_ids", ()), *(() if body.get("ignore_eos") else self.words.eos)}
        ids, scores, stopped = self.words.write(
            prompt, body["max_tokens"], body["temperature"], body["top_p"], body.get("seed"), ends
        )
        told = None
        if body.get("logprobs") is not None:
            spell = (lambda token: f"token_id:{token}") if body.get("return_tokens_as_token_ids") else str
            told = {"text_offset": [0] * len(ids), "tokens": [spell(token) for token in ids], "token_logprobs": scores,
                    "top_logprobs": []}  # fmt: skip
            for at in range(len(ids)):
                raw = self.words.scores([*prompt, *ids[:at]])
                told["top_logprobs"].append({spell(token): max(float(raw[token]), -9999.0)
                                             for token in (ids[at], *(named or ()))})  # fmt: skip
        shown = ids[:-1] if stopped else ids
        choice = {"text": self.words.text(shown), "logprobs": told, "stop_reason": ids[-1] if stopped else None,
                  "token_ids": ids if body.get("return_token_ids") else None, "prompt_logprobs": None,
                  "prompt_token_ids": prompt if body.get("return_token_ids") else None, "routed_experts": None}  # fmt: skip
        answer = self._completion(prompt, ids, stopped, choice)
        answer["usage"]["prompt_tokens_details"] = None
        return answer | {"service_tier": None, "system_fingerprint": None, "kv_transfer_params": None}

    def _tensorrt(self, body: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(body) - _TENSORRT):
            raise Refused(400, {"object": "error", "message": f"Extra inputs are not permitted: {unknown}",
                                "type": "BadRequestError", "param": None, "code": 400})  # fmt: skip
        prompt = body["prompt"]
        ends = {*body.get("stop_token_ids", ()), *(() if body.get("ignore_eos") else self.words.eos)}
        ids, _, stopped = self.words.write(
            prompt, body["max_tokens"], body["temperature"], body["top_p"], body.get("seed"), ends
        )
        plain = body.get("detokenize", True)
        shown = ids if body.get("include_stop_str_in_output") or not stopped else ids[:-1]
        choice = {"text": self.words.text(shown) if plain else "", "token_ids": None if plain else shown, "logprobs": None,
                  "context_logits": None, "stop_reason": ids[-1] if stopped else None, "disaggregated_params": None}  # fmt: skip
        return self._completion(prompt, ids, stopped, choice) | {"prompt_token_ids": None}

    def _transformers(self, body: dict[str, Any]) -> dict[str, Any]:
        if unknown := set(body) - _TRANSFORMERS:
            raise Refused(422, {"detail": f"Unexpected fields in the request: {unknown}"})
        if not isinstance(body.get("prompt"), str):
            raise Refused(400, {"detail": "prompt must be a string."})
        if body.get("model") not in (None, self.name):
            raise Refused(400, {"detail": f"Server is pinned to '{self.name}'; requested '{body['model']}'."})
        prompt = self.words.tokenizer(body["prompt"]).input_ids
        # Without a configuration of its own a request would be sampled as the model's says: greedily, 1024 tokens.
        settings = json.loads(body["generation_config"])
        assert settings["do_sample"] is False or settings["top_k"] == 0, "top_k=50 would be added silently"
        ends = settings["eos_token_id"]
        ends = {ends} if isinstance(ends, int) else set(ends or ())
        temperature = settings["temperature"] if settings["do_sample"] else 0.0
        budget = body["max_tokens"]
        ids, _, _ = self.words.write(prompt, budget, temperature, settings.get("top_p", 1.0), body.get("seed"), ends)
        reason = "length" if len(ids) >= budget else "stop"
        usage = {"completion_tokens": len(ids), "prompt_tokens": len(prompt), "total_tokens": len(prompt) + len(ids)}
        return {"id": "1", "choices": [{"finish_reason": reason, "index": 0, "text": self.words.text(ids)}],
                "created": int(time.time()), "model": self.name, "object": "text_completion", "usage": usage}  # fmt: skip

    # SGLang's and llama.cpp's own

    def _sglang(self, body: dict[str, Any]) -> Any:
        _known(body, _SGLANG)
        many = isinstance(body["input_ids"][0], list)
        prompts = body["input_ids"] if many else [body["input_ids"]]
        params = body["sampling_params"] if isinstance(body["sampling_params"], list) else [body["sampling_params"]]
        if many and any(isinstance(token, int) for token in body.get("token_ids_logprob") or ()):
            raise Refused(400, {"error": {"message": "The length of token_ids_logprob should be the batch size."}})
        assert len(prompts) == len(params), "one set of parameters for each prompt"
        rows = [self._sglang_row(body, *pair) for pair in zip(prompts, params, strict=True)]
        return rows if many else rows[0]

    def _sglang_row(self, body: dict[str, Any], prompt: list[int], params: dict[str, Any]) -> dict[str, Any]:
        _known(params, _SGLANG_ROW)
        ends = {*(params.get("stop_token_ids") or ()), *(() if params.get("ignore_eos") else self.words.eos)}
        temperature = params.get("temperature", 1.0)
        ids, _, stopped = self.words.write(
            prompt, params["max_new_tokens"], temperature, params["top_p"], params.get("sampling_seed"), ends
        )
        reason = {"type": "stop", "matched": ids[-1]} if stopped else {"type": "length", "length": len(ids)}
        told = {"id": "1", "finish_reason": reason, "prompt_tokens": len(prompt), "weight_version": "default",
                "num_retractions": 0, "completion_tokens": len(ids), "cached_tokens": 0, "e2e_latency": 0.01}  # fmt: skip
        if body.get("return_logprob"):
            # After temperature, as it is without SGLANG_RETURN_ORIGINAL_LOGPROB.
            warped = [
                (self.words.scores([*prompt, *ids[:at]]) / (temperature or 1.0)).log_softmax(-1)
                for at in range(len(ids))
            ]
            told["output_token_logprobs"] = [[float(w[t]), t, None] for w, t in zip(warped, ids, strict=True)]
            told["input_token_logprobs"] = []
            if (named := body.get("token_ids_logprob")) is not None:
                told["input_token_ids_logprobs"] = []
                told["output_token_ids_logprobs"] = [[[float(w[t]), t, None] for t in named] for w in warped]
        return {"text": self.words.text(ids), "output_ids": ids, "meta_info": told}

    def _llama(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        assert all(isinstance(token, int) for token in prompt), "a text would get a start token of its own"
        # Its own order puts the nucleus before the temperature, and has a top-k of 40 and a min-p of 0.05.
        order = body.get("samplers", _LLAMA_SAMPLERS)
        assert body.get("cache_prompt", True) is True
        ids, _, stopped = self.words.write(
            prompt, body["n_predict"], body["temperature"], body["top_p"], body.get("seed"), self.words.eos, order
        )
        return {
            "index": 0, "content": self.words.text(ids), "tokens": ids if body.get("return_tokens") else [], "id_slot": 0,
            "stop": True, "model": self.name, "tokens_predicted": len(ids), "tokens_evaluated": len(prompt),
            "generation_settings": {}, "prompt": "", "has_new_line": False, "truncated": False,
            "stop_type": "eos" if stopped else "limit", "stopping_word": "", "tokens_cached": 0, "timings": {},
        }  # fmt: skip


def _known(body: dict[str, Any], fields: set[str]) -> None:
    if unknown := sorted(set(body) - fields):
        raise Refused(400, {"error": {"message": f"Unknown fields: {unknown}"}})


def _vllm_error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            server.connections.add(self.connection)

        def handle(self) -> None:
            with suppress(OSError):  # killed, or whoever asked has gone
                super().handle()
            server.connections.discard(self.connection)

        def do_GET(self) -> None:
            self._answer(lambda: server.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if server.token is not None and self.headers.get("Authorization") != f"Bearer {server.token}":
                self.reply(401, {"error": "Unauthorized"})
                return
            server.asked.append((self.path, body))
            if server.faults and not server.faults.pop(0)(self):
                return
            self._answer(lambda: server.post(self.path, body))

        def _answer(self, answer: Callable[[], Any]) -> None:
            try:
                status, body = 200, answer()
            except Refused as refused:
                status, body = refused.status, refused.body
            self.reply(status, body)

        def reply(self, status: int, body: Any, **headers: str) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


# -- what a request may meet: each says whether it is answered all the same -------------------------------------------------


def refused_with(status: int, **headers: str) -> Callable[[Any], bool]:
    """An answer of this status."""

    def fault(handler: Any) -> bool:
        handler.reply(status, {"error": {"message": "not now"}}, **headers)
        return False

    return fault


def hung_up(handler: Any) -> bool:
    """The connection ends without an answer."""
    handler.close_connection = True
    return False


def garbled(handler: Any) -> bool:
    """An answer that is no JSON."""
    handler.send_response(200)
    handler.send_header("Content-Length", "4")
    handler.end_headers()
    handler.wfile.write(b"oops")
    return False


def stalled(handler: Any) -> bool:
    """Nothing comes, for longer than any test takes."""
    time.sleep(30)
    return False


def trickling(handler: Any) -> bool:
    """One byte at a time, so that no single read ever waits long."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(3000):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.01)
    return False


@contextmanager
def fake_server(kind: str, generator: Any, tokenizer: Any):
    """A `FakeServer` while the block runs."""
    server = FakeServer(kind, generator, tokenizer)
    try:
        yield server
    finally:
        server.kill()


def word_tokenizer(vocab_size: int = 400, eos: int = 4) -> PreTrainedTokenizerFast:
    """A tokenizer that spells token 17 as `t017`: any ids are a text that is read as the same ids."""
    vocabulary = {f"t{token:03}": token for token in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="t003"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=f"t{eos:03}", unk_token="t003")

"""An engine over HTTP on a fake server, and its parts as the tests need them."""

from collections.abc import Sequence
from typing import Any

from fake_engines import FakeServer, word_tokenizer

from transformers_egrm.engines.connecting import _Texts
from transformers_egrm.engines.dialects import DIALECTS
from transformers_egrm.engines.engine import HttpEngine
from transformers_egrm.engines.wire import Client


SERVERS: list[FakeServer] = []
"""That a test has started and not ended."""


def fake_engine(kind: str, generator: Any, cost: Any, tokenizer: Any = None, **settings: Any) -> HttpEngine:
    """An engine whose server is the newest of `SERVERS`; it was not tried out."""
    tokenizer = tokenizer or word_tokenizer()
    SERVERS.append(FakeServer(kind, generator, tokenizer))
    texts = _Texts(tokenizer)
    dialect = DIALECTS[kind](SERVERS[-1].name, texts.text_of, texts.ids_of)
    return HttpEngine(Client(SERVERS[-1].url, **settings), dialect, cost)


def bodies(server: FakeServer) -> Sequence[dict[str, Any]]:
    """What the server was asked, in order."""
    return [body for _, body in server.asked]

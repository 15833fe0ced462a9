"""A tokenizer for small judges: byte-level BPE, numbers in pairs of digits, with a chat template."""

from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


PAD, END, TURNS = "<|pad|>", "<|end|>", {role: f"<|{role}|>" for role in ("system", "user", "assistant")}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# A word with the space before it, at most two digits, or a run of anything else: no merge crosses these borders. A small
# model compares numbers below a hundred as wholes; digit by digit it has to learn to spell first.
_PIECES = Regex(r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+")


def train_tokenizer(
    texts: Iterable[str], vocab_size: int = 1024, phrases: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train on texts as the judge will read and write them.

    Args:
        texts: Any number of texts.
        vocab_size: Most entries, the 256 bytes and five control tokens included; phrases come on top.
        phrases: Texts that become one token each: what every judge prompt repeats is then read in a few tokens.

    Returns:
        A tokenizer that reads any text, with pad and end tokens and a chat template for system, user and assistant.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([  # pyright: ignore[reportAttributeAccessIssue]
        pre_tokenizers.Split(_PIECES, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[PAD, END, *TURNS.values()], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, additional_special_tokens=list(TURNS.values()),
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    wrapped.add_tokens(list(phrases))
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


__all__ = ["train_tokenizer"]

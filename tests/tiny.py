"""Tiny random components: real architectures, real tokenizers, no download."""

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)


CORPUS = (
    "The answer is 42. Rate the response from 0 to 10.",
    "Which response is better, A or B? Verdict: A. Verdict: B. Verdict: tie.",
    "Question: what is 2 + 3? Answer: 2 + 3 = 5. correct incorrect",
    "user assistant system think step by step and then judge the reply",
)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def tiny_tokenizer(chat_template: bool = True, digits: bool = True, vocab_size: int = 400) -> PreTrainedTokenizerFast:
    """A byte-level BPE that encodes any text; with ChatML-like control tokens.

    Args:
        chat_template: Whether it has a chat template (False: like a base model, without pad token too).
        digits: Whether every digit is a token of its own, as in Gemma or Qwen.
        vocab_size: Upper bound on the number of tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    split = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<bos>", "<eos>", "<pad>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    bos = tokenizer.token_to_id("<bos>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", bos)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<|im_end|>" if chat_template else "<eos>",
        pad_token="<pad>" if chat_template else None, padding_side="left",
    )  # fmt: skip
    if chat_template:
        fast.chat_template = CHAT_TEMPLATE
    return fast


@cache
def tiny_scorer_tokenizer(vocab_size: int = 300) -> PreTrainedTokenizerFast:
    """A BERT-like pair tokenizer: [CLS] a [SEP] b [SEP]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        CORPUS * 4, trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)
    )
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", cls), ("[SEP]", sep)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=128,
    )  # fmt: skip


GENERATORS = ("llama", "qwen3", "gemma3", "mistral")


def tiny_generator(family: str = "llama", vocab_size: int = 400, seed: int = 0, **overrides: Any):
    """A random causal LM of one family, float32, eval mode. Gemma3 and Mistral have a sliding window of 8."""
    common: dict[str, Any] = {
        "vocab_size": vocab_size, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 1024,
        "bos_token_id": 0, "eos_token_id": 4, "pad_token_id": 2, "initializer_range": 0.2,
    }  # fmt: skip
    families: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
        "llama": (LlamaConfig, {}),
        "qwen3": (Qwen3Config, {"tie_word_embeddings": True}),
        "gemma3": (Gemma3TextConfig, {
            "sliding_window": 8, "query_pre_attn_scalar": 8, "final_logit_softcapping": 30.0,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        }),
        "mistral": (MistralConfig, {"sliding_window": 8}),
    }  # fmt: skip
    config_class, own = families[family]
    config = config_class(**{**common, **own, **overrides})
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).eval()


def tiny_scorer(vocab_size: int = 300, seed: int = 1) -> BertModel:
    """A random BERT encoder, float32, eval mode."""
    torch.manual_seed(seed)
    return BertModel(
        BertConfig(
            vocab_size=vocab_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=128, initializer_range=0.2,
        )
    ).eval()  # fmt: skip

"""How much texts repeat each other."""

import math
from collections.abc import Sequence

from transformers_egrm.extras import import_extra
from transformers_egrm.modeling.errors_egrm import InputError


def self_bleu(texts: Sequence[str], max_order: int = 4, tokenize: str = "13a") -> float:
    """How much texts repeat each other: mean BLEU of each against all others, in [0, 1].

    Texts shorter than `max_order` tokens are measured on the n-grams they have. An empty text scores 0.

    Args:
        texts: At least two.
        max_order: Longest n-gram.
        tokenize: sacrebleu's name of a tokenizer; `char` for texts of a few characters.

    Raises:
        InputError: There are fewer than two texts.
        MissingExtraError: sacrebleu is not installed.

    Source:
        Self-BLEU: https://arxiv.org/abs/1802.01886; BLEU as in https://arxiv.org/abs/1804.08771.
    """
    if len(texts) < 2:
        raise InputError(f"Self-BLEU compares texts with each other and needs two or more, got {len(texts)}.")
    bleu = import_extra("sacrebleu.metrics", "eval").BLEU(
        max_ngram_order=max_order, tokenize=tokenize, effective_order=True
    )
    scores = [
        bleu.sentence_score(text, [*texts[:index], *texts[index + 1 :]]).score for index, text in enumerate(texts)
    ]
    return min(1.0, math.fsum(scores) / len(scores) / 100)


__all__ = ["self_bleu"]

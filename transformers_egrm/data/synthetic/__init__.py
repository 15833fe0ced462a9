"""A synthetic judging world with ground truth, and the tokenizer for it."""

from transformers_egrm.data.synthetic.tokenizer import train_tokenizer
from transformers_egrm.data.synthetic.world import Example, examples, groups


__all__ = ["Example", "examples", "groups", "train_tokenizer"]

"""A synthetic judging world with ground truth, and the tokenizer for it."""

from transformers_egrm.data.synthetic.splits import SPLITS, STREAMS
from transformers_egrm.data.synthetic.tokenizer import train_tokenizer
from transformers_egrm.data.synthetic.world import Census, Example, census, examples, groups


__all__ = ["SPLITS", "STREAMS", "Census", "Example", "census", "examples", "groups", "train_tokenizer"]

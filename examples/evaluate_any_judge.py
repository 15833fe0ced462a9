"""Any function is a judge: three lines, and a benchmark's figures with intervals, biases and rivals.

Run:
    python examples/evaluate_any_judge.py examples/pairs.jsonl

It prints a report that starts with the accuracy over the pairs of the file and its 95 % interval.
"""

import sys

from transformers_egrm.evaluation.benchmarks import load_benchmark
from transformers_egrm.evaluation.benchmarks.reading import Data
from transformers_egrm.evaluation.judges import callable_judge
from transformers_egrm.evaluation.report import markdown, results_of
from transformers_egrm.evaluation.rivals import cheap_rivals
from transformers_egrm.evaluation.runner import evaluate


def worth(prompt: str, response: str) -> float:
    """A reward: how many of the answer's words stand in the question."""
    return len(set(response.lower().split()) & set(prompt.lower().split()))


if __name__ == "__main__":
    run = evaluate(load_benchmark("own"), Data(path=sys.argv[1]), callable_judge(worth))
    print(markdown(results_of(run, cheap_rivals())))

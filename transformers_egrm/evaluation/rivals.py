"""Judges that know nothing, and one that knows words: what a real judge must beat to be worth its cost."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from transformers_egrm.evaluation.asking import Ask, Judgement, Question, draw
from transformers_egrm.evaluation.judges import Judge
from transformers_egrm.extras import import_extra


class Longer(Judge):
    """The longer answer is better, by characters."""

    name = "longer"

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`."""
        return (Judgement(reward=float(len(ask.responses[0]))) for ask in asks)


class Shorter(Judge):
    """The shorter answer is better, by characters."""

    name = "shorter"

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`."""
        return (Judgement(reward=-float(len(ask.responses[0]))) for ask in asks)


class Constant(Judge):
    """All answers are alike."""

    name = "constant"

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`."""
        return (Judgement(reward=0.0) for _ in asks)


class Random(Judge):
    """A number drawn for each answer, from the seed and the ask's id.

    Args:
        seed: Of the draws.
    """

    name = "random"
    threshold = 0.5

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def describe(self) -> dict[str, Any]:
        """Name and seed."""
        return super().describe() | {"seed": self.seed}

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`."""
        return (Judgement(reward=draw(self.seed, f"random/{ask.id}")) for ask in asks)


class First(Judge):
    """Of two answers, the one that is shown first: in both orders together, a tie."""

    name = "first"
    asks = "pairs"

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`."""
        return (Judgement(reward=1.0) for _ in asks)


class Words(Judge):
    """TF-IDF of an answer's words with logistic regression on the labels, cross-validated by question.

    It learns from the benchmark's own labels: what it gets right can be told from words without understanding. Where
    answers are compared it learns from differences of two answers to one question, where they stand alone from answers
    and their truth. No question is judged by a model that saw its prompt.

    Args:
        folds: Of the cross-validation, at least 2.
        seed: Of the folds.
    """

    name = "TF-IDF"
    threshold = 0.0

    def __init__(self, folds: int = 5, seed: int = 0) -> None:
        self.folds, self.seed = folds, seed
        self._scores: dict[str, float | None] = {}

    def describe(self) -> dict[str, Any]:
        """Name, folds and seed."""
        return super().describe() | {"folds": self.folds, "seed": self.seed}

    def prepare(self, questions: Sequence[Question]) -> None:
        """Learn every fold, and score what was held out.

        Raises:
            MissingExtraError: scikit-learn is not installed.
        """
        text = import_extra("sklearn.feature_extraction.text", "eval")
        linear = import_extra("sklearn.linear_model", "eval")
        # The vocabulary is of all answers: it holds no label. A word seen once tells nothing about another answer.
        vectorizer = text.TfidfVectorizer(ngram_range=(1, 2), min_df=2, max_features=50_000, sublinear_tf=True)
        texts = [response for question in questions for response in question.responses]
        try:
            features = vectorizer.fit_transform(texts).tocsr()
        except ValueError:  # an empty vocabulary: no word stands in two answers
            return
        starts = np.cumsum([0, *(len(question.responses) for question in questions)])
        clusters = list(dict.fromkeys(question.question_id for question in questions))
        place = {cluster: draw(self.seed, f"fold/{cluster}") for cluster in clusters}
        ranked = {cluster: rank for rank, cluster in enumerate(sorted(clusters, key=place.__getitem__))}
        fold = np.array([ranked[question.question_id] % self.folds for question in questions])
        for held in range(self.folds):
            learned = self._learn(linear, features, questions, starts, np.flatnonzero(fold != held).tolist())
            for index in np.flatnonzero(fold == held).tolist():
                for response in range(len(questions[index].responses)):
                    score = None if learned is None else float(learned(features[starts[index] + response]))
                    self._scores[f"{questions[index].id}/{response}"] = score

    def judge(self, asks: Iterable[Ask]) -> Iterator[Judgement]:
        """See `Judge.judge`."""
        for ask in asks:
            score = self._scores.get(ask.id)
            if score is None:
                yield Judgement(reward=None, status="no_verdict", error="There were too few labels to learn from.")
            else:
                yield Judgement(reward=score)

    def _learn(self, linear: Any, features: Any, questions: Sequence[Question], starts: Any, chosen: Any) -> Any:
        differences, alone, labels = [], [], []
        for index in chosen:
            truths = questions[index].truths
            rows = [starts[index] + number for number in range(len(truths))]
            if len(rows) == 1:
                alone.append(rows[0])
                labels.append(truths[0])
            better = [(i, j) for i in range(len(rows)) for j in range(len(rows)) if truths[i] > truths[j]]
            differences += [(rows[i], rows[j]) for i, j in better[: 4 * len(rows)]]
        if differences:
            first, second = (np.array(side) for side in zip(*differences, strict=True))
            # Each difference in both directions: without an intercept, the two sides cannot be told from the order.
            sign = np.where(np.arange(len(first)) % 2 == 0, 1, -1)
            if len(first) < 2:
                return None
            x, y = (features[first] - features[second]).multiply(sign[:, None]).tocsr(), sign
            model = linear.LogisticRegression(fit_intercept=False, max_iter=1000).fit(x, y)
        else:
            middle = np.median(labels) if labels else 0.0
            y = np.array(labels) > (middle if middle < max(labels, default=0.0) else middle - 1e-9)
            if len(set(y.tolist())) < 2:
                return None
            model = linear.LogisticRegression(max_iter=1000).fit(features[alone], y)
        return lambda row: model.decision_function(row)[0]


def cheap_rivals(seed: int = 0) -> tuple[Judge, ...]:
    """Rivals that cost next to nothing."""
    return Longer(), Shorter(), Constant(), Random(seed), First(), Words(seed=seed)


BY_NAME = {
    "longer": Longer,
    "shorter": Shorter,
    "constant": Constant,
    "random": Random,
    "first": First,
    "words": Words,
}
"""Rivals as judges of their own, by their names on the command line."""

__all__ = ["BY_NAME", "Constant", "First", "Longer", "Random", "Shorter", "Words", "cheap_rivals"]

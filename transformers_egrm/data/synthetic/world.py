"""A judging world with ground truth: questions, responses to them, and how good each response is.

A question asks for one to four tasks of one domain. A response answers them in one of three styles and may be wrong in
some of them, wordy, or badly put. The truth counts: ten times the share of right parts, rounded, and three less where
all is right but badly put. The worked chain does every task itself, compares, counts, and so arrives at the truth.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from transformers_egrm.data.synthetic.splits import SPLITS, TRAINING_LEVEL, digest, membership
from transformers_egrm.data.synthetic.tasks import DOMAINS, Task
from transformers_egrm.modeling.errors_egrm import ConfigError


STYLES = ("concise", "detailed", "markdown")
KINDS = ("right", "subtly_wrong", "verbosely_wrong", "badly_presented")
LEVELS = {0: (1, (0, 0)), 1: (1, (1, 1)), 2: (1, (2, 3)), 3: (2, (1, 2)), 4: (3, (1, 2)), 5: (4, (2, 3))}
"""Difficulty -> (parts, least and most steps of each part). Level 0 is for training alone: copies and single sums."""
MIX = {1: 0.6, 2: 0.1, 3: 0.1, 4: 0.1, 5: 0.1}
"""Share of each difficulty, where none is given."""
MOST_DRAWS = 1000  # of questions that were asked before, until a stream counts as empty
BADLY_PUT = 3  # points that a right response loses when it is badly put
SLOPPY = ("uh dunno maybe {}", "{} whatever lol", "{} !!! easy !!!", "hmm {} or so who cares")
WORDY = (
    "I checked this twice and I am sure. ", "This is a well known kind of question. ",
    "Let me explain it in great detail. ", "Every expert would agree with me here. ",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Example:
    """One response to judge, with the truth about it."""

    question_id: str
    """The same for every response to a question in any names, words and order of parts, different for different ones."""
    domain: str
    """Key of `DOMAINS`."""
    difficulty: int
    """Key of `LEVELS`."""
    style: str
    """One of `STYLES`."""
    kind: str
    """One of `KINDS`."""
    prompt: str
    """The question."""
    response: str
    """What is judged."""
    verdict: int
    """The truth, 0 to 10."""
    chain: str
    """Worked reasoning that ends in the truth, without the verdict line."""

    def record(self) -> dict[str, str]:
        """What a judge may see of it."""
        return {"prompt": self.prompt, "response": self.response}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, before anybody answers."""

    domain: str
    difficulty: int
    tasks: tuple[Task, ...]

    @property
    def prompt(self) -> str:
        """The words."""
        if len(self.tasks) == 1:
            return self.tasks[0].question
        return " ".join(f"{_mark(place)} {task.question}" for place, task in enumerate(self.tasks))

    @property
    def key(self) -> str:
        """What it is, in any words."""
        return digest(task.identity for task in self.tasks)


def examples(
    split: str, seed: int = 0, *, mix: Mapping[int, float] | None = None, domains: Sequence[str] = tuple(DOMAINS)
) -> Iterator[Example]:
    """Stream responses with their truth. The same arguments give the same stream.

    Args:
        split: `train`, `calibration`, `test`, or `sealed` for published tables. What is worked out decides where a
            task belongs, so no two splits share one, in whatever words or as part of whatever question.
        seed: Which stream of the split. In training any number, and streams overlap. Of a held-out split 0 to
            `STREAMS - 1`: its streams share no task, and none asks a question twice in the same words.
        mix: Difficulty -> weight, by default `MIX`.
        domains: Which domains, each as often as the others.

    Raises:
        ConfigError: A split, stream, difficulty or domain is unknown, or a stream has no more questions.
    """
    for question, rng in _questions(split, seed, mix, domains):
        yield _respond(question, rng)


def groups(
    split: str, seed: int = 0, *, size: int = 2, mix: Mapping[int, float] | None = None,
    domains: Sequence[str] = tuple(DOMAINS),
) -> Iterator[tuple[Example, ...]]:  # fmt: skip
    """Stream questions with several responses each, of which the first is truly better than the second.

    Args:
        split: As in `examples`.
        seed: As in `examples`.
        size: Responses to a question, at least 2.
        mix: As in `examples`.
        domains: As in `examples`.

    Raises:
        ConfigError: As in `examples`, or `size` is too small.
    """
    if size < 2:
        raise ConfigError(f"A group needs at least 2 responses, got size={size}.")
    for question, rng in _questions(split, seed, mix, domains):
        while True:
            group = sorted((_respond(question, rng) for _ in range(size)), key=lambda e: -e.verdict)
            if group[0].verdict > group[-1].verdict:
                yield (group[0], group[-1], *group[1:-1])
                break


@dataclass(frozen=True, slots=True)
class Census:
    """How many different things some examples are about."""

    answers: int
    """Examples."""
    prompts: int
    """Different prompts among them."""
    questions: int
    """Different questions, in whatever words and names."""


def census(drawn: Iterable[Example]) -> dict[int, Census]:
    """What a table of figures should tell of its examples: how many questions there are, by difficulty.

    Args:
        drawn: Any examples.
    """
    found: dict[int, list[Example]] = {}
    for example in drawn:
        found.setdefault(example.difficulty, []).append(example)
    return {
        difficulty: Census(len(own), len({e.prompt for e in own}), len({e.question_id for e in own}))
        for difficulty, own in sorted(found.items())
    }


def _questions(
    split: str, seed: int, mix: Mapping[int, float] | None, domains: Sequence[str]
) -> Iterator[tuple[Question, Random]]:
    weights = dict(MIX if mix is None else mix)
    levels = [level for level in LEVELS if split == "train" or level != TRAINING_LEVEL]
    for name, given, known in (
        ("split", [split], SPLITS),
        (f"difficulty of {split}", weights, levels),
        ("domain", domains, DOMAINS),
    ):
        unknown = [str(value) for value in given if value not in known]
        if unknown or not given:
            raise ConfigError(
                f"Unknown {name} {', '.join(unknown) or 'none'}.", f"Known: {', '.join(map(str, known))}."
            )
    belongs, asked = membership(split, seed), set()
    for index in count():
        rng = Random(f"{split} {seed} {index}")
        domain, difficulty = rng.choice(domains), rng.choices(tuple(weights), tuple(weights.values()))[0]
        for _ in range(MOST_DRAWS):
            question = _question(rng, domain, difficulty, belongs)
            if question.prompt not in asked:
                break
        else:
            raise ConfigError(
                f"Stream {seed} of the {split} split has no more questions of difficulty {difficulty} in {domain} "
                f"after {index} in all.",
                "Draw fewer items, or from several streams.",
            )
        if split != "train":
            asked.add(question.prompt)
        yield question, rng


def _question(rng: Random, domain: str, difficulty: int, belongs: Callable[[str], bool]) -> Question:
    parts, (least, most) = LEVELS[difficulty]
    return Question(domain, difficulty, tuple(_task(rng, domain, least, most, belongs) for _ in range(parts)))


def _task(rng: Random, domain: str, least: int, most: int, belongs: Callable[[str], bool]) -> Task:
    steps = rng.randint(least, most)
    # Drills belong to training, all of them; of everything else each stream has a share.
    drawn = (DOMAINS[domain](rng, steps) for _ in count())
    return next(task for task in drawn if not steps or belongs(task.identity))


def _respond(question: Question, rng: Random) -> Example:
    tasks = question.tasks
    style, kind = rng.choice(STYLES), rng.choices(KINDS, (0.35, 0.3, 0.2, 0.15))[0]
    num_wrong = rng.randint(1, len(tasks)) if kind.endswith("wrong") else 0
    wrong = set(rng.sample(range(len(tasks)), num_wrong))
    said, shown = [], []
    for place, task in enumerate(tasks):
        answer, last = rng.choice(task.wrong) if place in wrong else (task.answer, task.working[-1])
        said.append(answer)
        shown.append(", ".join((*task.working[:-1], last)))
    response = _put(said, shown, style)
    if kind == "verbosely_wrong":
        response = rng.choice(WORDY) + response
    if kind == "badly_presented":
        response = rng.choice(SLOPPY).format(response)
    right = len(tasks) - num_wrong
    verdict = (20 * right + len(tasks)) // (2 * len(tasks)) - BADLY_PUT * (kind == "badly_presented")
    return Example(
        question.key, question.domain, question.difficulty, style, kind, question.prompt, response, verdict,
        _chain(tasks, said, wrong, kind == "badly_presented"),
    )  # fmt: skip


def _put(said: Sequence[str], shown: Sequence[str], style: str) -> str:
    # An answer always follows a space: the same word is then the same token wherever it stands.
    several = len(said) > 1
    parts = [
        (f"{_mark(place)} " if several else "", *part) for place, part in enumerate(zip(said, shown, strict=True))
    ]
    if style == "concise":
        return ", ".join(f"{mark}{answer}" for mark, answer, _ in parts) if several else f"It is {said[0]}."
    if style == "detailed":
        return " ".join(f"{mark}Work: {steps}. So it is {answer}." for mark, answer, steps in parts)
    return "\n".join(f"- **{mark}Answer:** {answer}" for mark, answer, _ in parts)


def _chain(tasks: Sequence[Task], said: Sequence[str], wrong: set[int], badly_put: bool) -> str:
    # Each claim is judged directly behind the right answer: an equal one has just been followed by `right`, so that comparing
    # is copying, which small models learn first. Asked in other words they stay at chance ten times as long.
    several, lines = len(tasks) > 1, []
    for place, (task, answer) in enumerate(zip(tasks, said, strict=True)):
        mark, judged = f"{_mark(place)} " if several else "", "wrong" if place in wrong else "right"
        lines.append(f"{mark}Work: {', '.join(task.working)}. So {task.answer} right, {answer} {judged}.")
    if several:
        lines.append(f"{len(tasks) - len(wrong)} of {len(tasks)} right.")
    return "\n".join((*lines, "Badly put.") if badly_put else lines)


def _mark(place: int) -> str:
    return f"{'abcd'[place]})"


__all__ = ["DOMAINS", "KINDS", "LEVELS", "MIX", "STYLES", "Census", "Example", "census", "examples", "groups"]

"""What the engine's tests share: a judge without checkpoint or processor, prompts, and slow definitions to compare with."""

import math
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from tiny import tiny_generator, tiny_tokenizer
from torch import Tensor

from transformers_egrm.modeling.configuration_egrm import JudgeOptions
from transformers_egrm.modeling.draft_chains_egrm import ChainDrafts
from transformers_egrm.modeling.engine_backbone_egrm import Backbone
from transformers_egrm.modeling.engine_local_egrm import LocalEngine
from transformers_egrm.modeling.engine_protocol_egrm import Engine, need_abilities
from transformers_egrm.modeling.engine_random_egrm import uniforms
from transformers_egrm.modeling.engine_sampler_egrm import BranchSampler
from transformers_egrm.modeling.engine_sampling_egrm import warped_probs
from transformers_egrm.modeling.engine_trials_egrm import star_refusal
from transformers_egrm.modeling.engine_vocabulary_egrm import OpenVocabulary
from transformers_egrm.modeling.judge_assessor_egrm import EGRMAssessor
from transformers_egrm.modeling.judge_long_egrm import deliberate
from transformers_egrm.modeling.judge_plan_egrm import JudgePlan
from transformers_egrm.modeling.judge_probes_egrm import branches_of, check_task, needed_abilities, orders_of
from transformers_egrm.modeling.judge_rows_egrm import finish
from transformers_egrm.modeling.judge_short_egrm import judge_short
from transformers_egrm.modeling.judge_values_egrm import EGRMOutput, JudgeInputs, LongItems, ShortStage
from transformers_egrm.modeling.prompt_task_egrm import JudgeTask
from transformers_egrm.modeling.verdict_space_egrm import VerdictSpace


EOS, SEED = 4, 3
TEMPERATURES = (0.6, 0.8, 1.0)
SHORT_SUFFIX, LONG_SUFFIX = (7, 8, 9), (11, 12, 13, 14)


class TinyJudge:
    """What `judge_short` and `deliberate` need of a model, around one generator.

    Its scorer is a plain function: of the text's length, or of the hidden state where it reads such.
    """

    def __init__(self, generator, state_pooling: str | None = None, draft=None) -> None:
        self.backbone = Backbone(generator)
        self.engine: Engine = LocalEngine(self.backbone, ChainDrafts(self.backbone, draft))
        self.state_pooling = state_pooling
        self.decoded: list[list[int]] = []
        self.scored: list[tuple[str, str]] = []
        self.states: list[Tensor] = []

    def assessor_for(self, task: JudgeTask | None, options: JudgeOptions) -> EGRMAssessor | None:
        return None

    def decode_tokens(self, token_ids: list[list[int]], *, control: bool = False) -> list[str]:
        self.decoded += token_ids
        return tiny_tokenizer().batch_decode(token_ids, skip_special_tokens=not control) if token_ids else []

    def score_candidates(
        self, prompts: Sequence[str], texts: Sequence[str], states: Tensor | None, strict: bool
    ) -> tuple[Tensor, list[float]]:
        if states is not None:
            self.states.append(states)
            return states.float().mean(-1).sigmoid(), [0.0] * len(states)
        self.scored += list(zip(prompts, texts, strict=True))
        return torch.tensor([score_text(text) for text in texts]), [1.0] * len(texts)

    def probe(self, inputs: JudgeInputs, **options) -> ShortStage:
        resolved = tiny_options(inputs.task, **options)
        check_task(inputs.task, resolved)
        need_abilities(self.engine, needed_abilities(resolved, self.state_pooling))
        with torch.no_grad():
            return judge_short(
                self, inputs, resolved, JudgePlan.of([resolved] * inputs.num_items, inputs.item_ids.tolist())
            )

    def deliberate(self, items: LongItems, return_texts: bool = False, **options) -> EGRMOutput:
        with torch.no_grad():
            return deliberate(self, items, tiny_options(items[0].task if items else None, **options), return_texts)

    def judge(self, inputs: JudgeInputs, return_texts: bool = False, **options) -> EGRMOutput:
        stage = self.probe(inputs, **options)
        return finish(stage.output, stage.long_index, self.deliberate(stage.long_items(), return_texts, **options))


def tiny_options(task: JudgeTask | None = None, **options) -> JudgeOptions:
    """Resolved, with sampled consensus and a vote unless they say otherwise, whatever the verdict space."""
    options = {"consensus": "sampled", "selection": "vote", "drafting": "none"} | options
    return JudgeOptions().with_overrides(**options).resolved("pointwise", scorer=False, draft=False)


def score_text(text: str) -> float:
    return (sum(text.encode()) % 997) / 997


def tiny_task(space: VerdictSpace | None = None, **changes) -> JudgeTask:
    space = space or VerdictSpace.pointwise(0, 10)
    tokenizer = tiny_tokenizer()
    values = {
        "space": space,
        "layout": "embedded",
        "judge_turn_ids": (),
        "short_suffix_ids": SHORT_SUFFIX,
        "long_suffix_ids": LONG_SUFFIX,
        "verdict_token_ids": tuple(
            tuple(tokenizer(f" {label}", add_special_tokens=False).input_ids) for label in space.labels
        ),
        "probe_stop_ids": (EOS, *tokenizer("\n", add_special_tokens=False).input_ids),
        "chain_stop_ids": (EOS,),
    }
    return JudgeTask(**{**values, **changes})


def tiny_inputs(task: JudgeTask, prompts: Sequence[Sequence[int]], orders: int = 1, item_ids=None) -> JudgeInputs:
    """A left-padded batch; `orders` consecutive prompts belong to one item, every second one swapped."""
    width, rows = max(map(len, prompts)), len(prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return JudgeInputs(
        input_ids=ids,
        attention_mask=mask,
        item_index=torch.arange(rows) // orders,
        swapped=torch.arange(rows) % orders == 1,
        item_ids=torch.arange(100, 100 + rows // orders) if item_ids is None else torch.tensor(item_ids),
        task=task,
        shared_tokens=torch.zeros(rows, dtype=torch.int64),
        group_index=torch.arange(rows),
    )


def some_prompts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, 300, (length,), generator=generator).tolist() for length in lengths]


def items_of(inputs: JudgeInputs, items: Sequence[int]) -> JudgeInputs:
    """Some items of a batch of one prompt per item, in the order given, without padding that none of them needs."""
    rows = torch.tensor(items)
    width = int(inputs.attention_mask[rows].sum(-1).max())
    return replace(
        inputs,
        input_ids=inputs.input_ids[rows, -width:],
        attention_mask=inputs.attention_mask[rows, -width:],
        item_index=torch.arange(len(items)),
        swapped=inputs.swapped[rows],
        item_ids=inputs.item_ids[rows],
        shared_tokens=inputs.shared_tokens[rows],
        group_index=torch.arange(len(items)),
    )


@contextmanager
def counted_tokens(backbone: Backbone):
    """The [rows, tokens] shape of everything that runs through the decoder's body inside the block."""
    with torch.no_grad():  # what is tried out once per generator is not counted
        backbone.check_head()
        star_refusal(backbone)
    shapes: list[tuple[int, int]] = []
    handle = backbone.body.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    try:
        yield shapes
    finally:
        handle.remove()


# -- sampling, slowly ---------------------------------------------------------------------------------------------------


class RecordingSampler(BranchSampler):
    """Keeps the logits that every draw was made from: `logits[step]` is [rows, V]."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.logits: list[Tensor] = []

    def draw(self, logits: Tensor) -> None:
        everywhere = torch.full((self.done.shape[0], logits.shape[-1]), torch.nan)
        everywhere[self._rows] = logits.repeat_interleave(self._rows.shape[0] // logits.shape[0], 0)
        self.logits.append(everywhere)
        super().draw(logits)


@torch.no_grad()
def sample_branches(
    backbone: Backbone,
    inputs: JudgeInputs,
    decoder: str,
    max_tokens: int = 8,
    vocabulary=None,
    temperatures=TEMPERATURES,
) -> RecordingSampler:
    """Draw branches of every prompt, short suffix included, with one of the decoders."""
    prompts = LocalEngine(backbone).start(inputs, SHORT_SUFFIX, decoder=decoder)
    branches = branches_of(
        inputs.item_ids[inputs.item_index],
        orders_of(inputs.item_index),
        temperatures,
        (0.95,) * len(temperatures),
        SEED,
    )
    if vocabulary is None:
        vocabulary = OpenVocabulary((EOS,))
    sampler = RecordingSampler(branches, vocabulary, max_tokens)
    sampler.draw(prompts.first_logits(vocabulary.columns))
    prompts.run(sampler)
    return sampler


@torch.no_grad()
def branches_by_hand(
    generator,
    prompts: Sequence[Sequence[int]],
    item_ids: Sequence[int],
    max_tokens: int = 8,
    temperatures: Sequence[float] = TEMPERATURES,
    seed: int = SEED,
    first_branch: int = 0,
) -> tuple[list[list[int]], list[list[Tensor]]]:
    """Row by row, without cache, batch or padding: tokens of each branch, and the logits it drew each of them from.

    Prompts include their mode suffix; the nucleus is 0.95.
    """
    tokens, logits = [], []
    for prompt, item_id in zip(prompts, item_ids, strict=True):
        for branch, temperature in enumerate(temperatures, first_branch):
            drawn, drawn_from = [], []
            while len(drawn) < max_tokens and EOS not in drawn:
                ids = torch.tensor([[*prompt, *drawn]])
                output = generator(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
                own = output.logits[:, -1].float()
                rung = torch.tensor([[temperature], [0.95]], dtype=torch.float64)
                number = uniforms(seed, torch.tensor([item_id]), torch.tensor([branch]), len(drawn))
                cumulated = warped_probs(own, *rung)[0].cumsum(-1)
                drawn.append(int((cumulated <= number * cumulated[-1]).sum()))
                drawn_from.append(own[0])
            tokens.append(drawn)
            logits.append(drawn_from)
    return tokens, logits


def noise_explains(first: Tensor, second: Tensor, temperature: float, top_p: float, uniform: float) -> bool:
    """Whether two logits [V] that differ by float noise only may give two draws: the number lies near enough a boundary.

    Noise of at most d moves every logarithm of a ratio of probabilities by 2 d / T, and thus every cumulated sum by at most
    exp(2 d / T) - 1; a token at the edge of the nucleus may come in or drop out as a whole.
    """
    noise = float((first - second).abs().max())
    reach = math.expm1(2 * noise / temperature) + 1e-12
    rungs = (
        torch.tensor([temperature, temperature], dtype=torch.float64),
        torch.tensor([top_p, 1.0], dtype=torch.float64),
    )
    warped, whole = warped_probs(first.expand(2, -1), *rungs)
    edge = 0.0
    mass = 0.0
    for prob in whole.sort(descending=True).values.tolist():
        if abs(mass - top_p) <= reach:
            edge += prob / top_p
        mass += prob
        if mass > top_p + reach:
            break
    return bool((warped.cumsum(-1) - uniform).abs().min() <= reach + 2 * edge)


def assert_same_draws(first, second, sampler: RecordingSampler, most_noise: float, temperatures=TEMPERATURES) -> int:
    """Both draw the same tokens, row by row, up to the first place where noise in the logits explains a difference.

    Args:
        first: Per row: tokens, and the logits of each draw.
        second: The same.
        sampler: Whose uniform numbers both used.
        most_noise: The largest difference of logits that counts as noise.

    Returns:
        How many rows differ, each explained.
    """
    branches, differing = sampler.branches, 0
    for row, (ours, theirs) in enumerate(zip(zip(*first, strict=True), zip(*second, strict=True), strict=True)):
        for step, (a, b) in enumerate(zip(ours[0], theirs[0], strict=False)):
            one, other = ours[1][step], theirs[1][step]
            assert float((one - other).abs().max()) <= most_noise, (row, step)
            if a != b:
                number = uniforms(
                    branches.seed, branches.item_ids[row : row + 1], branches.branch_ids[row : row + 1], step
                )
                rung = float(branches.temperatures[row]), float(branches.top_ps[row])
                assert noise_explains(one, other, *rung, float(number)), (row, step, a, b)
                differing += 1
                break
        else:
            assert len(ours[0]) == len(theirs[0]), row
    return differing


def draws_of(sampler: RecordingSampler) -> tuple[list[list[int]], list[list[Tensor]]]:
    """Tokens of each row, and the logits of each draw."""
    lengths = sampler.lengths.tolist()
    tokens = [row[:length] for row, length in zip(sampler.tokens.tolist(), lengths, strict=True)]
    return tokens, [[sampler.logits[step][row] for step in range(length)] for row, length in enumerate(lengths)]


# -- generators that say something -------------------------------------------------------------------------------------


def talkative_generator(leanings: Mapping[str, float], seed: int = 0):
    """A random Llama whose head leans towards some tokens, given as texts of one token; "" is the end token."""
    generator, tokenizer = tiny_generator("llama", seed=seed), tiny_tokenizer()
    head = torch.nn.Linear(generator.config.hidden_size, generator.config.vocab_size)
    head.weight.data.copy_(generator.lm_head.weight * 0.4)  # what is left of the prompt's say
    head.bias.data.zero_()
    for text, strength in leanings.items():
        (token,) = tokenizer(text, add_special_tokens=False).input_ids if text else (EOS,)
        head.bias.data[token] = strength
    generator.lm_head = head
    return generator.eval()


class ScriptedStepper:
    """A model that always says what it is told to: row by row, a list of tokens."""

    can_drop = False

    def __init__(self, script: Sequence[Sequence[int]], vocab_size: int = 50) -> None:
        self.script, self.vocab_size, self.steps = script, vocab_size, 0

    def logits(self, step: int) -> Tensor:
        tokens = torch.tensor([row[step] for row in self.script])
        return torch.nn.functional.one_hot(tokens, self.vocab_size).float() * 100

    def step(self, tokens: Tensor, columns: Tensor | None) -> tuple[Tensor, Tensor]:
        assert tokens.tolist() == [row[self.steps] for row in self.script]  # fed what was drawn
        self.steps += 1
        return self.logits(self.steps), torch.full((len(self.script), 1), float(self.steps))

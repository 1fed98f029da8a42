"""Converts episodes to weighted training examples (docs/rise.md, R19 to R23).

An episode whose attempts scored 0, 0, 1 becomes, under criteria ``all``, three examples: the dialogue up to attempt 1,
up to attempt 2 and up to attempt 3, each with loss on its last message only, weighted e^(0/tau), e^(0/tau), e^(1/tau).
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Episode, Example, Message, Turn
from selfimprove.core.seeds import rng
from selfimprove.methods.rise.objective import reward_baselines, weight_statistics, weights
from selfimprove.methods.rise.params import ConvertParams, Criteria


@dataclass(frozen=True)
class Converted:
    """The data set, its counts and statistics, and the histogram of rewards (rows {reward, count}, by reward)."""

    examples: list[Example]
    stats: dict[str, Any]
    histogram: list[dict[str, float]]


@dataclass(frozen=True)
class Sample:
    """A kept attempt before it is weighted: ``turns[-1]`` is trained on, the earlier turns are context."""

    episode: Episode
    turns: tuple[Turn, ...]
    weight: float = 1.0

    @property
    def index(self) -> int:
        """The turn of the final attempt, from 0."""
        return len(self.turns) - 1

    @property
    def reward(self) -> float:
        """The final attempt's reward."""
        reward = self.turns[-1].attempt.reward
        assert reward is not None  # unscored turns were dropped before
        return reward


def dedup(attempts: Sequence[str]) -> list[int]:
    """Indices of attempts that are neither empty nor repeated, compared after stripping outer whitespace."""
    seen = {""}
    kept = []
    for index, text in enumerate(attempts):
        if text.strip() not in seen:
            seen.add(text.strip())
            kept.append(index)
    return kept


def keep(rewards: Sequence[float], criteria: Criteria) -> list[int]:
    """Indices of the attempts to train on; none follows the first reward of 1.

    Attempt 0 is always kept except under ``success``. For later attempts, ``all`` keeps every one, ``better`` those
    with a higher reward than the previous attempt, and ``best`` those at least as good as every earlier one (a running
    maximum). ``success`` keeps attempts of reward 1 only.

    Raises:
        ValueError: unknown criterion.
    """
    if criteria not in ("all", "better", "best", "success"):
        raise ValueError(f"unknown criteria {criteria!r}")
    kept = []
    for i, reward in enumerate(rewards):
        if criteria == "success":
            chosen = reward == 1
        elif i == 0 or criteria == "all":
            chosen = True
        elif criteria == "better":
            chosen = reward > rewards[i - 1]
        else:
            chosen = reward >= max(rewards[:i])
        if chosen:
            kept.append(i)
        if reward == 1:
            break
    return kept


def scored_turns(episode: Episode) -> list[Turn]:
    """The turns whose action was scored (the reward is None if scoring failed)."""
    return [turn for turn in episode.turns if turn.attempt.reward is not None]


def distinct_turns(episode: Episode, remove_duplication: bool) -> list[int]:
    """Indices into ``scored_turns`` that may be trained on: all, or all but empty and repeated attempts."""
    texts = [turn.attempt.text for turn in scored_turns(episode)]
    return dedup(texts) if remove_duplication else list(range(len(texts)))


def select(episode: Episode, criteria: Criteria, remove_duplication: bool) -> list[Sample]:
    """One sample for each kept attempt of an episode, with every turn before it.

    With ``remove_duplication``, empty and repeated attempts yield no sample and are ignored by the criteria. They stay
    in the context of later attempts, because the model saw them there. Only in episodes imported from logs of the
    release, which have no seed, are they dropped from the context too, as the release does. The text of a kept attempt
    is then stripped, as in the release; ``export`` writes that text. Its token ids stay as generated, and training
    reads the ids if there are any.
    """
    turns, left = scored_turns(episode), distinct_turns(episode, remove_duplication)
    if remove_duplication and not episode.seed:
        turns, left = [_stripped(turns[i]) for i in left], list(range(len(left)))
    rewards = [reward for i in left if (reward := turns[i].attempt.reward) is not None]
    samples = []
    for place in (left[i] for i in keep(rewards, criteria)):
        final = _stripped(turns[place]) if remove_duplication else turns[place]
        samples.append(Sample(episode, (*turns[:place], final)))
    return samples


def example(sample: Sample) -> Example:
    """The training example: the prompt that the model saw, and the weighted final attempt, with their token ids.

    Raises:
        UserError: the turn's count of omitted messages is inconsistent with its earlier turns.
    """
    opening = [message.model_copy(update={"weight": 0.0}) for message in sample.episode.prompt]
    earlier: list[Message] = []
    for turn in sample.turns[:-1]:
        earlier.append(_attempt(turn, 0.0))
        earlier.append(Message(role="user", content=turn.observation))
    omitted = sample.turns[-1].omitted
    if omitted % 2 or omitted > len(earlier):
        raise UserError(
            f"episode {sample.episode.id}, turn {sample.index + 1}: its prompt omits {omitted} of {len(earlier)} "
            "earlier messages, which is not a number of whole pairs; the file is damaged, so generate it again."
        )
    messages = [*opening, *earlier[omitted:], _attempt(sample.turns[-1], sample.weight)]
    return Example(id="", messages=messages, source=sample.episode.id)


def convert(
    episodes: Sequence[Episode],
    cfg: ConvertParams,
    *,
    seed: int,
    chat: ChatFormat | None = None,
    max_length: int | None = None,
    earlier: Sequence[Example] = (),
    may_be_empty: bool = False,
) -> Converted:
    """The whole conversion: select, count, weight, shuffle and number the examples (``identity_0`` …).

    With ``chat``, tokens are counted; samples longer than ``max_length`` tokens are counted but not dropped.
    ``earlier`` are the parent iterations' examples (``accumulate``), which are added unchanged before the shuffle.
    Without the shuffle, examples are in the order of the episodes.

    Raises:
        UserError: no example is left and ``may_be_empty`` is false, or the temperature is unusable.
    """
    counts: Counter[str] = Counter(episodes=len(episodes))
    samples: list[Sample] = []
    for episode in episodes:
        counts["blocked"] += episode.status == "blocked"
        if cfg.only_success and max(episode.rewards, default=None) != 1:
            counts["dropped_without_success"] += 1
            continue
        turns = scored_turns(episode)
        distinct = distinct_turns(episode, cfg.remove_duplication)
        selected = select(episode, cfg.criteria, cfg.remove_duplication)
        counts["attempts"] += len(turns)
        counts["dropped_empty_or_repeated"] += len(turns) - len(distinct)
        counts["dropped_by_criteria"] += len(distinct) - len(selected)
        samples += selected
    if not (samples or earlier or may_be_empty):
        raise UserError(
            f"convert: no examples remain from {len(episodes)} episodes (criteria {cfg.criteria}, only_success "
            f"{str(cfg.only_success).lower()}); loosen these settings or generate more episodes."
        )
    if cfg.weighted:
        attempts = [(sample.episode.id, sample.index, sample.reward) for sample in samples]
        baselines = reward_baselines(attempts, cfg.reward_baseline)
        values = weights([sample.reward for sample in samples], cfg.reward_temperature, baselines)
        samples = [replace(sample, weight=weight) for sample, weight in zip(samples, values, strict=True)]
    examples = [*earlier, *(example(sample) for sample in samples)]
    stats: dict[str, Any] = {
        **{key: counts[key] for key in _COUNTS},
        "earlier_examples": len(earlier),
        "examples": len(examples),
        "examples_by_turn": {f"turn{i + 1}": n for i, n in sorted(Counter(sample.index for sample in samples).items())},
        "weight": weight_statistics([one.messages[-1].weight for one in examples]),
    }
    if chat is not None:
        stats |= token_statistics(examples, chat, max_length)
    if cfg.shuffle:
        rng("convert", seed).shuffle(examples)
    rewards = Counter(sample.reward for sample in samples)
    histogram = [{"reward": reward, "count": count} for reward, count in sorted(rewards.items())]
    return Converted(number(examples), stats, histogram)


_COUNTS = (
    "episodes",
    "blocked",
    "attempts",
    "dropped_without_success",
    "dropped_empty_or_repeated",
    "dropped_by_criteria",
)


def single_turn(
    episodes: Iterable[Episode], *, seed: int, shuffle: bool = True, remove_duplication: bool = False
) -> list[Example]:
    """The data of the control ``single_turn``: the same correct answers, each as a first attempt of weight 1.

    One example per solved episode: its opening and its first correct action. In distillation that is the teacher's
    attempt; in self-distillation, the model's own best of n. If the first attempt was correct, it is the student's.
    With ``remove_duplication`` its text is stripped, as in the examples that ``convert`` creates.
    """
    examples = []
    for episode in episodes:
        right = next((turn for turn in episode.turns if turn.attempt.reward == 1), None)
        if right is not None:
            answer = _stripped(right) if remove_duplication else right
            first = answer.model_copy(update={"omitted": 0})  # no turn comes before it here
            examples.append(example(Sample(episode, (first,))))
    if shuffle:
        rng("single_turn", seed).shuffle(examples)
    return number(examples)


def number(examples: Iterable[Example]) -> list[Example]:
    """The examples in the same order, with ids ``identity_0``, ``identity_1``, …."""
    return [one.model_copy(update={"id": f"identity_{i}"}) for i, one in enumerate(examples)]


def token_statistics(examples: Sequence[Example], chat: ChatFormat, max_length: int | None = None) -> dict[str, Any]:
    """Mean and population variance of prompt and response lengths in tokens; number of samples over ``max_length``.

    The prompt is everything before the first token of the final attempt; the response is that attempt with its end
    token.
    """
    prompts, responses, over = [], [], 0
    for one in examples:
        encoded = chat.encode(one.messages)
        final = encoded.spans[-1]
        prompts.append(final.start)
        responses.append(final.stop - final.start)
        over += max_length is not None and final.stop > max_length
    return {
        "prompt_tokens": _mean_and_variance(prompts),
        "response_tokens": _mean_and_variance(responses),
        "over_length": over,
    }


def _mean_and_variance(lengths: Sequence[int]) -> dict[str, float]:
    if not lengths:
        return {"mean": 0.0, "variance": 0.0}
    return {"mean": statistics.fmean(lengths), "variance": float(statistics.pvariance(map(float, lengths)))}


def _stripped(turn: Turn) -> Turn:
    attempts = list(turn.attempts)
    attempts[turn.chosen] = turn.attempt.model_copy(update={"text": turn.attempt.text.strip()})
    return turn.model_copy(update={"attempts": attempts})


def _attempt(turn: Turn, weight: float) -> Message:
    attempt = turn.attempt
    return Message(
        role="assistant", content=attempt.text, token_ids=attempt.token_ids, finish=attempt.finish, weight=weight
    )

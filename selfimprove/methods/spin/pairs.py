"""Pairs of two continuations of one prompt (docs/spin.md, S2, S5 and S6).

SPIN's pairs are the expert's trajectory and the opponent's own episode on the same question, whatever their rewards.
Outcome pairs (the DPO option) are two of the model's own episodes on the same question, one of them rewarded.
"""

from collections.abc import Mapping, Sequence

from selfimprove.core.records import Message, Pair, Record
from selfimprove.core.seeds import datasets_order
from selfimprove.envs.qa.experts import Expert
from selfimprove.methods.spin.params import ConvertParams, Mix
from selfimprove.methods.spin.play import SpinEpisode
from selfimprove.methods.spin.prompts import is_flat, written


class PairAudit(Record):
    """Counts of one iteration's episodes, paired and dropped; ``kept`` is the number of pairs."""

    episodes: int = 0
    kept: int = 0
    identical: int = 0
    """the policy's text equals the expert's, so there is no gradient (kept unless ``drop_identical``)"""
    rewarded: int = 0
    """the policy was right; its episode is the generated side nevertheless, as in the paper"""
    unfinished: int = 0
    failed: int = 0
    """no reply with an action after all retries"""
    blocked: int = 0
    """dropped: the engine failed permanently"""
    silent: int = 0
    """dropped: the prompt alone filled the context, so the policy generated nothing"""
    without_expert: int = 0
    """dropped: there is no expert for this question"""


def spin_pairs(
    experts: Sequence[Expert], episodes: Sequence[SpinEpisode], cfg: ConvertParams, source: str
) -> tuple[list[Pair], PairAudit]:
    """G_k: a pair for the first run of every question, in the episodes' order, and the counts of dropped episodes."""
    by_question = {expert.question.id: expert for expert in experts}
    audit = PairAudit()
    pairs = []
    for episode in episodes:
        if episode.run:
            continue
        audit.episodes += 1
        expert = by_question.get(episode.id)
        if episode.status == "blocked":
            audit.blocked += 1
        elif not any(message.weight for message in episode.messages):
            audit.silent += 1
        elif expert is None:
            audit.without_expert += 1
        else:
            real = written(expert.rounds, episode.form)
            generated = continuation(episode)
            same = text_of(real) == text_of(generated)
            audit.identical += same
            audit.rewarded += episode.reward == 1
            failed = any(entry.failed for entry in episode.rounds)
            audit.unfinished += not (episode.finished or failed)
            audit.failed += failed
            if not (same and cfg.drop_identical):
                pairs.append(
                    Pair(
                        id=f"{source}-{episode.id}",
                        prompt=episode.prompt,
                        real=real,
                        generated=generated,
                        source=source,
                    )
                )
    audit.kept = len(pairs)
    return pairs, audit


def outcome_pairs(episodes: Sequence[SpinEpisode], source: str) -> list[Pair]:
    """A pair for every question whose runs differ in reward: the first rewarded and the first unrewarded run."""
    runs: dict[str, list[SpinEpisode]] = {}
    for episode in episodes:
        if episode.status != "blocked" and any(message.weight for message in episode.messages):
            question = episode.id.removesuffix(f"#{episode.run}") if episode.run else episode.id
            runs.setdefault(question, []).append(episode)
    pairs = []
    for key, played in runs.items():
        right = next((one for one in played if one.reward == 1), None)
        wrong = next((one for one in played if one.reward is not None and one.reward != 1), None)
        if right is not None and wrong is not None:
            pairs.append(
                Pair(
                    id=f"{source}-outcome-{key}",
                    prompt=right.prompt,
                    real=continuation(right),
                    generated=continuation(wrong),
                    source=source,
                )
            )
    return pairs


def continuation(episode: SpinEpisode) -> list[Message]:
    """An episode's messages as a side of a pair, without an end token that the policy did not generate.

    A failed round may have ended at the stop string, which was then removed from its text and ids (docs/spin.md, S13).
    Turns lose their token ids, so that both sides are tokenised in the same way. A tokenizer may put a space before
    given text, which a model does not generate, so that the first token alone would tell the sides apart.
    """
    messages = list(episode.messages)
    if not is_flat(episode.form):
        messages = [message.model_copy(update={"token_ids": None}) for message in messages]
        for message in messages if episode.form == "reply" else []:
            message.content = message.content.lstrip()  # as plain SPIN's generator does
        return messages
    if not episode.finished:
        last = messages[-1]
        if last.token_ids is None and last.finish == "stop":
            messages[-1] = last.model_copy(update={"finish": "length"})
    return messages


def mixed(own: Sequence[Pair], previous: Sequence[Pair], mix: Mix) -> list[Pair]:
    """G_k and G_(k-1): the first int(fraction * n) of each, concatenated and shuffled; never an older generation.

    The shuffle is that of ``datasets.Dataset.shuffle(seed=mix.seed)``, as in the original's mixer. Its configs list
    the previous generation first, so they train on the same rows in another order.
    """
    joined = [*own[: int(mix.own * len(own))], *previous[: int(mix.previous * len(previous))]]
    return [joined[index] for index in datasets_order(len(joined), mix.seed)]


def text_of(messages: Sequence[Message]) -> str:
    """The text of the whole continuation."""
    return "".join(message.content for message in messages)


def unwritten(pairs: Sequence[Pair]) -> Mapping[str, list[str]]:
    """Text that neither policy nor expert wrote, by side: a difference in it would reveal the side."""
    return {
        side: [message.content for pair in pairs for message in getattr(pair, side) if not message.weight]
        for side in ("real", "generated")
    }

"""One episode: the policy thinks and acts, and tools answer, for up to ``max_turns`` rounds (docs/spin.md, S8 to S16).

::

    Thought: I need the author of The Silver Gate.
    Action: search[The Silver Gate]
    Observation: The Silver Gate is a novel by Mara Venn.
    Thought: She was born in Tolma.
    Action: finish[Tolma]

This module does not batch, limit tools, write or log. Hundreds of episodes run concurrently, and each is independent of
the others, because its noise is seeded by run, question, round and attempt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pydantic import Field

from selfimprove.core.records import Message, Record, Status
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, EngineError, Request
from selfimprove.envs.interface import EnvError
from selfimprove.envs.qa.base import Question, Score
from selfimprove.envs.qa.datasets import score
from selfimprove.envs.qa.tools.dispatch import Tools
from selfimprove.methods.spin.params import PlayParams
from selfimprove.methods.spin.parse import ASKED, STOP, Parsed, cut, parse
from selfimprove.methods.spin.prompts import Format, cue, is_flat, observed, one_line, opening, said

FINISH = "finish"


class PlayedRound(Record):
    """One round of the trajectory. ``tool`` None: no existing action; ``attempts``: number of replies requested."""

    thought: str
    action: str
    tool: str | None
    argument: str
    observation: str = Field(default="", description="empty if the action ended the episode")
    attempts: int = 1
    failed: bool = False
    cut: bool = Field(default=False, description="the reply was cut at max_tokens")


class SpinEpisode(Record):
    """One complete episode on a question.

    ``prompt`` contains the messages before the first round, ``messages`` those after it up to the policy's last text,
    with token ids as generated and the weights used in training. ``finished``: the policy itself called finish; a round
    without an action also ends the episode, but does not finish it. ``cramped``: the episode ended because the next
    round did not fit the engine's context. ``reward`` is None if the episode was not scored.
    """

    id: str
    task: str
    kind: str = ""
    index: int = Field(description="index of the question in its split; the trajectory file's key")
    question: str
    gold: str
    prompt: list[Message] = Field(min_length=1)
    messages: list[Message] = Field(default_factory=list)
    rounds: list[PlayedRound] = Field(default_factory=list)
    form: Format
    finished: bool = False
    cramped: bool = False
    answer: str = ""
    reward: float | None = None
    em: bool = False
    f1: float = 0.0
    pred: str = ""
    gt: str = ""
    status: Status = "unsolved"
    iteration: str = ""
    run: int = 0
    seed: str
    error: str | None = None


class Response(NamedTuple):
    """What an action led to. ``tool`` and ``argument`` are recorded; ``tool`` None: the action does not exist."""

    tool: str | None
    argument: str
    observation: str = ""
    """empty if the action ended the episode"""
    ends: bool = False
    answer: str = ""


class Partner(Protocol):
    """What answers the policy's actions in one episode: tools, or an environment (``acting.py``)."""

    silent: Parsed
    """recorded for a round in which no reply had an action; such a round ends the episode"""

    async def respond(self, parsed: Parsed) -> Response:
        """Carry out an action."""

    def score(self, answer: str) -> Score:
        """The score of the episode so far, in which the policy gave ``answer``."""


@dataclass(frozen=True)
class ToolPartner:
    """Tools, of which ``finish`` gives the answer."""

    tools: Tools
    question: Question
    scorer: Callable[[str, Question], Score]
    silent = Parsed("failed", f"{FINISH}[]", FINISH, "")

    async def respond(self, parsed: Parsed) -> Response:
        """Call the tool."""
        tool, argument = parsed.tool, parsed.argument
        if tool == FINISH:
            return Response(tool, argument, ends=True, answer=argument)
        if tool is None or not self.tools.has(tool):
            return Response(None, argument, one_line(None))
        return Response(tool, argument, one_line(await self.tools.call(tool, argument)))

    def score(self, answer: str) -> Score:
        """The score of ``answer``."""
        return self.scorer(answer, self.question)


async def play(
    question: Question,
    index: int,
    tools: Tools,
    policy: Engine,
    cfg: PlayParams,
    seed: int,
    *,
    form: Format,
    few_shot: str = "",
    prefix: str = "",
    iteration: str = "",
    run: int = 0,
    score: Callable[[str, Question], Score] = score,
) -> SpinEpisode:
    """One episode with tools; ``score`` scores an answer. For the other arguments and the result see ``play_with``."""
    partner = ToolPartner(tools, question, score)
    return await play_with(
        partner, question, index, policy, cfg, seed, form=form, few_shot=few_shot, prefix=prefix, iteration=iteration,
        run=run,
    )  # fmt: skip


async def play_with(
    partner: Partner,
    question: Question,
    index: int,
    policy: Engine,
    cfg: PlayParams,
    seed: int,
    *,
    form: Format,
    few_shot: str = "",
    prefix: str = "",
    iteration: str = "",
    run: int = 0,
) -> SpinEpisode:
    """One episode.

    Args:
        index: place of the question in its split.
        prefix: text before the question (``Yes or no: ``, for example).
        run: number of this episode among several on the same question; each has its own noise.

    Returns:
        The episode. An unfinished one has answer "", except that a plain answer which ``max_tokens`` cut keeps its
        text; either is scored with it. ``blocked``: the engine or the environment failed permanently; earlier rounds
        are kept.

    Raises:
        UserError: the engine or a tool can't work at all.
    """
    name = f"{question.id}#{run}" if run else question.id
    asked = f"{prefix}{question.question}"
    episode = SpinEpisode(
        id=name, task=question.task, kind=question.kind, index=index, question=asked, gold=question.gold,
        prompt=opening(asked, form, few_shot), form=form, iteration=iteration, run=run,
        seed=f"{seed}/{name}",
    )  # fmt: skip
    try:
        for number in range(cfg.max_turns):
            dialogue = [*episode.prompt, *episode.messages, *cue(form, number)]
            if not policy.fits(dialogue, cfg.max_tokens):
                episode.cramped = True
                break
            if form == "reply":
                await _reply(episode, dialogue, policy, cfg, SeedKey(seed, name))
                break
            reply, attempts = await ask(policy, dialogue, cfg, SeedKey(seed, name, number), form)
            failed = ASKED not in cut(reply.text)
            parsed = partner.silent if failed else parse(reply.text)
            response = Response(parsed.tool, "", ends=True) if failed else await partner.respond(parsed)
            episode.messages += [*cue(form, number), *spoken(reply, parsed, form, ends=response.ends, failed=failed)]
            entry = PlayedRound(
                thought=parsed.thought, action=parsed.action, tool=response.tool, argument=response.argument,
                observation=response.observation, attempts=attempts, failed=failed, cut=reply.finish == "length",
            )  # fmt: skip
            episode.rounds.append(entry)
            if response.ends:
                episode.finished, episode.answer = not failed, response.answer
                break
            episode.messages.append(observed(response.observation, form))
    except (EngineError, EnvError) as failure:
        episode.status, episode.error = "blocked", str(failure)
    end_with_policy(episode)
    return _scored(episode, partner.score(episode.answer)) if cfg.evaluate else episode


def end_with_policy(episode: SpinEpisode) -> None:
    """Drop a final observation, since no text of the policy follows it."""
    if episode.messages and episode.messages[-1].role == "user":
        episode.messages.pop()
        if is_flat(episode.form):  # the policy's last text did not end its turn
            episode.messages[-1].finish = "length"


async def _reply(
    episode: SpinEpisode, dialogue: Sequence[Message], policy: Engine, cfg: PlayParams, key: SeedKey
) -> None:
    """Plain SPIN: the policy's single answer is the whole episode, in the format used in training."""
    (reply,) = await policy.generate(
        Request(messages=dialogue, seed=key, temperature=cfg.temperature, top_p=cfg.top_p, max_tokens=cfg.max_tokens)
    )
    episode.messages.append(
        Message(role="assistant", content=reply.text, token_ids=reply.token_ids, finish=reply.finish, weight=1)
    )
    entry = PlayedRound(thought=reply.text, action="", tool=FINISH, argument="", cut=reply.finish == "length")
    episode.rounds.append(entry)
    episode.finished, episode.answer = reply.finish == "stop", reply.text.strip()


async def ask(
    policy: Engine, dialogue: Sequence[Message], cfg: PlayParams, key: SeedKey, form: Format
) -> tuple[Completion, int]:
    """A reply with an action, or the last one without, and the number of replies requested (docs/spin.md, S10).

    Every attempt has the same prompt, cue and stop string; the original drops the last two.
    """
    for attempt in range(cfg.retries + 1):
        (reply,) = await policy.generate(
            Request(
                messages=dialogue,
                seed=key.at(attempt),
                temperature=cfg.temperature,
                top_p=cfg.top_p,
                max_tokens=cfg.max_tokens,
                stop=(STOP,),
                keep_stop=is_flat(form),
            )
        )
        if ASKED in cut(reply.text):
            break
    return reply, attempt + 1


def spoken(reply: Completion, parsed: Parsed, form: Format, *, ends: bool, failed: bool) -> list[Message]:
    """The policy's text as messages, with token ids as generated if the text is unchanged.

    The trajectory contains the text as parsed, without extra lines or an ``Observation:`` after the last action. If it
    differs from the generated text, it is tokenised again. A literal ``Observation:`` that the policy did not generate
    has no weight. A failed round keeps the policy's own text, which training makes less likely.
    """
    body = cut(reply.text) if failed else said(parsed.thought, parsed.action, form)
    wrote_stop = STOP in reply.text
    text = body + (STOP if wrote_stop and is_flat(form) and not ends else "")
    ids = reply.token_ids if reply.text == text else None
    messages = [Message(role="assistant", content=text, token_ids=ids, finish=reply.finish, weight=1)]
    if is_flat(form) and not ends and not wrote_stop:
        messages.append(Message(role="assistant", content=STOP))
    return messages


def _scored(episode: SpinEpisode, marks: Score) -> SpinEpisode:
    episode.reward, episode.em, episode.f1 = marks.reward, marks.em, marks.f1
    episode.pred, episode.gt = marks.pred, marks.gt
    if marks.reward == 1 and episode.status != "blocked":
        episode.status = "solved"
    return episode

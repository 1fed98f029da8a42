"""Shared by tree search and evaluation: requests replies from the actor (``ask``) and executes a reply (``act``)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey, key_bits
from selfimprove.engines.base import Completion, Engine, Request
from selfimprove.envs.interface import World
from selfimprove.methods.agent_r.params import EvaluateParams, SearchParams
from selfimprove.methods.agent_r.prompts import opening, trim
from selfimprove.methods.agent_r.reply import WAIT, WAITED, clean_observation, parse_action, stored_reply


@dataclass(frozen=True)
class EpisodeState:
    """A state of an episode and the step that led to it: the stored reply, its action and the observation.

    ``state`` is the world's opaque state; ``reward`` the score so far in [0, 1]; ``done`` whether the episode is over,
    by the environment or by a ``disaster``; ``valid`` whether the environment understood the action.
    """

    state: Any
    reply: str = ""
    action: str = ""
    observation: str = ""
    reward: float = 0.0
    done: bool = False
    disaster: bool = False
    valid: bool = True

    @property
    def messages(self) -> tuple[Message, Message]:
        """The reply and the observation, as messages."""
        return Message(role="assistant", content=self.reply), Message(role="user", content=self.observation)


def episode_id(world: World, task_id: int, given: Sequence[str] = ()) -> str:
    """Identifies an episode or a tree by its environment, its task and the replies it continues from, if any."""
    name = f"{world.name}-{task_id}"
    return f"{name}-{key_bits('given', *given):016x}" if given else name


_ID = re.compile(r".+?-(\d{1,18})(-[0-9a-f]{16})?", re.DOTALL)


def task_of(name: str) -> tuple[int, bool]:
    """The task of a name from ``episode_id``, and whether the episode continues from given replies.

    Raises:
        UserError: the name does not have that format.
    """
    found = _ID.fullmatch(name)
    if found is None:
        raise UserError(
            f"episode {name!r} is not named <environment>-<task> like Agent-R's episodes; give the episodes.jsonl of "
            "an agent_r evaluation."
        )
    return int(found[1]), found[2] is not None


async def begin(world: World, task_id: int, given: Sequence[str] = ()) -> tuple[list[Message], list[EpisodeState]]:
    """Start a task and execute the given replies until they are used up or the episode ends.

    Returns:
        The opening conversation (without the given replies), and the initial state followed by one for each reply.

    Raises:
        EnvError, UserError: as ``World.reset``.
    """
    state, observation = await world.reset(task_id)
    states = [EpisodeState(state, observation=observation)]
    for reply in given:
        if states[-1].done:
            break
        states.append(await act(world, states[-1], reply))
    return opening(world.instruction, observation), states


async def ask(
    actor: Engine, dialogue: Sequence[Message], cfg: SearchParams | EvaluateParams, key: SeedKey, n: int = 1
) -> tuple[list[Completion], int]:
    """``n`` replies to the dialogue from one request, and the number of messages that did not fit the actor's context.

    Raises:
        EngineError, UserError: as ``Engine.generate``.
    """
    seen = trim(dialogue, actor, cfg.max_tokens)
    drawn = await actor.generate(
        Request(
            messages=seen,
            seed=key,
            n=n,
            temperature=cfg.temperature,
            top_p=cfg.top_p,
            max_tokens=cfg.max_tokens,
            stop=cfg.stop,
        )
    )
    return drawn, len(dialogue) - len(seen)


async def act(world: World, here: EpisodeState, reply: str, action: str | None = None) -> EpisodeState:
    """The state after ``reply``; ``here`` is not modified.

    ``action``: when a reply is executed again, the action it stood for before. In an imported tree the stored reply may
    have another, since the original removes the numbers of markers only.

    ``wait`` is answered here, without the environment; it only extends the dialogue. A negative score is a disaster: it
    counts as 0 and ends the episode (docs/agent-r.md, A4). If the environment executed another action than the
    requested one (A40), that action is recorded. The exception is ``wait``, for which the requested action is recorded,
    because ``wait`` would not reach the environment in a replay.

    Raises:
        EnvError, UserError: as ``World.step``.
    """
    action = parse_action(reply) if action is None else action
    if action == WAIT:
        return EpisodeState(here.state, stored_reply(reply), action, WAITED, here.reward)
    state, step = await world.step(here.state, action)
    disaster = step.reward < 0 or bool(step.info.get("disaster", False))
    did = str(step.info.get("mapped_to", action))
    return EpisodeState(
        state=state,
        reply=stored_reply(reply),
        action=action if did == WAIT else did,
        observation=clean_observation(step.observation),
        reward=0.0 if disaster else float(step.reward),
        done=step.done or disaster,
        disaster=disaster,
        valid=bool(step.info.get("valid", True)),
    )


def generated_ids(completion: Completion, reply: str) -> list[int] | None:
    """The token ids of a stored reply as generated; None if storing the reply changed its text."""
    return completion.token_ids if completion.text == reply else None

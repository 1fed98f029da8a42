"""Players without trained weights, evaluated like models: random, oracle, chat models (docs/reflect-rl.md, L47).

========  ===========================================================================================================
random    one of the listed labels, uniformly
expert    the oracle: an upper bound
direct    a chat model reads state and actions and answers with a label
chat      it analyses the state first and chooses in a second turn; each step is a separate dialogue
react     the same in one dialogue over the whole episode, alternating reflection and action
========  ===========================================================================================================

Labels are parsed strictly, and an answer without a listed label is an invalid action. The original parses "Action 12"
as 1 and guesses if it finds nothing.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey, rng
from selfimprove.engines.base import Engine
from selfimprove.envs.interface import EnumeratedEnv, Played, State
from selfimprove.envs.labels import oracle_label
from selfimprove.methods.reflect_rl.episode import RLEpisode, RLStep, play_steps, taken
from selfimprove.methods.reflect_rl.params import AgentParams
from selfimprove.methods.reflect_rl.teacher import ANALYZE, CHOOSE, ask, opening, read_choice

REFLECT, ACT = 0, 1
"""Sample indices of the two answers of a step."""


class AgentChoice(NamedTuple):
    """An agent's thought and choice; ``label`` is "" if it named no listed label. ``cut``: as in ``RLStep``."""

    reflection: str | None
    label: str
    cut: bool = False


Agent = Callable[[EnumeratedEnv, SeedKey], Awaitable[AgentChoice]]
"""Chooses the next action of one episode. Raises: EngineError."""


async def chance(env: EnumeratedEnv, key: SeedKey) -> AgentChoice:
    """A listed label, chosen uniformly; "" if none is listed."""
    labels = env.state().labels
    return AgentChoice(None, rng("random agent", key).choice(labels) if labels else "")


async def expert(env: EnumeratedEnv, key: SeedKey) -> AgentChoice:
    """The oracle's label; the first label if the oracle has no path; "" if none is listed."""
    return AgentChoice(None, oracle_label(env) or next(iter(env.state().labels), ""))


class ChatAgent:
    """The agents ``direct``, ``chat`` and ``react`` over any engine, for one episode."""

    def __init__(self, engine: Engine, cfg: AgentParams) -> None:
        self._engine, self._cfg = engine, cfg
        self._dialogue: list[Message] = []

    async def act(self, env: EnumeratedEnv, key: SeedKey) -> AgentChoice:
        state = env.state()
        system = opening(env)
        here, actions = f"{env.instruction}{state.pre.strip()}", f"{state.post.strip()}\n\n{CHOOSE}"
        if self._cfg.kind == "direct":
            asked = [system, Message(role="user", content=f"{here}\n\n{actions}")]
            answer = await ask(self._engine, asked, self._cfg, key.at(ACT))
            return AgentChoice(None, read_choice(answer.text.strip(), env) or "", answer.finish == "length")
        before = self._dialogue if self._cfg.kind == "react" else []
        asked = [*(before or [system]), Message(role="user", content=f"{here}\n\n{ANALYZE}")]
        thought = await ask(self._engine, asked, self._cfg, key.at(REFLECT))
        reflection = thought.text.strip()
        turns = [*asked, Message(role="assistant", content=reflection), Message(role="user", content=actions)]
        answer = await ask(self._engine, turns, self._cfg, key.at(ACT))
        said = answer.text.strip()
        self._dialogue = [*turns, Message(role="assistant", content=said)]
        return AgentChoice(reflection, read_choice(said, env) or "", "length" in (thought.finish, answer.finish))


def make_agent(cfg: AgentParams, engine: Engine | None) -> Callable[[], Agent]:
    """Factory of one agent per episode; episodes share no mutable state."""
    if engine is not None:
        return lambda: ChatAgent(engine, cfg).act
    return lambda: chance if cfg.kind == "random" else expert


async def play_agent(
    task: int, env: EnumeratedEnv, agent: Callable[[], Agent], key: SeedKey, level: str = "", *, episode: int = 0
) -> RLEpisode:
    """Play a task to its end, on a copy of ``env``. Raises: UserError: as ``taken``."""
    env, choose = env.copy(), agent()

    async def act(state: State, key: SeedKey) -> tuple[RLStep, Played]:
        chosen = await choose(env, key)
        command, played = taken(env, task, chosen.label)
        step = RLStep(
            prompt=f"{state.pre}{state.post}", reflection=chosen.reflection, label=chosen.label, command=command,
            cost=played.cost, valid=played.valid, cut=chosen.cut, unlisted=state.unlisted,
        )  # fmt: skip
        return step, played

    return await play_steps(env, task, level, episode, key, act)

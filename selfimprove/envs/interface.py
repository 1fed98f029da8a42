"""The interface of environments: one small protocol per capability, and the values they exchange.

| capability | protocol | needed by |
|---|---|---|
| episodes: start a task and act in it; reward in [0, 1] | ``Resets`` | Agent-R, Reflect-RL |
| returning to earlier states | ``Returns`` | Agent-R's tree; Reflect-RL's teacher |
| listing the actions that are currently valid | ``ListsActions`` | Reflect-RL |
| an expert | ``KnowsExpert`` | warm starts |
| attempts that are judged and repeated after feedback | ``AnswerEnv`` | RISE |
| attempts that are executed and produce feedback of their own | ``CarriesOut`` | RISE in environments with actions |
| built-in problems | ``MakesProblems`` | RISE without files |
| labelled actions, and reflections | ``EnumeratedEnv`` | Reflect-RL |

An environment object holds the state of one episode, as in the original implementations (TextCraft, WebShop). Trees
grow in a world (``World``): ``step(state, action)`` returns the next state and leaves the old one unchanged, so that
hundreds of episodes share one object. Embedded environments become worlds by snapshots (``EmbeddedWorld``), slow or
remote ones by replaying actions on a pool of copies (``envs/replay.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Step(NamedTuple):
    """The result of an action.

    ``reward`` is the episode's score so far, normalised to [0, 1]. ``info`` holds
    ``raw_score`` (the environment's own scale), ``valid`` (False: the action was not understood or not possible), and
    ``disaster`` (True: a fatal mistake, a negative score in the original; ``reward`` is then 0).
    """

    observation: str
    reward: float
    done: bool
    info: Mapping[str, Any]


class Move(NamedTuple):
    """An expert's next action and its reason: one short first-person sentence, and an action that ``step`` accepts."""

    thought: str
    action: str


class Resets(Protocol):
    """Episodes: start a task and act in it. One episode at a time; two copies never share state."""

    @property
    def name(self) -> str:
        """The environment's name in outputs: textcraft, webshop, sciworld."""

    @property
    def instruction(self) -> str:
        """The first user message: what the world is and how to act in it."""

    def task_ids(self) -> Sequence[int]:
        """The ids of all tasks, in a fixed order."""

    def reset(self, task_id: int) -> str:
        """Start a task and return the first observation, which depends only on the task.

        Raises:
            UserError: no such task.
        """

    def step(self, action: str) -> Step:
        """Act. Any text is allowed; invalid actions get the original environment's response."""


class Returns(Protocol):
    """Returning to earlier states, which growing a tree requires."""

    def snapshot(self) -> Any:
        """An immutable value from which ``restore`` recreates the current state."""

    def restore(self, snapshot: Any) -> None:
        """Return to the state of a snapshot taken from any copy of this environment."""


class ListsActions(Protocol):
    """Listing the actions that are currently valid."""

    def valid_actions(self) -> list[str] | None:
        """All currently valid actions, sorted; None if they can't be listed."""


class KnowsExpert(Protocol):
    """A scripted expert."""

    def expert(self) -> list[Move]:
        """The rest of a shortest (or the known) path to reward 1 from here; [] if done or if there is no path."""


class ListsGames(Protocol):
    """Tasks that are variations of numbered games: ScienceWorld."""

    def ids_of_games(self, start: int, stop: int | None, variations: int, among: Sequence[int] | None) -> list[int]:
        """Ids of ``variations`` variations of each game in ``start:stop``; ``among``: only these ids (None: all)."""


class AgentEnv(Resets, Returns, ListsActions, KnowsExpert, Protocol):
    """A text environment with all of these capabilities, as Agent-R requires."""


class World(Protocol):
    """An environment with explicit states, in which methods play. States are opaque, immutable and cheap to keep."""

    @property
    def name(self) -> str:
        """See ``AgentEnv``."""

    @property
    def instruction(self) -> str:
        """See ``AgentEnv``."""

    async def reset(self, task_id: int) -> tuple[Any, str]:
        """Start a task: (state, first observation).

        Raises:
            UserError: no such task, or the environment can't be reached at all.
            EnvError: this episode can't continue; others may.
        """

    async def step(self, state: Any, action: str) -> tuple[Any, Step]:
        """Act in ``state``, which is left unchanged. Raises: as ``reset``."""

    async def close(self) -> None:
        """Release servers, processes and connections."""


class EnvError(Exception):
    """The environment failed permanently in this episode (after its own retries); the episode counts as blocked."""


@dataclass(frozen=True)
class EmbeddedWorld:
    """A world over one embedded environment, which is restored to the requested state before every step."""

    env: AgentEnv

    @property
    def name(self) -> str:
        """The environment's name."""
        return self.env.name

    @property
    def instruction(self) -> str:
        """The environment's instruction."""
        return self.env.instruction

    async def reset(self, task_id: int) -> tuple[Any, str]:
        observation = self.env.reset(task_id)
        return self.env.snapshot(), observation

    async def step(self, state: Any, action: str) -> tuple[Any, Step]:
        self.env.restore(state)
        step = self.env.step(action)
        return self.env.snapshot(), step

    async def close(self) -> None:
        """Nothing to release."""


@runtime_checkable
class Mixes(Protocol):
    """Several environments combined into one; each task belongs to one of them."""

    def part_of(self, task_id: int) -> str:
        """The name of the environment that a task belongs to."""

    def part_names(self) -> list[str]:
        """The names of all environments."""


def name_of(env: Resets | World, task_id: int) -> str:
    """The name of a task's environment, also in a mixture."""
    return env.part_of(task_id) if isinstance(env, Mixes) else env.name


# Actions with labels


class State(NamedTuple):
    """The text before one action: ``pre`` before the action heading, ``post`` from it on, and the labels listed."""

    pre: str
    post: str
    labels: tuple[str, ...]

    @property
    def unlisted(self) -> int:
        """The number of valid actions without a label because there are more actions than labels."""
        return 0


class CutState(State):
    """A state with more actions than labels; it compares equal to a plain ``State`` with the same text."""

    without_label = 0

    @property
    def unlisted(self) -> int:
        """See ``State``."""
        return self.without_label


class Played(NamedTuple):
    """The result of an action. ``success`` is determined at the end; ``output``: the environment's response.

    ``valid``: the label was listed, and its action was possible. ``identified``: AutoExplore's answer, a path.
    """

    cost: float
    done: bool
    success: bool
    valid: bool
    output: str
    identified: str | None = None


class Last(NamedTuple):
    """The action before this state, for a teacher's reflection: the command, and whether it helped."""

    command: str
    helped: bool


class EnumeratedEnv(Returns, Protocol):
    """An environment that lists its actions by label and has scripted reflections, as Reflect-RL requires.

    One episode at a time; copies share no mutable state.
    """

    @property
    def name(self) -> str:
        """The name in the params: taxi, autoexplore, alfworld."""

    @property
    def instruction(self) -> str:
        """The text that precedes a state to be reflected on ("instr"); only Taxi has one."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label that may ever be listed."""

    @property
    def max_turns(self) -> int:
        """The number of actions after which an episode is cut off."""

    @property
    def decisive(self) -> str:
        """The verb whose operand decides an episode, as in ``ListedParams.decisive``."""

    @property
    def levels(self) -> tuple[str, ...]:
        """The curriculum's levels, in order; ("",) if there is no curriculum."""

    def task_ids(self, split: Any = None) -> Sequence[int]:
        """The ids of all tasks, or of those in ``train`` or ``valid`` if the environment has these splits."""

    def level_tasks(self, level: str, tasks: Sequence[int]) -> list[int]:
        """The subset of ``tasks`` that belongs to a level, in the same order. Raises: UserError: no such level."""

    def reset(self, task_id: int, episode: int = 0, level: str = "") -> State:
        """Start a task at a level ("": the params' level); ``episode`` seeds the draws of labels and left-out files.

        Raises:
            UserError: no such task or level.
        """

    def state(self) -> State:
        """The current state; without labels once the episode has ended."""

    def commands(self) -> dict[str, str]:
        """Label -> command, in listing order; {} once the episode has ended."""

    def step(self, label: str) -> Played:
        """Act. Any text is allowed; text that is no current label is invalid: it costs a step (Taxi: is dangerous)."""

    def oracle(self) -> list[str]:
        """Commands of a shortest path to success from here, even if longer than max_turns allows; [] if none."""

    def explain(self, last: Last | None, *key: object) -> str:
        """A scripted teacher's reflection on the state, worded by a draw from ``key``; ``last`` None: the first step.

        It describes the state and, if the last action was wrong, explains why. In Taxi it never reveals the next
        action, and in AutoExplore it does not choose one.
        """

    def reveals(self, text: str) -> bool:
        """Whether a reflection reveals the oracle's next action, if that is forbidden (Taxi); otherwise False."""

    def copy(self) -> EnumeratedEnv:
        """A copy in the same state, cheap to create."""


# Questions with one right answer


@dataclass(frozen=True)
class Problem:
    """One problem. ``answer`` is the data set's complete gold text, ``gold`` the answer parsed from it."""

    id: str
    question: str
    answer: str
    gold: str


class Grade(NamedTuple):
    """A score and the answer it is based on (None: no answer could be extracted)."""

    reward: float
    answer: str | None


class AnswerEnv(Protocol):
    """One question, attempts at it, a verifier. Methods are pure: equal arguments give equal results."""

    @property
    def name(self) -> str:
        """The name in the ``env`` params."""

    def load(self, rows: Iterable[tuple[int, Mapping[str, Any]]], where: Path) -> list[Problem]:
        """Build problems from (line number, row) pairs, as yielded by ``records.read_rows``.

        Raises:
            UserError: a field is missing or the gold answer does not parse (names file and line).
        """

    def extract(self, attempt: str) -> str | None:
        """The attempt's answer, or None."""

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Whether two extracted answers are equivalent; a missing answer equals nothing, not even another."""

    def grade(self, attempt: str, problem: Problem) -> Grade:
        """Score an attempt: 1 right, 0 wrong (GSM8K: -1 if no answer can be extracted)."""

    def demonstration(self, problem: Problem) -> str:
        """The gold solution, written as an attempt that ends in ``\\boxed{...}``."""

    def slip(self, problem: Problem, *key: object) -> str:
        """A plausible wrong attempt: the gold solution with another final answer; ``key`` seeds the draw."""


@runtime_checkable
class CarriesOut(Protocol):
    """An ``AnswerEnv`` that executes attempts, so it can report the outcome of each."""

    async def carry_out(self, attempt: str, problem: Problem) -> tuple[Grade, str]:
        """The grade, and the outcome as feedback, to which the method adds whether the attempt was right.

        Raises: as ``World.step``.
        """

    async def close(self) -> None:
        """Release servers, processes and connections."""


@runtime_checkable
class MakesProblems(Protocol):
    """An ``AnswerEnv`` with built-in problems, which needs no file (``tasks.source: embedded``)."""

    def problems(
        self, counts: Mapping[str, int], *, seed: int, difficulty: Mapping[str, Any] | None = None
    ) -> dict[str, list[Problem]]:
        """``counts[split]`` problems for each split, disjoint. ``difficulty``: per split, where it can be chosen.

        Raises:
            UserError: there are too few problems.
        """


@runtime_checkable
class WritesRows(Protocol):
    """An ``AnswerEnv`` whose rows have fields other than id, question and answer."""

    def row(self, problem: Problem) -> Mapping[str, Any]:
        """The row from which ``load`` builds this problem."""


def to_row(problem: Problem, env: AnswerEnv) -> Mapping[str, Any]:
    """The row from which ``env.load`` builds this problem."""
    if isinstance(env, WritesRows):
        return env.row(problem)
    return {"id": problem.id, "question": problem.question, "answer": problem.answer}


@runtime_checkable
class Teaches(Protocol):
    """An ``AnswerEnv`` whose scripted teacher makes errors of its own instead of ``slip``'s."""

    def teach(self, problem: Problem, error_rate: float, key: object) -> str:
        """An attempt at a built-in problem, with errors at rate ``error_rate``; ``key`` seeds the draw."""

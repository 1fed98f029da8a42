"""The interface of environments: one small protocol a capability, and the values that they exchange.

| capability | protocol | needed by |
|---|---|---|
| an episode: a task is begun and acted in; reward in [0, 1] | ``Resets`` | Agent-R, Reflect-RL |
| states that can be returned to | ``Returns`` | Agent-R's tree; Reflect-RL's teacher |
| the actions that make sense now | ``ListsActions`` | Reflect-RL |
| an expert | ``KnowsExpert`` | warm starts |
| an attempt that is judged, and made again after feedback | ``AnswerEnv`` | RISE |
| an attempt that is carried out, with feedback of its own | ``CarriesOut`` | RISE, where there is more to say |
| problems of its own | ``MakesProblems`` | RISE without files |
| actions with labels, and reflections | ``EnumeratedEnv`` | Reflect-RL |

An environment holds the state of one episode, as the originals do: TextCraft, WebShop. A world (``World``) is
what a tree grows in: ``step(state, action)`` returns the next state and leaves the old one as it was, so that hundreds
of episodes share one object. Embedded environments become worlds by snapshots (``EmbeddedWorld``), slow or remote ones
by replaying actions on a pool of copies (``envs/replay.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Step(NamedTuple):
    """The result of an action.

    ``reward`` is the episode's score so far, normalised to [0, 1]. ``info`` holds
    ``raw_score`` (the environment's own scale), ``valid`` (False: the environment did not understand or could not do
    it), and ``disaster`` (True: a fatal mistake, a negative score in the original; ``reward`` is then 0).
    """

    observation: str
    reward: float
    done: bool
    info: Mapping[str, Any]


class Move(NamedTuple):
    """An expert's next action and the reason: one short first-person sentence, and an action that ``step`` takes."""

    thought: str
    action: str


class Resets(Protocol):
    """An episode: a task is begun, and acted in. One episode at a time; two copies never share state."""

    @property
    def name(self) -> str:
        """As in outputs: textcraft, webshop, sciworld."""

    @property
    def instruction(self) -> str:
        """The first user message: what the world is and how to act in it."""

    def task_ids(self) -> Sequence[int]:
        """Every task there is, in a fixed order."""

    def reset(self, task_id: int) -> str:
        """Begin a task; the first observation, which depends on nothing but the task.

        Raises:
            UserError: no such task.
        """

    def step(self, action: str) -> Step:
        """Act. Any text is allowed: what makes no sense is answered as the original answers it."""


class Returns(Protocol):
    """States that can be returned to, so that a tree can grow."""

    def snapshot(self) -> Any:
        """An immutable value from which ``restore`` brings this state back."""

    def restore(self, snapshot: Any) -> None:
        """Return to the state of a snapshot, taken of any copy of this environment."""


class ListsActions(Protocol):
    """The actions that make sense now."""

    def valid_actions(self) -> list[str] | None:
        """All of them, sorted; None where they can't be listed."""


class KnowsExpert(Protocol):
    """A scripted expert."""

    def expert(self) -> list[Move]:
        """The rest of a shortest (or the known) path to reward 1 from here; [] when done or when there is none."""


class ListsGames(Protocol):
    """Tasks that are variations of numbered games: ScienceWorld."""

    def ids_of_games(self, start: int, stop: int | None, variations: int, among: Sequence[int] | None) -> list[int]:
        """Ids of so many variations of each game of a slice; ``among``: only of these ids, None: of all."""


class AgentEnv(Resets, Returns, ListsActions, KnowsExpert, Protocol):
    """An environment that is acted in by text, with all capabilities: what Agent-R asks for."""


class World(Protocol):
    """Environment with explicit states, in which methods play. States are opaque, immutable and cheap to keep."""

    @property
    def name(self) -> str:
        """As ``AgentEnv``."""

    @property
    def instruction(self) -> str:
        """As ``AgentEnv``."""

    async def reset(self, task_id: int) -> tuple[Any, str]:
        """Begin a task: (state, first observation).

        Raises:
            UserError: no such task, or the environment can't be reached at all.
            EnvError: this episode can't go on; others may.
        """

    async def step(self, state: Any, action: str) -> tuple[Any, Step]:
        """Act in ``state``, which stays as it was. Raises: as ``reset``."""

    async def close(self) -> None:
        """Release servers, processes and connections."""


class EnvError(Exception):
    """The environment failed this episode for good (after its own retries); the episode is recorded as blocked."""


@dataclass(frozen=True)
class EmbeddedWorld:
    """A world over one embedded environment, which is put into the asked-for state before every step."""

    env: AgentEnv

    @property
    def name(self) -> str:
        """The environment's."""
        return self.env.name

    @property
    def instruction(self) -> str:
        """The environment's."""
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
    """Several environments as one, whose tasks belong to one of them each."""

    def part_of(self, task_id: int) -> str:
        """What the environment of a task calls itself."""

    def part_names(self) -> list[str]:
        """What each calls itself."""


def name_of(env: Resets | World, task_id: int) -> str:
    """What the environment of a task calls itself."""
    return env.part_of(task_id) if isinstance(env, Mixes) else env.name


# Actions with labels


class State(NamedTuple):
    """The text before one action: ``pre`` up to the action heading, ``post`` from it on, and the labels in it."""

    pre: str
    post: str
    labels: tuple[str, ...]

    @property
    def unlisted(self) -> int:
        """Actions that make sense now and have no label, since there are more of them than labels."""
        return 0


class CutState(State):
    """A state with more actions than labels; it equals the plain state of the same text."""

    without_label = 0

    @property
    def unlisted(self) -> int:
        """See ``State``."""
        return self.without_label


class Played(NamedTuple):
    """The result of an action. ``success`` is judged at the end; ``output``: the environment's answer.

    ``valid``: the label was listed, and what it stands for could be done. ``identified``: AutoExplore's answer, a path.
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
    """An environment whose actions are listed with labels, with reflections: what Reflect-RL asks for.

    One episode at a time; copies share nothing that changes.
    """

    @property
    def name(self) -> str:
        """As in the params: taxi, autoexplore, alfworld."""

    @property
    def instruction(self) -> str:
        """The text before a state that is reflected on ("instr"); only Taxi has one."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label that may ever be listed."""

    @property
    def max_turns(self) -> int:
        """Actions after which an episode is cut."""

    @property
    def decisive(self) -> str:
        """The verb whose operand decides an episode, as ``ListedParams.decisive``."""

    @property
    def levels(self) -> tuple[str, ...]:
        """The curriculum's levels, in order; ("",) where there is none."""

    def task_ids(self, split: Any = None) -> Sequence[int]:
        """Every task there is; ``train`` or ``valid``: those of a split, all where the environment has none."""

    def level_tasks(self, level: str, tasks: Sequence[int]) -> list[int]:
        """Those of ``tasks`` that belong to a level, in their order. Raises: UserError: no such level."""

    def reset(self, task_id: int, episode: int = 0, level: str = "") -> State:
        """Begin a task at a level ("": the params' own); ``episode`` names another draw of labels and left-out files.

        Raises:
            UserError: no such task or level.
        """

    def state(self) -> State:
        """The current state; after the end, without labels."""

    def commands(self) -> dict[str, str]:
        """Label -> command, in listing order; {} at the end."""

    def step(self, label: str) -> Played:
        """Act. Any text is allowed; one that is no label now is invalid: it costs a step (in Taxi: is dangerous)."""

    def oracle(self) -> list[str]:
        """Commands of a shortest path to success from here, whether or not max_turns allows it; [] if none."""

    def explain(self, last: Last | None, *key: object) -> str:
        """A scripted teacher's reflection on the state, in words drawn by ``key``; ``last`` None: the first step.

        It describes the state and, if the last action was wrong, says why. In Taxi it never reveals the next action,
        and in AutoExplore it does not choose one.
        """

    def reveals(self, text: str) -> bool:
        """Whether a reflection reveals the oracle's next action, where that is forbidden: Taxi; elsewhere False."""

    def copy(self) -> EnumeratedEnv:
        """A copy in the same state, cheap to make."""


# Questions with one right answer


@dataclass(frozen=True)
class Problem:
    """One problem. ``answer`` is the gold text in full, as the data set gives it; ``gold`` what was parsed from it."""

    id: str
    question: str
    answer: str
    gold: str


class Grade(NamedTuple):
    """A score and the answer it rests on (None: no answer could be read)."""

    reward: float
    answer: str | None


class AnswerEnv(Protocol):
    """One question, attempts at it, a verifier. Methods are pure: equal arguments give equal results."""

    @property
    def name(self) -> str:
        """As in the ``env`` params."""

    def load(self, rows: Iterable[tuple[int, Mapping[str, Any]]], where: Path) -> list[Problem]:
        """Problems of (line number, row) pairs, as ``records.read_rows`` yields them.

        Raises:
            UserError: a field is missing or the gold answer does not parse (names file and line).
        """

    def extract(self, attempt: str) -> str | None:
        """The attempt's answer, or None."""

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Whether two extracted answers say the same; a missing answer equals nothing, not even another."""

    def grade(self, attempt: str, problem: Problem) -> Grade:
        """Score an attempt: 1 right, 0 wrong (GSM8K: -1 when no answer can be read)."""

    def demonstration(self, problem: Problem) -> str:
        """The gold solution, written as an attempt that ends in ``\\boxed{...}``."""

    def slip(self, problem: Problem, *key: object) -> str:
        """A plausible wrong attempt: the gold solution with another final answer; ``key`` names the draw."""


@runtime_checkable
class CarriesOut(Protocol):
    """An ``AnswerEnv`` whose attempts are carried out, so that it can tell what each of them led to."""

    async def carry_out(self, attempt: str, problem: Problem) -> tuple[Grade, str]:
        """The grade, and what happened: the feedback, to which the method adds whether the attempt was right.

        Raises: as ``World.step``.
        """

    async def close(self) -> None:
        """Release servers, processes and connections."""


@runtime_checkable
class MakesProblems(Protocol):
    """An ``AnswerEnv`` with problems of its own, for which no file is needed (``tasks.source: embedded``)."""

    def problems(
        self, counts: Mapping[str, int], *, seed: int, difficulty: Mapping[str, Any] | None = None
    ) -> dict[str, list[Problem]]:
        """So many of each split; no problem stands in two. ``difficulty``: of a split, where there is a choice.

        Raises:
            UserError: there are fewer.
        """


@runtime_checkable
class WritesRows(Protocol):
    """An ``AnswerEnv`` whose rows have other fields than id, question and answer."""

    def row(self, problem: Problem) -> Mapping[str, Any]:
        """The row from which ``load`` makes this problem."""


def to_row(problem: Problem, env: AnswerEnv) -> Mapping[str, Any]:
    """The row from which ``env.load`` makes this problem."""
    if isinstance(env, WritesRows):
        return env.row(problem)
    return {"id": problem.id, "question": problem.question, "answer": problem.answer}


@runtime_checkable
class Teaches(Protocol):
    """An ``AnswerEnv`` whose scripted teacher errs in another way than by ``slip``."""

    def teach(self, problem: Problem, error_rate: float, key: object) -> str:
        """An attempt at one of its own problems, wrong at this rate; ``key`` names the draw."""

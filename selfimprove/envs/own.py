"""Base classes for user-defined environments: a subclass writes two methods, and the rest is derived from them.

``TextEnv`` is for environments with text actions (Agent-R, Reflect-RL), ``Answers`` for graded answers (RISE). Any
method here may be overridden, for example ``expert``, to provide thoughts and avoid the search. docs/environments.md
has an example of each class; docs/spin.md lists what SPIN accepts.
"""

import pickle
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import Grade, Move, Problem, Step
from selfimprove.envs.math.problem_files import Ids


class TextEnv(ABC):
    """Implements ``AgentEnv`` for a deterministic world whose state is the object's attributes (plain values).

    A subclass sets ``instruction`` and ``actions``, and writes ``begin`` and ``act``. Snapshots are copies of the
    attributes. The expert runs a breadth-first search over the listed actions and so finds a shortest path; this is
    practical for worlds of up to a few thousand states.
    """

    name: str
    instruction: ClassVar[str]
    """The first user message: what the world is and how to act in it."""
    actions: Sequence[str] = ()
    """All actions; a world whose actions depend on its state overrides ``valid_actions``."""
    tasks: int = 2000
    """The number of tasks; task ids start at 0."""
    largest_search: int = 20_000
    """The maximum number of states that the expert's search visits."""

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    @abstractmethod
    def begin(self, task_id: int) -> str:
        """Set the attributes to a task's first state and return the first observation."""

    @abstractmethod
    def act(self, action: str) -> tuple[str, float, bool]:
        """Do a listed action: (observation, reward in [0, 1], whether the episode ends). Reward 1 means success."""

    def task_ids(self) -> Sequence[int]:
        """See ``AgentEnv``."""
        return range(self.tasks)

    def reset(self, task_id: int) -> str:
        """See ``AgentEnv``."""
        if not 0 <= task_id < self.tasks:
            raise UserError(f"{self.name} has no task {task_id}; choose one from 0 to {self.tasks - 1}.")
        self._last: tuple[float, bool] = (0.0, False)
        first = self.begin(task_id)
        self._must_be_text(f"task {task_id} begins", first)
        return first

    def step(self, action: str) -> Step:
        """See ``AgentEnv``: an action that is not listed does nothing."""
        valid = self._understands(action)
        said = "Nothing happens."
        if valid:
            said, reward, done = self.act(action)
            self._must_be_text(f"act answers {action!r}", said)
            if not 0 <= reward <= 1:
                raise UserError(f"{self.name}: act gave reward {reward} for {action!r}; rewards must be from 0 to 1.")
            self._last = (float(reward), bool(done) or reward == 1)
        reward, done = self._last
        return Step(said, reward, done, {"raw_score": reward, "valid": valid, "disaster": False})

    def _must_be_text(self, does: str, observation: object) -> None:
        if not isinstance(observation, str):
            raise UserError(f"{self.name}: {does} with {observation!r}; an observation must be a string.")

    def valid_actions(self) -> list[str] | None:
        """See ``AgentEnv``; none once the episode has ended."""
        return [] if self._last[1] else sorted(self.actions)

    def _understands(self, action: str) -> bool:
        """Whether ``act`` accepts the action now: whether it is listed."""
        return action in (self.valid_actions() or ())

    def _apart(self) -> Any:
        """The key that distinguishes states in the expert's search: the snapshot, whichever objects values share."""
        if type(self).snapshot is not TextEnv.snapshot:
            return self.snapshot()
        key = BytesIO()
        pickler = pickle.Pickler(key)
        pickler.fast = True  # a value that occurs twice is written twice, whether or not it is one object
        try:
            pickler.dump(self._values())
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError):  # or contains itself
            return self.snapshot()
        return key.getvalue()

    def _values(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_ways"}

    def snapshot(self) -> Any:
        """See ``AgentEnv``.

        Raises:
            UserError: an attribute cannot be copied.
        """
        try:
            return pickle.dumps(self._values())
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            said = " ".join(str(error).split())
            raise UserError(
                f"{self.name}: the state cannot be copied ({said}); move constant attributes to the class, or override "
                "snapshot and restore."
            ) from None

    def restore(self, snapshot: Any) -> None:
        """See ``AgentEnv``; the snapshot must come from this process, never from a file."""
        ways = self._known_ways()
        vars(self).clear()
        vars(self).update(pickle.loads(snapshot), _ways=ways)

    def expert(self) -> list[Move]:
        """See ``AgentEnv``: a shortest path, or [] if the search finds none."""
        here, ways = self.snapshot(), self._known_ways()
        if here not in ways:
            # Store the remaining path for every state on it, so that an episode that follows the expert searches once.
            states, way = self._search(here)
            ways.update((state, way[i:]) for i, state in enumerate(states))
            self.restore(here)
        return [Move("This leads to the goal.", action) for action in ways[here]]

    def _known_ways(self) -> dict[Any, list[str]]:
        return vars(self).setdefault("_ways", {})

    def _search(self, start: Any) -> tuple[list[Any], list[str]]:
        """The states from ``start`` along a shortest path to reward 1, and the action taken in each."""
        before: dict[Any, tuple[Any, str]] = {}
        seen, waiting = {self._apart()}, deque([start])
        while waiting and len(seen) < self.largest_search:
            state = waiting.popleft()
            self.restore(state)
            for action in self.valid_actions() or ():
                self.restore(state)
                reached = self.step(action)
                after, state_after = self.snapshot(), self._apart()
                if reached.reward == 1:
                    states, way = [state], [action]
                    while states[0] != start:
                        earlier, action = before[states[0]]
                        states.insert(0, earlier)
                        way.insert(0, action)
                    return states, way
                if state_after not in seen and not reached.done:
                    seen.add(state_after)
                    before[after] = (state, action)
                    waiting.append(after)
        return [start], []


class Answers(ABC):
    """Implements ``AnswerEnv`` for rows with ``question`` and ``answer``; a subclass writes the two methods below."""

    name: str

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    @abstractmethod
    def extract(self, attempt: str) -> str | None:
        """The attempt's answer, or None."""

    @abstractmethod
    def demonstration(self, problem: Problem) -> str:
        """A right attempt, from which ``extract`` reads ``problem.gold``."""

    def load(self, rows: Iterable[tuple[int, Mapping[str, Any]]], where: Path) -> list[Problem]:
        """See ``AnswerEnv``; every problem's demonstration must earn reward 1.

        The default ``id`` is the question; if rows share an id, later ones get the suffix ``-2``, ``-3``, …
        """
        problems, ids = [], Ids(self.name)
        for line, row in rows:
            question, answer = row.get("question"), row.get("answer")
            if not isinstance(question, str) or not isinstance(answer, str):
                raise UserError(f"{where}, line {line}: question and answer must be strings; fix or delete the line.")
            own = question if row.get("id") is None else str(row["id"])
            problem = Problem(ids.of(question, own), question, answer, answer)
            if self.grade(self.demonstration(problem), problem).reward != 1:
                raise UserError(
                    f"{where}, line {line}: {self.name} extracts {self.extract(self.demonstration(problem))!r} from "
                    f"its demonstration, but the answer is {answer!r}; fix the line, extract or demonstration."
                )
            problems.append(problem)
        return problems

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """See ``AnswerEnv``: equal text."""
        return a is not None and a == b

    def grade(self, attempt: str, problem: Problem) -> Grade:
        """See ``AnswerEnv``."""
        answer = self.extract(attempt)
        return Grade(float(self.equivalent(answer, problem.gold)), answer)

    def slip(self, problem: Problem, *key: object) -> str:
        """See ``AnswerEnv``: the demonstration of a number off by one, or of a text without its last character."""
        gold = problem.gold
        wrong = str(int(gold) + rng("slip", problem.id, *key).choice((-1, 1))) if gold.isdecimal() else gold[:-1]
        return self.demonstration(replace(problem, gold=wrong, answer=wrong))

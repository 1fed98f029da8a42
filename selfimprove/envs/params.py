"""The ``env`` sections of params.yaml: what those of one method have in common, and an environment of a person's own.

A world declares its own section in ``world.py`` of its folder: a subclass of one of the classes below, with its name,
its options, and how it is made. ``registry`` finds them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from pydantic import Field, field_validator, model_validator

from selfimprove.core.errors import UserError
from selfimprove.core.params import LARGEST_SEED, Section
from selfimprove.envs.interface import AgentEnv, AnswerEnv, EmbeddedWorld, EnumeratedEnv, World
from selfimprove.envs.labels import LABELS, LabelSet, Spelling

if TYPE_CHECKING:
    from selfimprove.engines.base import Engine

T = TypeVar("T")


class Judged(NamedTuple):
    """The environment as a judge's prompt names it, in a sentence and in a word; the goal, if no task names it."""

    kind: str = "a text world, in which a task is to be carried out"
    short: str = "game"
    goal: str = ""


class EnvParams(Section):
    """Which environment is played."""

    name: str

    prefix: ClassVar[str] = ""
    """A name that begins with this and ":" is of this section: ``gymnasium:FrozenLake-v1``."""
    names_module: ClassVar[bool] = True
    """Whether what stands before the last ":" of its name is a module, on which a stage depends."""
    paper: ClassVar[str] = ""
    """The method whose paper plays environments of this kind."""
    capability: ClassVar[str] = ""
    """What a method that plays environments of this kind needs of one, as a message names it."""
    adapts: ClassVar[tuple[type[EnvParams], ...]] = ()
    """An adapter: environments of which kinds it gives to the methods that play environments of its own."""
    how: ClassVar[str] = ""
    """An adapter: how, as the table of docs/environments.md says it."""
    judged: ClassVar[Judged | None] = None
    """How a judge's prompt names it; None: as the adapter does."""

    @classmethod
    def lacks(cls, one: type[EnvParams]) -> str:
        """An adapter: what an environment of a kind that it takes lacks, or ""."""
        return ""

    def mixed(self) -> tuple[TextParams, ...]:
        """The environments of a mixture, also of one that is adapted; () of any other."""
        inner: EnvParams | None = getattr(self, "inner", None)
        return inner.mixed() if inner else ()

    def acted(self) -> AgentEnv:
        """The environment as one that is acted in by text, from which adapters derive what else methods need.

        Raises:
            UserError: what the environment needs is missing or wrong.
        """
        raise NotImplementedError

    @property
    def world_name(self) -> str:
        """What the environment calls itself in outputs; an adapter has the name of the one that it adapts."""
        inner: EnvParams | None = getattr(self, "inner", None)
        return inner.world_name if inner else self.name


class AgentGym(NamedTuple):
    """An environment in AgentGym's HTTP protocol: what our server speaks (a ``remote.dialects.Dialect``), and
    ``remote_world(name, server, concurrency, timeout, instruction)``, a world on such a server.

    Nothing of ``remote`` is imported here: a stage depends on it only if its environment speaks the protocol.
    """

    dialect: Any
    remote_world: Callable[..., World]


class TextParams(EnvParams):
    """An environment that is acted in by text: embedded, or on any server that speaks AgentGym's protocol."""

    server: str | None = Field(
        default=None, description="http://host:port of an AgentGym server; null: the embedded environment"
    )
    server_concurrency: int = Field(
        default=32, ge=1, le=10_000, description="environments kept open concurrently on the server"
    )
    server_timeout: float = Field(default=60.0, gt=0, description="timeout of a call in seconds")

    paper: ClassVar[str] = "agent_r"
    capability: ClassVar[str] = "states that can be returned to"
    judged: ClassVar[Judged] = Judged()
    best: ClassVar[float] = 1.0
    """The maximum of the environment's own score."""
    has_games: ClassVar[bool] = False
    """Whether its tasks are variations of numbered games (agent_r.tasks.games); the environment is a ``ListsGames``."""
    has_layouts: ClassVar[bool] = False
    """Whether the same tasks can be laid out differently (agent_r.tasks.layouts)."""
    lists_actions: ClassVar[bool] = True
    """Whether ``valid_actions`` lists any."""
    lists_expert: ClassVar[bool] = True
    """Whether what the expert does is listed, in the expert's words."""

    def make(self) -> AgentEnv:
        """A copy of the embedded environment, whether or not ``server`` is set.

        Raises:
            UserError: what the environment needs is missing or wrong (a recipe file). A missing Java: at ``reset``.
        """
        raise NotImplementedError

    def acted(self) -> AgentEnv:
        return self.make()

    def world(self) -> World:
        """Where methods play: the embedded environment, or the AgentGym server that ``server`` names.

        Raises:
            UserError: as ``make``, or the server's address is none.
        """
        if self.server is None:
            return self.embedded_world()
        return self._protocol().remote_world(
            self.name, self.server, self.server_concurrency, self.server_timeout, self.instruction()
        )

    def embedded_world(self) -> World:
        """The world over copies made here."""
        return EmbeddedWorld(self.make())

    def instruction(self) -> str:
        """The first user message, without anything that the environment needs."""
        return self.make().instruction

    @classmethod
    def agentgym(cls) -> AgentGym | None:
        """How it is served and played on remotely; None: it is embedded only."""
        return None

    def _protocol(self) -> AgentGym:
        protocol = self.agentgym()
        if protocol is None:
            raise UserError(f"env.server: AgentGym's protocol does not support {self.name}; set null.")
        return protocol

    def layouts(self, count: int) -> list[AgentEnv]:
        """Copies in which the same tasks are laid out differently, where ``has_layouts``; else ``count`` is 1."""
        return [self.make() for _ in range(count)]


class Asking(Section):
    """The form of a request to a language model that asks about files. ``pairs``: of one file, at most."""

    pairs: int = Field(default=2, ge=1, description="maximum number of questions per file")
    temperature: float = Field(default=0.7, ge=0)
    top_p: float = Field(default=0.9, gt=0, le=1)
    max_tokens: int = Field(default=600, ge=1)


class AskedTeacher(NamedTuple):
    """Who makes tasks, and how. ``model``: how the tasks name it; ``progress``: called with answers so far, and all."""

    engine: Engine
    form: Asking
    seed: int
    model: str
    progress: Callable[[int, int], object]


class ListedParams(EnvParams):
    """An environment whose actions are listed by label (docs/reflect-rl.md, L29 to L44)."""

    max_turns: int = Field(default=15, ge=1, description="maximum number of turns in an episode; the paper's horizon H")
    labels: LabelSet = Field(
        default="full",
        description="full: 0..199, a-z, A-Z; single: 0..9, a-z, A-Z, for tokenizers that split numbers into digits",
    )
    shuffle_action: bool = Field(default=False, description="draw new labels at each state; ignored by taxi")
    curriculum_index: int = Field(default=-1, ge=-1, description="use only this level; -1: all levels")
    seed: int = Field(
        default=0,
        ge=0,
        le=LARGEST_SEED,
        description="seed of repositories, questions, kitchens, labels and left-out entries",
    )

    paper: ClassVar[str] = "reflect_rl"
    capability: ClassVar[str] = "actions that can be listed"
    decisive: ClassVar[str] = ""
    """The verb whose operand decides an episode (AutoExplore's ``cat``): negatives take a wrong one; "" explores."""
    takes_task_file: ClassVar[bool] = False
    """Whether a file or a teacher may give its tasks (reflect_rl.tasks.file, .teacher)."""
    played_as: ClassVar[tuple[str, ...]] = ()
    """Further names by which it can be played in the terminal."""
    levels_a_task: ClassVar[int] = 1
    """At how many of the curriculum's levels a task is played."""
    mishap: ClassVar[str] = ""
    """Said to a person whose action ended the episode before its time."""

    @classmethod
    def rules(cls, max_turns: int) -> str:
        """The rules for a person, before the first action; "" where the state has them."""
        return ""

    @classmethod
    def to_play(cls, name: str, configured: ListedParams) -> ListedParams:
        """What a person plays as ``name``: the section of params.yaml, or this one with the settings common to both."""
        return configured if isinstance(configured, cls) else cls(**{**configured.common(), "name": name})

    def common(self) -> dict[str, Any]:
        """The settings that every listed environment has, without the name."""
        return {key: getattr(self, key) for key in ListedParams.model_fields if key != "name"}

    def make(self, tasks: Path | None = None, *, training: bool = False) -> EnumeratedEnv:
        """The environment.

        Args:
            tasks: the folder that reflect_rl-data wrote (AutoExplore: its tasks.json is played); None: made anew.
            training: whether AutoExplore hides entries with ``leaveout_prob``; evaluation never does.

        Raises:
            UserError: what the environment needs is missing or wrong.
        """
        raise NotImplementedError

    def most_tasks(self, per_file: int | None = None) -> int:
        """Training tasks there can be at most; ``per_file``: questions about a file, where a teacher is asked."""
        return len(self.make().task_ids("train"))

    async def prepare(self, folder: Path, file: Path | None = None, asked: AskedTeacher | None = None) -> list[str]:
        """Write into the folder what ``make`` reads there; sentences about tasks that were left out.

        Args:
            file: of tasks, where ``takes_task_file``; ``asked``: a teacher that makes them instead.

        Raises:
            UserError: no task is left, or the file is missing or malformed.
        """
        return []

    def instruction(self) -> str:
        """The text before a state that is reflected on, without making the environment."""
        return ""

    def spelling(self) -> Spelling:
        """The environment's name and labels, without making it."""
        return Spelling(self.world_name, LABELS[self.labels])


class AnswerParams(EnvParams):
    """How an attempt is graded, and the prompt that opens every episode."""

    few_shot: bool = Field(default=True, description="start with the paper's worked example")

    paper: ClassVar[str] = "rise"
    capability: ClassVar[str] = "answers that are judged"
    own_tasks: ClassVar[bool] = False
    """Whether its problems are tasks of its own, so that no data set holds them."""

    def make(self) -> AnswerEnv:
        """The environment that grades."""
        raise NotImplementedError


class OwnTasksParams(AnswerParams):
    """An environment whose tasks an adapter makes problems of."""

    few_shot: bool = Field(
        default=False, description="must be false: the paper's worked example is a mathematics problem"
    )

    own_tasks: ClassVar[bool] = True

    @field_validator("few_shot")
    @classmethod
    def _no_example(cls, value: bool) -> bool:
        if value:
            raise ValueError(
                "the worked example is a mathematics problem, but this environment has other tasks; set false"
            )
        return value


# An environment of a person's own


class OwnParams(EnvParams):
    """An environment of a person's own, by its class."""

    name: str = Field(pattern=r"^[^:]+:[^:]+$", description="package.module:Class, a custom environment")
    options: dict[str, Any] = Field(default={}, description="constructor arguments of the class")

    needs: ClassVar[type]

    @model_validator(mode="after")
    def _fits(self) -> OwnParams:
        own_class(self.name, self.needs)
        return self

    @property
    def world_name(self) -> str:
        """The class's ``name``."""
        return str(own_class(self.name, self.needs).name)

    def _made(self) -> Any:
        return make_own(self.name, self.needs, **self.options)

    def _checked(self) -> Any:
        """A new one that is acted in; the first time its promises are checked."""
        from selfimprove.envs.contract import check_once

        check_once(self.name, repr(self.options), self._made)
        return self._made()


def make_own(name: str, needs: type, **options: Any) -> Any:
    """An object of the class that ``package.module:Class`` names.

    Raises:
        UserError: it does not take these options.
    """
    try:
        return own_class(name, needs)(**options)
    except TypeError as error:
        raise UserError(f"{name} cannot be constructed with these options ({error}); fix options.") from None


def own_class(name: str, needs: type, key: str = "name") -> Any:
    """The class that ``package.module:Class`` names.

    Raises:
        ValueError: it does not import, is no class, or lacks what the protocol ``needs`` promises.
    """
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a user's module raises at import
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{key}: module {module_name!r} cannot be imported ({said}); fix it") from None
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise ValueError(f"{key}: {module_name} has no class {class_name!r}; fix the name")
    lacking = {member for member in members(needs) if not hasattr(found, member)}
    lacking |= getattr(found, "__abstractmethods__", frozenset())
    if lacking:
        raise ValueError(
            f"{key}: {name} lacks {', '.join(sorted(lacking))}; add what {needs.__name__} in {needs.__module__} "
            "requires"
        )
    return found


def members(protocol: type) -> list[str]:
    """What a protocol promises, by name."""
    own = [base for base in protocol.__mro__ if base.__module__ == protocol.__module__]
    return sorted({name for base in own for name in vars(base) if not name.startswith("_")})


class OwnTextParams(OwnParams, TextParams):
    """Your own environment that is acted in by text (docs/environments.md)."""

    needs: ClassVar[type] = AgentEnv

    def make(self) -> AgentEnv:
        return self._checked()


class OwnListedParams(OwnParams, ListedParams):
    """Your own environment that is acted in by text; the actions that it lists get labels (docs/environments.md)."""

    needs: ClassVar[type] = AgentEnv

    def make(self, tasks: Path | None = None, *, training: bool = False) -> EnumeratedEnv:
        from selfimprove.envs.listed import ListedText

        return ListedText(self._checked(), self.max_turns, LABELS[self.labels], self.shuffle_action, self.seed)

    def instruction(self) -> str:
        return f"{own_class(self.name, self.needs).instruction}\n"


class OwnAnswerParams(OwnParams, AnswerParams):
    """Your own questions with one right answer, and their grades (docs/environments.md)."""

    needs: ClassVar[type] = AnswerEnv

    def make(self) -> AnswerEnv:
        return self._made()

"""The ``env`` sections of params.yaml: what those of one method have in common, and those of user-defined environments.

Each world declares its section in its folder's ``world.py``: a subclass of one of the classes below, with the world's
name, its options, and how it is created. ``registry`` finds these classes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from pydantic import Field, field_validator, model_validator

from selfimprove.core.errors import UserError
from selfimprove.core.params import LARGEST_SEED, Section
from selfimprove.envs.contract import check_once
from selfimprove.envs.interface import AgentEnv, AnswerEnv, EmbeddedWorld, EnumeratedEnv, World
from selfimprove.envs.labels import LABELS, LabelSet, Spelling
from selfimprove.envs.own_classes import make_own, own_class

if TYPE_CHECKING:
    from selfimprove.engines.base import Engine

T = TypeVar("T")


class Judged(NamedTuple):
    """How a judge's prompt describes the environment, in a phrase and in a word; and its goal, if no task states it."""

    kind: str = "a text world, in which a task is to be carried out"
    short: str = "game"
    goal: str = ""


class EnvParams(Section):
    """The environment to play."""

    name: str

    prefix: ClassVar[str] = ""
    """Names that begin with this prefix and ":" belong to this section: ``gymnasium:FrozenLake-v1``."""
    names_module: ClassVar[bool] = True
    """Whether the part of the name before the last ":" is a module, on which a stage depends."""
    paper: ClassVar[str] = ""
    """The method whose paper plays environments of this kind."""
    capability: ClassVar[str] = ""
    """What a method that plays this kind of environment requires of it, as messages name it."""
    adapts: ClassVar[tuple[type[EnvParams], ...]] = ()
    """For adapters: the kinds of environments that the adapter converts to its own kind."""
    how: ClassVar[str] = ""
    """For adapters: how it converts them, for the table in docs/environments.md."""
    judged: ClassVar[Judged | None] = None
    """How a judge's prompt describes it; None: as the adapter does."""

    @classmethod
    def lacks(cls, one: type[EnvParams]) -> str:
        """For adapters: what ``one``, of a kind that the adapter converts, lacks; "" if nothing."""
        return ""

    def mixed(self) -> tuple[TextParams, ...]:
        """The environments of a mixture, including an adapted one; otherwise ()."""
        inner: EnvParams | None = getattr(self, "inner", None)
        return inner.mixed() if inner else ()

    def acted(self) -> AgentEnv:
        """The environment as one with text actions, from which adapters derive the methods' other requirements.

        Raises:
            UserError: something that the environment needs is missing or wrong.
        """
        raise NotImplementedError

    @property
    def world_name(self) -> str:
        """The environment's name in outputs; an adapter has the name of the environment that it adapts."""
        inner: EnvParams | None = getattr(self, "inner", None)
        return inner.world_name if inner else self.name


class AgentGym(NamedTuple):
    """An environment in AgentGym's HTTP protocol: our server's dialect (a ``remote.dialects.Dialect``), and
    ``remote_world(name, server, concurrency, timeout, instruction)``, a world on such a server.

    Nothing is imported from ``remote`` here, so that a stage depends on it only if its environment uses the protocol.
    """

    dialect: Any
    remote_world: Callable[..., World]


class TextParams(EnvParams):
    """An environment with text actions: embedded, or on any server with AgentGym's protocol."""

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
    """Whether the same tasks can have different layouts (agent_r.tasks.layouts)."""
    lists_actions: ClassVar[bool] = True
    """Whether ``valid_actions`` lists the actions."""
    lists_expert: ClassVar[bool] = True
    """Whether the list contains the expert's actions, in the expert's wording."""

    def make(self) -> AgentEnv:
        """A copy of the embedded environment, whether or not ``server`` is set.

        Raises:
            UserError: something needed is missing or wrong, such as a recipe file. (Missing Java: at ``reset``.)
        """
        raise NotImplementedError

    def acted(self) -> AgentEnv:
        return self.make()

    def world(self) -> World:
        """The world in which methods play: the embedded environment, or the AgentGym server at ``server``.

        Raises:
            UserError: as ``make``, or the server's address is invalid.
        """
        if self.server is None:
            return self.embedded_world()
        return self._protocol().remote_world(
            self.name, self.server, self.server_concurrency, self.server_timeout, self.instruction()
        )

    def embedded_world(self) -> World:
        """The world over local copies."""
        return EmbeddedWorld(self.make())

    def instruction(self) -> str:
        """The first user message; does not require the environment's files or programs."""
        return self.make().instruction

    @classmethod
    def agentgym(cls) -> AgentGym | None:
        """How the environment is served and played remotely; None: it is embedded only."""
        return None

    def _protocol(self) -> AgentGym:
        protocol = self.agentgym()
        if protocol is None:
            raise UserError(f"env.server: AgentGym's protocol does not support {self.name}; set null.")
        return protocol

    def layouts(self, count: int) -> list[AgentEnv]:
        """Copies with different layouts of the same tasks if ``has_layouts``; otherwise ``count`` is 1."""
        return [self.make() for _ in range(count)]


class Asking(Section):
    """Settings of a request for questions about a file. ``pairs``: the maximum number of questions about one file."""

    pairs: int = Field(default=2, ge=1, description="maximum number of questions per file")
    temperature: float = Field(default=0.7, ge=0)
    top_p: float = Field(default=0.9, gt=0, le=1)
    max_tokens: int = Field(default=600, ge=1)


class AskedTeacher(NamedTuple):
    """The model that writes tasks. ``model``: its name in the tasks; ``progress(answers, total)`` reports progress."""

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
    """Whether its tasks may come from a file or a teacher (reflect_rl.tasks.file, .teacher)."""
    played_as: ClassVar[tuple[str, ...]] = ()
    """Additional names for playing it in the terminal."""
    levels_a_task: ClassVar[int] = 1
    """The number of curriculum levels at which each task is played."""
    mishap: ClassVar[str] = ""
    """Message to a human player whose action ended the episode prematurely."""

    @classmethod
    def rules(cls, max_turns: int) -> str:
        """The rules for a human player, shown before the first action; "" if the state contains them."""
        return ""

    @classmethod
    def to_play(cls, name: str, configured: ListedParams) -> ListedParams:
        """The section for a human player: that of params.yaml, or this one with the settings common to both."""
        return configured if isinstance(configured, cls) else cls(**{**configured.common(), "name": name})

    def common(self) -> dict[str, Any]:
        """The settings that all listed environments have, without the name."""
        return {key: getattr(self, key) for key in ListedParams.model_fields if key != "name"}

    def make(self, tasks: Path | None = None, *, training: bool = False) -> EnumeratedEnv:
        """Create the environment.

        Args:
            tasks: the folder written by reflect_rl-data (AutoExplore plays its tasks.json); None: generate tasks anew.
            training: whether AutoExplore hides entries with ``leaveout_prob``; evaluation never does.

        Raises:
            UserError: something that the environment needs is missing or wrong.
        """
        raise NotImplementedError

    def most_tasks(self, per_file: int | None = None) -> int:
        """The maximum number of training tasks; ``per_file``: a teacher's questions about each file."""
        return len(self.make().task_ids("train"))

    async def prepare(self, folder: Path, file: Path | None = None, asked: AskedTeacher | None = None) -> list[str]:
        """Write to the folder what ``make`` reads from it; returns sentences about tasks that were left out.

        Args:
            file: a file of tasks, if ``takes_task_file``; ``asked``: a teacher that writes them instead.

        Raises:
            UserError: no task is left, or the file is missing or malformed.
        """
        return []

    def instruction(self) -> str:
        """The text that precedes a state to be reflected on; does not create the environment."""
        return ""

    def spelling(self) -> Spelling:
        """The environment's name and labels; does not create the environment."""
        return Spelling(self.world_name, LABELS[self.labels])


class AnswerParams(EnvParams):
    """How attempts are graded, and the prompt at the start of every episode."""

    few_shot: bool = Field(default=True, description="start every episode with a worked example")

    paper: ClassVar[str] = "rise"
    capability: ClassVar[str] = "answers that are judged"
    own_tasks: ClassVar[bool] = False
    """Whether its problems are its own tasks, which no data set contains."""

    def make(self) -> AnswerEnv:
        """Create the environment that grades."""
        raise NotImplementedError


class OwnTasksParams(AnswerParams):
    """An environment whose tasks an adapter turns into problems."""

    few_shot: bool = Field(default=False, description="must be false: the worked example is a mathematics problem")

    own_tasks: ClassVar[bool] = True

    @field_validator("few_shot")
    @classmethod
    def _no_example(cls, value: bool) -> bool:
        if value:
            raise ValueError(
                "the worked example is a mathematics problem, but this environment has other tasks; set false"
            )
        return value


# User-defined environments


class OwnParams(EnvParams):
    """A user-defined environment, specified by its class."""

    name: str = Field(pattern=r"^[^:]+:[^:]+$", description="package.module:Class, a custom environment")
    options: dict[str, Any] = Field(default={}, description="constructor arguments of the class")

    needs: ClassVar[type]

    @model_validator(mode="after")
    def _fits(self) -> OwnParams:
        own_class(self.name, self.needs)
        return self

    @property
    def world_name(self) -> str:
        """The ``name`` of an object of the class, which may be a property or depend on ``options``."""
        return str(self._made().name)

    def _made(self) -> Any:
        return make_own(self.name, self.needs, **self.options)

    def _checked(self) -> Any:
        """Create the environment; its contract is checked the first time."""
        check_once(self.name, repr(self.options), self._made)
        return self._made()


class OwnTextParams(OwnParams, TextParams):
    """A user-defined environment with text actions (docs/environments.md)."""

    needs: ClassVar[type] = AgentEnv

    def make(self) -> AgentEnv:
        return self._checked()


class OwnListedParams(OwnParams, ListedParams):
    """A user-defined environment with text actions; listed actions get labels (docs/environments.md)."""

    needs: ClassVar[type] = AgentEnv

    def make(self, tasks: Path | None = None, *, training: bool = False) -> EnumeratedEnv:
        from selfimprove.envs.listed import ListedText, refuse_level

        env = self._checked()
        refuse_level(env.name, self.curriculum_index)
        return ListedText(env, self.max_turns, LABELS[self.labels], self.shuffle_action, self.seed)

    def instruction(self) -> str:
        return f"{self._made().instruction}\n"


class OwnAnswerParams(OwnParams, AnswerParams):
    """User-defined questions with one right answer, and how they are graded (docs/environments.md)."""

    needs: ClassVar[type] = AnswerEnv

    def make(self) -> AnswerEnv:
        return self._made()

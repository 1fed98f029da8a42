"""The lines of a run's JSONL files, as far as the page reads them.

These types accept the files of any version of the methods: keys that the page does not read are ignored, and values
that a file may omit have defaults. A line that satisfies its type can be shown.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from selfimprove.apps.report.schema import Number, Part

Tokens = list[Annotated[int, Field(ge=0, lt=1 << 32)]] | None


class Message(Part):
    """A message of a dialogue."""

    role: str
    content: str
    weight: Number = 0
    token_ids: Tokens = None


class Line(Part):
    """What all episodes and examples have."""

    id: str
    status: str = Field(default="unsolved", min_length=1)
    error: str | None = None
    source: str = ""


class Attempt(Part):
    """A sampled action of a turn."""

    text: str
    reward: Number | None = None
    answer: str | None = None
    token_ids: Tokens = None
    finish: str | None = None
    valid: bool = True


class Turn(Part):
    """A turn of an episode."""

    model: str
    attempts: list[Attempt]
    chosen: int = Field(default=0, ge=0)
    observation: str = ""

    @model_validator(mode="after")
    def _chose_one(self) -> Self:
        if self.chosen >= len(self.attempts):
            raise ValueError(f"there is no attempt {self.chosen}")
        return self


class Turns(Line):
    """An episode of RISE or Agent-R."""

    env: str
    query: str
    gold: str = ""
    run: str = ""
    prompt: list[Message]
    turns: list[Turn]


class Round(Part):
    """A round of a SPIN episode."""

    tool: str | None
    argument: str = ""
    failed: bool = False


class Rounds(Line):
    """An episode of SPIN."""

    question: str
    gold: str = ""
    kind: str = ""
    answer: str = ""
    reward: Number | None = None
    run: int = 0
    prompt: list[Message]
    messages: list[Message] = Field(default=[])
    rounds: list[Round]


class Step(Part):
    """A step of Reflect-RL; the state is ``prompt``, or ``pre`` and ``post`` in the teacher's trajectories."""

    prompt: str | None = None
    pre: str = ""
    post: str = ""
    reflection: str | None = None
    label: str
    command: str | None = None
    valid: bool = True
    cost: Number = 0
    logprob: Number | None = None
    entropy: Number | None = None

    @model_validator(mode="before")
    @classmethod
    def _has_a_state(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and not ("prompt" in value or {"pre", "post"} <= value.keys()):
            raise ValueError("there is no prompt")
        return value


class Steps(Line):
    """An episode of Reflect-RL or a trajectory of its teacher."""

    env: str
    task_id: int | str
    level: str = ""
    info: str = ""
    episode: int | str = ""
    cost: Number = 0
    steps: list[Step]


class Example(Line):
    """A training example."""

    prompt: list[Message] = Field(default=[])
    messages: list[Message]


class LoggedStep(Part):
    """A step in the log of reinforcement learning."""

    prompt: str
    generation: str
    cost: Number
    togo: Number | None = Field(alias="Q_value")
    logprob: Number | None = None
    entropy: Number | None = None


class LoggedEpisode(Part):
    """An episode in the log of reinforcement learning."""

    batch: int
    detail: list[LoggedStep]


class Logged(Part):
    """An iteration of reinforcement learning with its logged episodes."""

    iter: int
    level: str
    succ: Number | None
    cost: Number | None = None
    log: list[LoggedEpisode]


KINDS: dict[str, type[Part]] = {"log": Logged, "turns": Turns, "rounds": Rounds, "steps": Steps, "messages": Example}
"""Key of an episode or example -> its kind."""


def check_line(line: Mapping[str, Any]) -> Part:
    """Check a line of any method's episodes, trajectories, examples or reinforcement log.

    Raises:
        ValueError: the line is of no known kind, or not valid.
    """
    kind = next((kind for key, kind in KINDS.items() if key in line), None)
    if kind is None:
        raise ValueError("neither an episode nor an example")
    return kind.model_validate(line)


class Node(Part):
    """A node of a search tree."""

    parent: int | None = None
    visits: int = 0
    value: Number = 0
    reward: Number = 0
    terminal: bool = False
    done: bool = False
    valid: bool = True
    disaster: bool = False
    action: str = ""
    reply: str = ""
    observation: str = ""


class Tree(Line):
    """A search tree of Agent-R."""

    seed: str = ""
    task_id: int | str | None = None
    prompt: list[Message]
    nodes: list[Node] = Field(min_length=1)

    @model_validator(mode="after")
    def _parents_come_first(self) -> Self:
        for number, node in enumerate(self.nodes[1:], start=1):
            if node.parent is None or not 0 <= node.parent < number:
                raise ValueError(f"node {number} has parent {node.parent}, which does not come before it")
        return self


class Said(Part):
    """A message of a pair log."""

    role: str
    content: str
    loss: bool | None = None


class Judgement(Part):
    """A judged step of a pair log."""

    judgement: str = ""
    revision_feedback: str = ""


class PairLog(Part):
    """A pair log of Agent-R: a good and a bad path, and the revision made of them."""

    task_num: int | str | None = None
    task_description: str
    high_log: list[Said]
    low_log: list[Said]
    revise_log: list[Said]
    revise_feedback: list[Judgement] | None = None


class Pair(Part):
    """Two continuations of one prompt."""

    id: str
    prompt: list[Message]
    real: list[Message]
    generated: list[Message]


class Move(Part):
    """What pairs show of a step."""

    reflection: str | None = None
    command: str | None = None


class Trajectory(Part):
    """What pairs show of a teacher's trajectory."""

    id: str
    task_id: int | str
    level: str | None = None
    info: str = ""
    steps: list[Move]


class Task(Part):
    """A task of a split."""

    id: str | int = ""
    env: str | None = None
    task_id: int | str | None = None

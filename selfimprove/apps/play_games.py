"""Environments as games in the terminal, with one interface for humans, experts and models.

Three kinds: environments with labelled actions (Reflect-RL's), with free-text actions (Agent-R's), and questions with
one right answer (RISE's). In each, a model gets exactly the prompt of its method.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.core.yaml import read_yaml
from selfimprove.engines.base import Completion, Engine, Request
from selfimprove.envs.interface import AgentEnv, AnswerEnv, EnumeratedEnv, Move, Played, Problem
from selfimprove.envs.labels import oracle_label
from selfimprove.envs.params import ListedParams, TextParams
from selfimprove.envs.registry import DEFAULTS, MIXTURE, answer_env, listed_env, named, text_env
from selfimprove.methods.reflect_rl.prompts import (
    MARKERS,
    MarkerStyle,
    cut_reflection,
    policy_prompt,
    reflection_prompt,
)
from selfimprove.pipeline.params import load_section

QUIZZES = ("arithmetic", "gsm8k", "math")
LISTED = {alias: one for name, one in named(ListedParams).items() for alias in (name, *one.played_as)}
TEXTS = [name for name in named(TextParams) if name != MIXTURE]
ENVS = tuple(dict.fromkeys([DEFAULTS["agent_r"], *TEXTS, *LISTED, *QUIZZES]))

REPLY_TOKENS = 128  # maximum length of a model's free-text answer


class Told(NamedTuple):
    """The result of an action. ``score``: text with sign and total; ``success`` is meaningful only if ``done``."""

    text: str
    score: str
    done: bool
    success: bool
    valid: bool


class Game(Protocol):
    """A game that plays one episode at a time."""

    @property
    def name(self) -> str:
        """The name of the game."""

    @property
    def about(self) -> str:
        """What a human needs to know before the first action; "" if the state explains it."""

    def tasks(self) -> Sequence[int]:
        """All task numbers."""

    def begin(self, task: int) -> str:
        """Start a task; returns the first observation. Raises: UserError: there is no such task."""

    def choices(self) -> Mapping[str, str]:
        """Label -> command if only these actions are allowed; {} if any text is."""

    def possible(self) -> list[str]:
        """The actions that make sense now (may take a while); [] if they cannot be listed."""

    def act(self, action: str) -> Told:
        """Perform an action, given by its label if there are labels, else as text."""

    def expert(self) -> Move | None:
        """The expert's action in the current state and its reason; None if it has none."""

    async def ask(self, engine: Engine, key: SeedKey, temperature: float) -> str:
        """A model's action in the current state, as accepted by ``act``. Raises: EngineError, UserError."""


class LabelledGame:
    """An environment with labelled actions. ``reflector`` writes the reflection that a policy reads.

    ``markers``: the style of the prompts' markers with which both were trained.
    """

    def __init__(
        self, name: str, env: EnumeratedEnv, reflector: Engine | None = None, markers: MarkerStyle = "spaced"
    ) -> None:
        self.name, self._env, self._reflector, self._markers = name, env, reflector, MARKERS[markers]
        world = named(ListedParams).get(name, ListedParams)
        self.about, self._mishap = world.rules(env.max_turns), world.mishap
        self._cost, self._steps = 0.0, 0

    def tasks(self) -> Sequence[int]:
        return self._env.task_ids()

    def begin(self, task: int) -> str:
        self._cost, self._steps = 0.0, 0
        state = self._env.reset(task)
        return f"{state.pre}{state.post}"

    def choices(self) -> Mapping[str, str]:
        return self._env.commands()

    def possible(self) -> list[str]:
        return [f"{label}  {command}" for label, command in self._env.commands().items()]

    def act(self, action: str) -> Told:
        played = self._env.step(action)
        self._cost += played.cost
        self._steps += 1
        state = self._env.state()
        text = f"{played.output}{self._why(played)}" if played.done else f"{state.pre}{state.post}"
        score = f"cost {played.cost:+g}, so far {self._cost:+g}"
        return Told(text, score, played.done, played.success, played.valid)

    def _why(self, played: Played) -> str:
        """The reason why a lost episode is over, as text for a human."""
        if played.success:
            return ""
        if self._steps >= self._env.max_turns:
            return f"\nThe episode is over: {self._env.max_turns} actions were not enough."
        return self._mishap

    def expert(self) -> Move | None:
        label = oracle_label(self._env)
        return None if label is None else Move(self._env.explain(None, "play", label), label)

    async def ask(self, engine: Engine, key: SeedKey, temperature: float) -> str:
        """See ``Game``: one token among the labels, after the reflection if there is a reflector."""
        state, instr, markers = self._env.state(), self._env.instruction, self._markers
        reflection = None
        if self._reflector is not None:
            asked = reflection_prompt(instr, state, markers)
            (answer,) = await self._reflector.generate(
                Request(asked, key.at(1), temperature=temperature, max_tokens=100, cut_left=True)
            )
            reflection = cut_reflection(answer.text, markers)
        request = Request(
            policy_prompt(instr, state, reflection, markers),
            key,
            temperature=temperature,
            max_tokens=1,
            allowed=state.labels,
            cut_left=True,
        )
        (chosen,) = await engine.generate(request)
        return chosen.text


class TextGame:
    """An environment that accepts any text. Models are prompted as in Agent-R's evaluation."""

    def __init__(self, env: AgentEnv) -> None:
        self.name, self.about, self._env = env.name, env.instruction, env
        self._dialogue, self._reward = list[Message](), 0.0

    def tasks(self) -> Sequence[int]:
        return self._env.task_ids()

    def begin(self, task: int) -> str:
        from selfimprove.methods.agent_r.prompts import opening

        observation = self._env.reset(task)
        self._dialogue, self._reward = opening(self._env.instruction, observation), 0.0
        return observation

    def choices(self) -> Mapping[str, str]:
        return {}

    def possible(self) -> list[str]:
        return self._env.valid_actions() or []

    def act(self, action: str) -> Told:
        """See ``Game``; a model's ``wait`` is answered without the environment, as in Agent-R's evaluation."""
        from selfimprove.methods.agent_r.reply import WAIT, WAITED, clean_observation

        by_model = self._dialogue[-1].role == "assistant"
        if by_model and action == WAIT:
            self._dialogue.append(Message(role="user", content=WAITED))
            return Told(WAITED, f"score {self._reward:.2f}", False, False, True)
        step = self._env.step(action)
        self._reward = step.reward
        if by_model:
            self._dialogue.append(Message(role="user", content=clean_observation(step.observation)))
        score = f"score {step.reward:.2f}"
        success = step.reward == 1.0 and not step.info["disaster"]
        return Told(step.observation, score, step.done, success, bool(step.info["valid"]))

    def expert(self) -> Move | None:
        return next(iter(self._env.expert()), None)

    async def ask(self, engine: Engine, key: SeedKey, temperature: float) -> str:
        from selfimprove.methods.agent_r.acting import generated_ids
        from selfimprove.methods.agent_r.prompts import trim
        from selfimprove.methods.agent_r.reply import parse_action, stored_reply

        reply = await _reply(engine, trim(self._dialogue, engine, REPLY_TOKENS), key, temperature)
        text = stored_reply(reply.text)
        ids = generated_ids(reply, text)
        self._dialogue.append(Message(role="assistant", content=text, token_ids=ids, finish=reply.finish))
        return parse_action(text)


class QuizGame:
    """Questions with one right answer, which may be attempted until the answer is right."""

    about = "Answer the question; a number alone will do, as will a solution that ends in \\boxed{...}."

    def __init__(self, name: str, env: AnswerEnv, problems: Sequence[Problem], few_shot: bool = False) -> None:
        self.name, self._env, self._problems, self._few_shot = name, env, problems, few_shot
        self._problem, self._pairs = problems[0], list[tuple[Message, Message]]()

    def tasks(self) -> Sequence[int]:
        return range(len(self._problems))

    def begin(self, task: int) -> str:
        if task not in self.tasks():
            raise UserError(f"{self.name} has no problem {task}; they are numbered 0 to {len(self._problems) - 1}.")
        self._problem, self._pairs = self._problems[task], []
        return self._problem.question

    def choices(self) -> Mapping[str, str]:
        return {}

    def possible(self) -> list[str]:
        return []

    def act(self, action: str) -> Told:
        from selfimprove.methods.rise.prompts import feedback

        attempt = action if "boxed" in action else f"\\boxed{{{action}}}"
        grade = self._env.grade(attempt, self._problem)
        said = feedback(grade.reward, self._problem.question)
        self._pairs.append((Message(role="assistant", content=action), Message(role="user", content=said)))
        right = grade.reward == 1
        text = f"{action}\nis right." if right else f"{action}\nis not right; try again."
        return Told(text, f"reward {grade.reward:g}", right, right, grade.answer is not None)

    def expert(self) -> Move | None:
        return Move("This is the solution as the data gives it.", self._env.demonstration(self._problem))

    async def ask(self, engine: Engine, key: SeedKey, temperature: float) -> str:
        """See ``Game``: the dialogue so far, limited to the last two turns as in RISE."""
        from selfimprove.methods.rise.prompts import opening, visible

        asked = visible(opening(self._problem.question, self._few_shot), self._pairs, 2)
        return (await _reply(engine, asked, key, temperature)).text


async def _reply(engine: Engine, messages: Sequence[Message], key: SeedKey, temperature: float) -> Completion:
    (reply,) = await engine.generate(Request(messages, key, temperature=temperature, max_tokens=REPLY_TOKENS))
    return reply


def make_game(name: str, params: Path, file: Path | None = None, reflector: Engine | None = None) -> Game:
    """A game with the settings for its environment from the file ``params``, or default settings.

    ``file``: the problems of gsm8k, math or a class of one's own, or the questions of hotpotqa.

    Raises:
        UserError: something that the environment needs is missing or invalid.
    """
    if file is not None and not file.is_file():
        raise UserError(f"play: file {file} does not exist; name an existing one after --file.")
    if name in QUIZZES:
        return _quiz(name, params, file)
    if name in named(TextParams) or ":" in name:
        return _text(name, params, file)
    return _labelled(name, params, reflector)


def _text(name: str, params: Path, file: Path | None) -> TextGame:
    from selfimprove.methods.agent_r.params import AgentRParams

    section = load_section(read_yaml(params), "agent_r", AgentRParams, str(params))
    if file is None and section.env.name == name:
        return TextGame(section.env.make())
    if name == "hotpotqa" and file is None:
        raise UserError(f'play: {name} needs a file of questions; name it: ARGS="--file <questions with contexts>".')
    own = ":" in name and not name.startswith(("gymnasium:", "openenv:"))
    key = "problems" if own else "file"  # of a class that answers questions; other classes of one's own have no file
    return TextGame(text_env(name=name, **({} if file is None else {key: str(file)})).make())


def _labelled(name: str, params: Path, reflector: Engine | None) -> LabelledGame:
    from selfimprove.methods.reflect_rl.params import PromptParams, ReflectRLParams

    values = read_yaml(params)
    env, prompt = listed_env(), PromptParams()
    if "reflect_rl" in values:
        section = load_section(values, "reflect_rl", ReflectRLParams, str(params))
        env, prompt = section.env, section.prompt
    return LabelledGame(name, LISTED[name].to_play(name, env).make(), reflector, prompt.markers)


def _quiz(name: str, params: Path, file: Path | None) -> QuizGame:
    from selfimprove.core.records import read_rows
    from selfimprove.core.sources import mirror_folder
    from selfimprove.envs.math.arithmetic import generate
    from selfimprove.methods.rise.params import RiseParams

    section = load_section(read_yaml(params), "rise", RiseParams, str(params))
    if name == "arithmetic":
        env = section.env.make()
        made = generate(100, seed=0, split="test", difficulty=section.tasks.difficulty)
        return QuizGame(name, env, env.load(enumerate((p.row() for p in made), 1), Path(name)), section.env.few_shot)
    chosen = section.env if section.env.name == name else answer_env(name=name)
    env = chosen.make()
    folder = mirror_folder()
    where = file or (folder / name / "test.jsonl" if folder else None)
    if where is None or not where.is_file():
        raise UserError(
            f'play: {name} needs a JSONL file of problems; name it: ARGS="--file <problems>", or set DATA_MIRROR to a '
            f"folder that holds {name}/test.jsonl."
        )
    return QuizGame(name, env, env.load(read_rows(where), where), chosen.few_shot)


_CONTROL = re.compile(
    r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[@-_])?|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufff9-\ufffb]"
    # Unicode's Default_Ignorable_Code_Point, for which Python has no name: text that nobody sees, and bidi controls.
    r"|[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f]"
    r"|[\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def plain(text: str) -> str:
    """The text without escape sequences, control characters and characters that are invisible or reorder others."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))

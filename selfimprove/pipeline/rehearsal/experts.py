"""Answers of the local teacher: the environments' scripted experts, selected by the text of a dialogue.

RISE's teacher receives a problem of the training split and answers with its gold solution. Reflect-RL's receives a file
and writes questions about it, or a state of AutoExplore. The state contains its task and the commands so far, from
which the episode is replayed; the environment's expert then explains the state and chooses. Any other dialogue is
answered with ``FALLBACK``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.core.yaml import read_yaml
from selfimprove.engines.base import Request
from selfimprove.envs.autoexplore.listed import TASKS_FILE
from selfimprove.envs.autoexplore.world import AutoExploreParams
from selfimprove.envs.interface import EnumeratedEnv, Problem
from selfimprove.envs.problems import load_split
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.teacher import CHOOSE
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rise.teacher import scripted_teacher
from selfimprove.pipeline.params import load_section

ALL_FILES = 100_000
FALLBACK = "I look at what is given and take the next step.\nAnswer: 0"

_SHOWN = re.compile(r"^Repository: (.+)\nFile: (.+)\nContent:\n", re.MULTILINE)
_STATE = re.compile(
    r"# Task\n(?P<task>.*?)\n\n# Current working directory\n.*?"
    r"\n# Command history\n(?P<history>.*?)\n\n# Execution result of your last command\n",
    re.DOTALL,
)

Answer = Callable[[Sequence[Message], int], str | None]
"""(dialogue, sample index) -> the answer; None if the dialogue is not for this expert."""


def answer(folder: Path) -> Callable[[Sequence[Message], int], str]:
    """The function that answers with all experts of a rehearsal's ``folder``; their data are loaded on first use.

    Raises:
        UserError: the folder's params.yaml is missing or invalid.
    """
    values = read_yaml(folder / "params.yaml")
    where = str(folder / "params.yaml")
    experts: list[Answer] = [
        RiseExpert(load_section(values, "rise", RiseParams, where), folder),
        ExploreExpert(load_section(values, "reflect_rl", ReflectRLParams, where), folder),
    ]

    def of_any(dialogue: Sequence[Message], sample: int) -> str:
        found = (expert(dialogue, sample) for expert in experts)
        return next((text for text in found if text is not None), FALLBACK)

    return of_any


class RiseExpert:
    """Gold solutions of RISE's training split."""

    def __init__(self, params: RiseParams, folder: Path) -> None:
        self._params, self._split = params, folder / "data/rise/tasks/train.jsonl"

    def __call__(self, dialogue: Sequence[Message], sample: int) -> str | None:
        """The solution of the problem that ends the last user message (an earlier one if feedback contains none)."""
        if not self._split.is_file():
            return None
        asked = [message.content for message in reversed(dialogue) if message.role == "user"]
        problem = next((one for text in asked for end, one in self._problems.items() if text.endswith(end)), None)
        if problem is None:
            return None
        return self._expert(Request(dialogue, SeedKey(0, problem.id), temperature=0.0, max_tokens=1), sample)

    @cached_property
    def _problems(self) -> Mapping[str, Problem]:
        return {one.question: one for one in load_split(self._split, self._params.env.make())}

    @cached_property
    def _expert(self) -> Callable[[Request, int], str]:
        embedded = self._params.tasks.source == "embedded"
        problems = list(self._problems.values())
        return scripted_teacher(problems, self._params.env.make(), embedded=embedded, error_rate=0.0)


class ExploreExpert:
    """AutoExplore's expert: questions generated from the contents of files, reflections and actions."""

    def __init__(self, params: ReflectRLParams, folder: Path) -> None:
        self._params, self._tasks = params, folder / "data/reflect_rl/tasks"

    def __call__(self, dialogue: Sequence[Message], sample: int) -> str | None:
        """Questions about the file in the dialogue, or the expert's reflection or action in the state shown there."""
        shown = _SHOWN.search(dialogue[-1].content)
        if shown is not None:
            return self._questions(shown[1], shown[2])
        states = [found for message in dialogue if (found := _STATE.search(message.content))]
        if not states or not (self._tasks / TASKS_FILE).is_file():
            return None
        env = self._stand(states[-1]["task"], states[-1]["history"].split("\n"))
        if env is None:
            return None
        if CHOOSE not in dialogue[-1].content:
            return env.explain(None, states[-1]["history"], sample)
        way = env.oracle()
        listed = re.findall(r"^(\w+)\. (.+)$", dialogue[-1].content, re.MULTILINE)
        return next((label for label, command in listed if way and command == way[0]), None)

    def _questions(self, repository: str, file: str) -> str | None:
        found = self._of_files.get((repository, file))
        return "\n".join(f"QUERY: {question}\nANSWER: {said}" for question, said in found) if found else None

    @cached_property
    def _of_files(self) -> Mapping[tuple[str, str], list[tuple[str, str]]]:
        env = self._params.env
        if not isinstance(env, AutoExploreParams):
            return {}
        env = env.model_copy(update={"files_per_repo": ALL_FILES})  # the caller draws a sample
        made: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for task in env.template_tasks(env.repositories()):
            made.setdefault((task.root, task.filename), []).append((task.question, task.answer))
        return made

    @cached_property
    def _env(self) -> EnumeratedEnv:
        max_turns = self._params.generate.max_turns
        return self._params.env.model_copy(update={"max_turns": max_turns}).make(self._tasks)

    def _stand(self, question: str, history: Sequence[str]) -> EnumeratedEnv | None:
        """The environment in the state after ``history``; None if no task has this question."""
        heading = f"# Task\n{question}\n"
        for task in self._env.task_ids():
            if heading not in self._env.reset(task).pre:
                continue
            for command in history:
                label = next((label for label, listed in self._env.commands().items() if listed == command), None)
                if label is not None:
                    self._env.step(label)
            return self._env
        return None

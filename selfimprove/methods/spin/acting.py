"""SPIN in interactive environments: their tasks with the expert's trajectories, and their answers (docs/spin.md).

An episode of TextCraft in the format of SPIN for agents, with the environment in the role of the tools ::

    You craft items. You are given crafting commands and a goal. …        the environment's instruction
    Crafting commands: … Goal: craft marble stair.                        the first observation
    Thought: First I get 4 marble rock for the marble brick.
    Action: get 4 marble rock
    Observation: Got 4 marble rock
    Thought: Now I can craft the marble stair.
    Action: craft 1 marble stair using 2 marble step

The episode ends when the environment ends it or after ``max_turns`` rounds. Its reward is the environment's.
"""

import re

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import AgentEnv, Step, World
from selfimprove.envs.qa.base import Question, Score
from selfimprove.envs.qa.expert_files import ExpertAudit
from selfimprove.envs.qa.experts import Expert, Round
from selfimprove.envs.splits import draw_splits
from selfimprove.methods.spin.params import TasksParams
from selfimprove.methods.spin.parse import ASKED, Parsed, parse
from selfimprove.methods.spin.play import Response
from selfimprove.methods.spin.prompts import NEUTRAL
from selfimprove.methods.spin.tasks import SPLITS, Material

# A match begins where the white space does; tried at each blank, a long gap would take cubic time.
_ROUND = re.compile(r"(?<!\s)[^\S\n]*\n\s*(?=(?:Thought|Action|Observation):)")


def gather_acted(tasks: TasksParams, env: AgentEnv, *, seed: int) -> Material:
    """Splits of the environment's tasks, with the expert's trajectory for each training task.

    Raises:
        UserError: too few tasks, or an expert's path does not end with reward 1.
    """
    counts: dict[str, int] = {name: getattr(tasks, name) for name in SPLITS}
    drawn = draw_splits(env.name, env.task_ids(), counts, seed=seed, where="spin.tasks")
    experts = [demonstrate_acted(env, task) for task in drawn["train"]]
    splits = {name: [question_of(env, task) for task in drawn[name]] for name in SPLITS}
    return Material(splits, experts, [], ExpertAudit(file=env.name, read=len(experts), kept=len(experts)))


def question_of(env: AgentEnv, task: int) -> Question:
    """A task as a question, which consists of the instruction and the first observation."""
    text = f"{env.instruction.strip()}\n\n{env.reset(task).strip()}"
    return Question(id=f"{env.name}-{task}", task=env.name, question=text, gold="")


def task_of(question: Question) -> int:
    """The task of ``question_of``."""
    return int(question.id.rpartition("-")[2])


def demonstrate_acted(env: AgentEnv, task: int) -> Expert:
    """The expert's trajectory.

    Raises:
        UserError: as read from replies, it does not end with reward 1.
    """
    question = question_of(env, task)
    rounds, reward = [], 0.0
    for move in env.expert():
        step = env.step(parse(f"{ASKED}{move.action}").action)  # what a policy's reply with this action does
        rounds.append(Round(thought=move.thought, action=move.action, observation=_seen(step), verbatim=True))
        reward = step.reward
    if reward != 1:
        raise UserError(
            f"{question.id}: the expert ends with reward {reward:g} instead of 1; request fewer training tasks, or "
            "change the seed."
        )
    last = rounds.pop()
    rounds.append(Round(thought=last.thought, action=last.action))
    return Expert(id=f"expert-{question.id}", question=question, rounds=rounds, source="scripted")


class WorldPartner:
    """An episode of an environment's task. ``em`` means reward 1, and ``f1`` is the reward."""

    silent = Parsed("failed", "", None, "")

    def __init__(self, world: World, task: int) -> None:
        self._world, self._task = world, task
        self._began, self._state, self._reward = False, None, 0.0

    async def respond(self, parsed: Parsed) -> Response:
        """Take a step.

        Raises:
            EnvError: the environment failed permanently.
        """
        if not self._began:
            self._state, _ = await self._world.reset(self._task)
            self._began = True
        self._state, step = await self._world.step(self._state, parsed.action)
        self._reward = step.reward
        tool, argument = _verb(parsed.action) if step.info.get("valid", True) else (None, "")
        return Response(tool, argument, "" if step.done else _seen(step), ends=step.done)

    def score(self, answer: str) -> Score:
        """The reward so far; the environment needs no ``answer``."""
        return Score(self._reward, self._reward == 1, self._reward, "", "")


def _seen(step: Step) -> str:
    """The observation with its line breaks (a map needs them), unless the next line looks like part of a round."""
    return _ROUND.sub(" ", step.observation.strip()) or NEUTRAL


def _verb(action: str) -> tuple[str, str]:
    """An action's first word, for the counts of actions, and the rest of the action."""
    verb, _, rest = action.replace("[", " ", 1).partition(" ")
    return re.sub(r"\W", "", verb).lower(), rest.removesuffix("]").strip()

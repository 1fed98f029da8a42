"""SPIN in interactive environments: their tasks with the expert's trajectories, and one episode (docs/spin.md).

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
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Engine, EngineError
from selfimprove.envs.interface import AgentEnv, EnvError, Step, World
from selfimprove.envs.qa.base import Question
from selfimprove.envs.qa.expert_files import ExpertAudit
from selfimprove.envs.qa.experts import Expert, Round
from selfimprove.envs.splits import draw_splits
from selfimprove.methods.spin.params import PlayParams, TasksParams
from selfimprove.methods.spin.parse import ASKED, Parsed, cut, parse
from selfimprove.methods.spin.play import PlayedRound, SpinEpisode, ask, end_with_policy, spoken
from selfimprove.methods.spin.prompts import NEUTRAL, Format, cue, observed, opening
from selfimprove.methods.spin.tasks import SPLITS, Material

SILENT = Parsed("failed", "", None, "")
"""The action of a round in which no reply had one; it ends the episode."""

_ROUND = re.compile(r"\s*\n\s*(?=(?:Thought|Action|Observation):)")


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


def demonstrate_acted(env: AgentEnv, task: int) -> Expert:
    """The expert's trajectory.

    Raises:
        UserError: it does not end with reward 1.
    """
    question = question_of(env, task)
    rounds, reward = [], 0.0
    for move in env.expert():
        step = env.step(move.action)
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


async def act(
    question: Question,
    index: int,
    world: World,
    policy: Engine,
    cfg: PlayParams,
    seed: int,
    *,
    form: Format,
    few_shot: str = "",
    iteration: str = "",
    run: int = 0,
) -> SpinEpisode:
    """One episode; arguments and result as for ``play``. ``em`` means reward 1, and ``f1`` is the reward."""
    name = f"{question.id}#{run}" if run else question.id
    episode = SpinEpisode(
        id=name, task=question.task, index=index, question=question.question, gold=question.gold,
        prompt=opening(question.question, form, few_shot), form=form, iteration=iteration, run=run,
        seed=f"{seed}/{name}",
    )  # fmt: skip
    reward = 0.0
    try:
        state, _ = await world.reset(int(question.id.rpartition("-")[2]))
        for number in range(cfg.max_turns):
            dialogue = [*episode.prompt, *episode.messages, *cue(form, number)]
            if not policy.fits(dialogue, cfg.max_tokens):
                episode.cramped = True
                break
            reply, attempts = await ask(policy, dialogue, cfg, SeedKey(seed, name, number), form)
            failed = ASKED not in cut(reply.text)
            parsed = SILENT if failed else parse(reply.text)
            entry = PlayedRound(
                thought=parsed.thought, action=parsed.action, tool=None, argument="", attempts=attempts, failed=failed,
                cut=reply.finish == "length",
            )  # fmt: skip
            step = None
            if not failed:
                state, step = await world.step(state, parsed.action)
                reward = step.reward
                verb, argument = _verb(parsed.action)
                entry.tool, entry.argument = (verb, argument) if step.info["valid"] else (None, "")
            ends = step is None or step.done
            episode.messages += [*cue(form, number), *spoken(reply, parsed, form, ends=ends, failed=failed)]
            episode.rounds.append(entry)
            if step is None or step.done:
                episode.finished = step is not None
                break
            entry.observation = _seen(step)
            episode.messages.append(observed(entry.observation, form))
    except (EngineError, EnvError) as failure:
        episode.status, episode.error = "blocked", str(failure)
    end_with_policy(episode)
    if cfg.evaluate:
        episode.reward, episode.em, episode.f1 = reward, reward == 1, reward
        if reward == 1 and episode.status != "blocked":
            episode.status = "solved"
    return episode


def _seen(step: Step) -> str:
    """The observation with its line breaks (a map needs them), unless the next line looks like part of a round."""
    return _ROUND.sub(" ", step.observation.strip()) or NEUTRAL


def _verb(action: str) -> tuple[str, str]:
    """An action's first word, for the counts of actions, and the rest of the action."""
    verb, _, rest = action.replace("[", " ", 1).partition(" ")
    return re.sub(r"\W", "", verb).lower(), rest.removesuffix("]").strip()

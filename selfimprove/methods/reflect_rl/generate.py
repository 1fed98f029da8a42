"""The teacher's trajectories with reflections: complete and negative ones (docs/reflect-rl.md, L9 to L11).

A negative trajectory in AutoExplore is the path to the target up to its ``cat``, the ``cat`` of another file instead,
and then the teacher's explanation of why that was wrong, with the step that corrects it::

    (replayed)  cd core
    (wrong)     cat bus.py
    trained on  bus.py does not answer the task. hub.py could hold the answer and has not been read.  ->  cat hub.py

In other environments it is an episode of random actions, sometimes replaced by the oracle's, in which the teacher
reflects on every state. The teacher's reflection and the oracle's action are trained on, never the random action.

The functions handle one trajectory each; this module does not batch, retry, write or log.
"""

from pydantic import Field

from selfimprove.core.records import Record, Status
from selfimprove.core.seeds import SeedKey, rng
from selfimprove.engines.base import EngineError
from selfimprove.envs.interface import EnumeratedEnv, EnvError, Last, Played
from selfimprove.envs.labels import oracle_label
from selfimprove.methods.reflect_rl.params import GenerateParams
from selfimprove.methods.reflect_rl.teacher import Reflection, Teacher

NOTHING = Reflection("")
"""The reflection of a replayed step."""


class TaughtStep(Record):
    """A state, the reflection on it, and the action. ``learn``: it becomes training data; replayed steps do not.

    ``label``, ``command``: the teacher's or oracle's choice; ``done``: the action taken, if it differs; ``cut``: the
    reflection ended at the token limit.
    """

    pre: str
    post: str
    labels: list[str]
    reflection: str = ""
    cut: bool = False
    label: str
    command: str
    done: str | None = None
    learn: bool = True


class TeacherTrajectory(Record):
    """One path through a task. ``info``: ``positive`` or ``negativeK``; ``filename``: identified in AutoExplore."""

    id: str
    env: str
    task_id: int
    info: str
    teacher: str
    level: str = ""
    filename: str | None = None
    status: Status
    cost: float = 0.0
    error: str | None = None
    told: int = Field(default=0, description="states dropped because the teacher revealed the spoiler")
    steps: list[TaughtStep] = Field(default=[])


class TeachingTask(Record):
    """A trajectory to generate: the teacher's own (``negative`` None), or the negative one with that number."""

    task_id: int
    negative: int | None = None
    level: str = ""

    @property
    def info(self) -> str:
        """The kind of trajectory, as in the original's files."""
        return "positive" if self.negative is None else f"negative{self.negative}"


def teaching_tasks(train: list[int], cfg: GenerateParams) -> list[TeachingTask]:
    """The trajectories that the params specify, in the split's order: positives, then negatives, cycling levels."""
    levels = cfg.levels or [""]
    whole = [TeachingTask(task_id=task, level=levels[i % len(levels)]) for i, task in enumerate(train[: cfg.tasks])]
    return whole + [
        TeachingTask(task_id=task, negative=k, level=levels[(i * cfg.negatives + k) % len(levels)])
        for i, task in enumerate(train[: cfg.negative_tasks])
        for k in range(cfg.negatives)
    ]


async def teach(
    job: TeachingTask, env: EnumeratedEnv, teacher: Teacher, cfg: GenerateParams, seed: int
) -> TeacherTrajectory | None:
    """The trajectory of a teaching task, on a copy of ``env``; None if the task has no such negative.

    ``status``: ``solved`` if it succeeded or, for a negative, if all reflections were obtained; ``blocked`` if the
    teacher's engine failed permanently.
    """
    env = env.copy()
    made = TeacherTrajectory(
        id=f"{env.name}-{job.task_id}-{job.info}",
        env=env.name,
        task_id=job.task_id,
        info=job.info,
        teacher=teacher.name,
        level=job.level,
        status="unsolved",
    )
    try:
        if job.negative is None:
            return await _whole(made, env, teacher, seed)
        if env.decisive:
            return await _wrong_file(made, job.negative, env, teacher, seed)
        return await _exploring(made, job.negative, env, teacher, cfg, seed)
    except (EngineError, EnvError) as failure:
        return made.model_copy(update={"status": "blocked", "error": str(failure)})


async def _whole(made: TeacherTrajectory, env: EnumeratedEnv, teacher: Teacher, seed: int) -> TeacherTrajectory:
    """The teacher plays to the end: it reflects, then acts, at every step."""
    env.reset(made.task_id, 0, made.level)
    last: Last | None = None
    for number in range(env.max_turns):
        key = SeedKey(seed, made.id, number)
        reflection = await teacher.reflect(env, last, key, exploring=False)
        label = await teacher.choose(env, last, reflection.text if reflection else "", key, exploring=False)
        if label is None:  # the teacher named no listed action: the episode ends here, unsolved
            break
        made = _with_step(made, env, reflection, label)
        last, played = _act(env, label)
        made.cost += played.cost
        if played.done:
            made.status = "solved" if played.success else "unsolved"
            made.filename = played.identified
            break
    return made


async def _exploring(
    made: TeacherTrajectory, k: int, env: EnumeratedEnv, teacher: Teacher, cfg: GenerateParams, seed: int
) -> TeacherTrajectory:
    """Random actions, or the oracle's with probability ``cfg.oracle_prob``; the teacher reflects on every state.

    The label to learn is the oracle's. The episode ends when the environment ends it, including by danger (the
    original's spoilers disable the danger), or after ``max_turns`` actions.
    """
    env.reset(made.task_id, k + 1, made.level)
    last: Last | None = None
    for number in range(env.max_turns):
        best = oracle_label(env)
        if best is None:
            break
        reflection = await teacher.reflect(env, last, SeedKey(seed, made.id, number), exploring=True)
        draw = rng("explore", seed, made.id, number)
        label = best if draw.random() < cfg.oracle_prob else draw.choice(env.state().labels)
        made = _with_step(made, env, reflection, best, done=label)
        last, played = _act(env, label)
        made.cost += played.cost
        if played.done:
            break
    made.status = "solved"
    return made


async def _wrong_file(
    made: TeacherTrajectory, k: int, env: EnumeratedEnv, teacher: Teacher, seed: int
) -> TeacherTrajectory | None:
    """The optimal path up to its decisive command, then a different such command that is listed there (AutoExplore: the
    ``cat`` of another file), which the teacher explains and corrects.

    None if fewer than k + 1 other such commands are listed there.
    """
    env.reset(made.task_id, 0, made.level)
    way, verb = env.oracle(), f"{env.decisive} "
    while way and not way[0].startswith(verb):
        made = _with_step(made, env, NOTHING, oracle_label(env), learn=False)
        made.cost += _act(env, oracle_label(env) or "")[1].cost
        way = env.oracle()
    others = [label for label, command in env.commands().items() if command.startswith(verb) and command != way[0]]
    rng("wrong files", seed, made.env, made.task_id).shuffle(others)
    if k >= len(others):
        return None
    made = _with_step(made, env, NOTHING, oracle_label(env), done=others[k], learn=False)
    wrong, played = _act(env, others[k])
    made.cost += played.cost
    if played.done:  # max_turns leaves no step for the correction
        return None
    key = SeedKey(seed, made.id, len(made.steps))
    reflection = await teacher.reflect(env, wrong, key, exploring=True)
    if reflection is None:
        return made.model_copy(update={"told": made.told + 1})
    corrected = await teacher.choose(env, wrong, reflection.text, key, exploring=True)
    if corrected is not None:
        made = _with_step(made, env, reflection, corrected)
        _, played = _act(env, corrected)
        made.cost += played.cost
        made.filename = played.identified
        made.status = "solved"
    return made


def _with_step(
    made: TeacherTrajectory,
    env: EnumeratedEnv,
    reflection: Reflection | None,
    label: str | None,
    *,
    done: str | None = None,
    learn: bool = True,
) -> TeacherTrajectory:
    """The trajectory with a step for the current state and the action to take in it."""
    state, commands = env.state(), env.commands()
    if reflection is None:
        made.told += 1
    step = TaughtStep(
        pre=state.pre,
        post=state.post,
        labels=list(state.labels),
        reflection=reflection.text if reflection else "",
        cut=reflection.cut if reflection else False,
        label=label or "",
        command=commands.get(label or "", ""),
        done=commands[done] if done is not None and done != label else None,
        learn=learn and reflection is not None and label is not None,
    )
    made.steps.append(step)
    return made


def _act(env: EnumeratedEnv, label: str) -> tuple[Last, Played]:
    """Act; the action helped if it shortened the remaining path."""
    before, command = len(env.oracle()), env.commands()[label]
    played = env.step(label)
    helped = played.success or (not played.done and 0 < len(env.oracle()) < before)
    return Last(command, helped), played

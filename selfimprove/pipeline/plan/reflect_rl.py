"""Counts Reflect-RL's requests and training tokens for ``make plan``."""

from dataclasses import replace
from math import ceil

from selfimprove.engines.config import ScriptedEngineConfig
from selfimprove.methods.reflect_rl.params import AgentParams, EvaluateParams, Iteration, ReflectRLParams
from selfimprove.methods.reflect_rl.rl_config import ActingParams
from selfimprove.methods.rows import NONE, START
from selfimprove.pipeline.plan.work import Calls, Training, Work, ask, grow, room, supervised

STATE, EXCERPT = 2048, 2560
NOTES = (
    f"Assumed lengths: a state shown to a teacher at most {STATE} tokens, a file that it asks about {EXCERPT}.",
    "Every prompt of policy and reflection model is assumed to fill its context, every episode to last max_turns.",
    "AutoExplore is assumed to have as many tasks as env.packages, files_per_repo and the questions per file allow.",
)


def works(reflect_rl: ReflectRLParams) -> list[Work]:
    """The stages that use a model or write training data, in dvc.yaml's order."""
    splits = _splits(reflect_rl)
    found = [Work("reflect_rl-data", _questions(reflect_rl))] if reflect_rl.tasks.teacher else []
    sizes = _sets(reflect_rl, splits["train"])
    longest = max((model.train.max_length for model in reflect_rl.models.values()), default=0)
    found += [
        Work("reflect_rl-generate", _taught(reflect_rl, splits["train"])),
        # The texts of the tokenizer repeat one of the sets.
        Work("reflect_rl-convert", data=(sum(sizes.values()) + max(sizes.values())) * longest),
        Work("base@reflect_rl", base=True),
    ]

    def finetune(key: str, budget: int | None = None) -> Work:
        place, model = f"reflect_rl.models.{key}.train", reflect_rl.models[key]
        training = supervised(place, model.train, sizes[model.data], budget=budget)
        return Work(f"reflect_rl-finetune@{key}", training=training)

    def evaluation(key: str) -> list[Work]:
        if key not in reflect_rl.rows:
            return []
        advised = reflect_rl.rows[key].reflector != NONE
        return [Work(f"reflect_rl-evaluate@{key}", _evaluation(reflect_rl, splits, advised=advised))]

    for key in reflect_rl.models:
        if key not in reflect_rl.controls:
            found += [finetune(key), *evaluation(key)]
    tokens = dict.fromkeys((START, *reflect_rl.models), 0)
    parents_first = sorted(reflect_rl.iterations, key=lambda key: len(reflect_rl.lineage(key)))
    for key in parents_first:
        run = reflect_rl.iterations[key]
        calls, training, equal = _reinforcement(reflect_rl, key, run)
        tokens[key] = tokens.get(run.init, 0) + equal
        found += [Work(f"reflect_rl-reinforce@{key}", calls, training, together=True), *evaluation(key)]
    for key, control in reflect_rl.controls.items():
        found += [finetune(key, tokens[control.match]), *evaluation(key)]
    for key, agent in reflect_rl.agents.items():
        found.append(Work(f"reflect_rl-agent@{key}", _agent(reflect_rl, splits, agent)))
    return found


def _splits(reflect_rl: ReflectRLParams) -> dict[str, int]:
    """Number of tasks in each split: as configured, or 7:2:1 of the largest possible number."""
    tasks, env = reflect_rl.tasks, reflect_rl.env
    if tasks.train is not None:
        sizes = {"train": tasks.train, "dev": tasks.dev or 0, "test": tasks.test or 0}
    else:
        every = env.most_tasks(tasks.asking.pairs if tasks.teacher else None)
        train, dev = round(0.7 * every), round(0.2 * every)
        sizes = {"train": train, "dev": dev, "test": every - train - dev}
    if tasks.few_data:
        sizes["train"] = min(sizes["train"], tasks.few_data)
    return sizes


def _questions(reflect_rl: ReflectRLParams) -> tuple[Calls, ...]:
    """One request to the teacher per file."""
    asking, teacher = reflect_rl.tasks.asking, reflect_rl.tasks.teacher
    assert teacher is not None
    files = reflect_rl.env.most_tasks(per_file=1)
    return (ask(reflect_rl.engines, teacher, files, EXCERPT, asking.max_tokens, at_once=files),)


def _taught(reflect_rl: ReflectRLParams, train: int) -> tuple[Calls, ...]:
    """A chat teacher reflects and chooses at each step of its own episodes. In negative ones it reflects at each step,
    or, in AutoExplore, reflects and chooses only at the wrong file."""
    cfg = reflect_rl.generate
    if isinstance(reflect_rl.engines[cfg.teacher], ScriptedEngineConfig):
        return ()
    whole, negative = min(train, cfg.tasks or train), min(train, cfg.negative_tasks or train) * cfg.negatives
    requests = 2 * whole * cfg.max_turns + negative * (2 if reflect_rl.env.decisive else cfg.max_turns)
    return (ask(reflect_rl.engines, cfg.teacher, requests, STATE, cfg.max_tokens, at_once=cfg.concurrency),)


def _sets(reflect_rl: ReflectRLParams, train: int) -> dict[str, int]:
    """Number of examples in each supervised set: one per step that is trained on."""
    cfg, demonstrated = reflect_rl.generate, reflect_rl.tasks.demonstrations or train

    def steps(tasks: int) -> tuple[int, int]:
        positive = min(tasks, cfg.tasks or train) * cfg.max_turns
        negative = min(tasks, cfg.negative_tasks or train) * cfg.negatives
        return positive, positive + negative * (1 if reflect_rl.env.decisive else cfg.max_turns)

    (reflections, every_reflection), (actions, every_action) = steps(train), steps(min(train, demonstrated))
    return {
        "sft": every_action,
        "sft_reflection": every_reflection,
        "sft_policy": every_action,
        "sft_reflection_positive": reflections,
        "sft_policy_positive": actions,
    }


def _acting(
    reflect_rl: ReflectRLParams, cfg: ActingParams, steps: int, at_once: int, *, advised: bool, policy: str = "policy"
) -> tuple[Calls, ...]:
    """At each step the reflection model writes a reflection and the policy chooses one token."""
    calls = []
    if advised:
        full = room(reflect_rl.engines["reflector"], cfg.max_tokens)
        calls.append(ask(reflect_rl.engines, "reflector", steps, full, cfg.max_tokens, at_once=at_once))
    full = room(reflect_rl.engines[policy], 1)
    return (*calls, ask(reflect_rl.engines, policy, steps, full, 1, at_once=at_once))


def _reinforcement(reflect_rl: ReflectRLParams, key: str, run: Iteration) -> tuple[tuple[Calls, ...], Training, int]:
    """Requests of the rollouts, the updates, and the training tokens of equal compute, which controls match.

    A budget limits the tokens that are read, whatever the prompts' length. It does not limit the number of rounds, and
    with it that of requests, below ``max_steps``: the shorter the prompts, the more rounds.
    """
    rl, max_turns = run.rl, reflect_rl.env.max_turns
    advised = run.reflector != NONE
    full = room(reflect_rl.engines["policy"], 1)
    replayed = rl.replay_episodes if rl.replay_buffer else 0
    passes = rl.ppo_epochs if rl.algorithm == "ppo" else 1
    trained = (rl.episodes + replayed) * max_turns * full * passes  # of a round of full prompts
    played = rl.episodes * max_turns * full * (2 if advised else 1)
    rounds = rl.max_steps
    if rl.max_train_tokens is not None:
        rounds = min(rounds, ceil(rl.max_train_tokens / (trained + played // 3)))
    asked = _acting(reflect_rl, rl, rl.max_steps * rl.episodes * max_turns, rl.episodes, advised=advised)
    calls = tuple(replace(call, read=call.read // rl.max_steps * rounds) for call in asked)
    training = Training(f"reflect_rl.iterations.{key}.rl", rl, rounds * trained, full, rl.max_steps)
    return calls, training, rounds * trained + rounds * played // 3


def _games(reflect_rl: ReflectRLParams, splits: dict[str, int], reps: int) -> int:
    """Number of episodes of an evaluation: Taxi's tasks are played at every level, others at their own level only."""
    cfg: EvaluateParams = reflect_rl.evaluate
    tasks = min(splits[cfg.split], cfg.limit or splits[cfg.split])
    every = reflect_rl.env.levels_a_task
    levels = len(cfg.levels) or every if every > 1 else 1
    return tasks * levels * reps


def _evaluation(reflect_rl: ReflectRLParams, splits: dict[str, int], *, advised: bool) -> tuple[Calls, ...]:
    cfg = reflect_rl.evaluate
    steps = _games(reflect_rl, splits, cfg.eval_reps) * reflect_rl.env.max_turns
    return _acting(reflect_rl, cfg, steps, cfg.concurrency, advised=advised, policy=cfg.engine)


def _agent(reflect_rl: ReflectRLParams, splits: dict[str, int], agent: AgentParams) -> tuple[Calls, ...]:
    """A chat model as a player: one request per step, or two with a preceding analysis. Others need no engine."""
    if agent.engine is None:
        return ()
    episodes = _games(reflect_rl, splits, agent.eval_reps or reflect_rl.evaluate.eval_reps)
    turns = reflect_rl.env.max_turns * (1 if agent.kind == "direct" else 2)
    engines, at_once = reflect_rl.engines, reflect_rl.evaluate.concurrency
    if agent.kind == "react":  # the only kind with one dialogue per episode
        return (grow(engines, agent.engine, episodes, turns, STATE, STATE // 2, agent.max_tokens, at_once=at_once),)
    return (ask(engines, agent.engine, episodes * turns, STATE, agent.max_tokens, at_once=at_once),)

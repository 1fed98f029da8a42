"""Agent-R's tasks: demonstrations for the warm start, a training split to search, a dev and a test split.

The splits are frozen, hashed and disjoint lists of task ids, drawn by the run's seed (docs/agent-r.md, A6). Lists of
ids can be given instead, as JSON in any of the formats published by Agent-R ::

    [{"item_id": "textcraft_0"}, …]                  textcraft_test.json
    {"31": 7, "32": 6, …}                            textcraft_train_clean.json: id -> length of an expert's path
    {"note": "…", "ids": {"0": [0, 3, …], …}}        ScienceWorld: task number -> ids
    [31, 32, …]
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from selfimprove.core.errors import UserError, first_line, some
from selfimprove.core.records import Example, Message, load_json
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import AgentEnv, ListsGames
from selfimprove.envs.splits import ORDER, Split, draw_in_order, with_each
from selfimprove.methods.agent_r.params import GameParams, SearchParams, TaskParams
from selfimprove.methods.agent_r.prompts import opening
from selfimprove.methods.agent_r.reply import WAIT, clean_observation, parse_action
from selfimprove.methods.agent_r.revise import REVISION_THOUGHTS, revision_reply, revision_turn

LONGEST = 100
"""Maximum number of actions in an expert's episode."""

SLIP_THOUGHT = "This may help."
"""The thought of every slip: never trained on, and constant, so that only action and observation show the error."""

SPLITS: tuple[Split, ...] = ("demonstrations", "train", "dev", "test")


def build_splits(tasks: TaskParams, env: AgentEnv, *, seed: int) -> dict[str, list[int]]:
    """The four splits: disjoint lists of task ids in an order drawn by the seed.

    With ``tasks.files`` the test split is drawn from the test file and the others from the training file. If one of the
    two is not given, it defaults to all ids of the environment that are not in the other.

    Raises:
        UserError: too few tasks, a missing or malformed file, an id that the environment does not have, or ids that
            occur in both files (names them).
    """
    splits: dict[str, list[int]] = {}
    for pool, names in _pools(tasks, env):
        counts = [(name, getattr(tasks, name)) for name in names]
        splits |= draw_in_order(env.name, pool, counts, seed=seed, where="agent_r.tasks")
    return {name: splits[name] for name in SPLITS}


def _pools(tasks: TaskParams, env: AgentEnv) -> list[tuple[Sequence[int], tuple[Split, ...]]]:
    """Pools of ids, each with the splits to draw from it in that order."""
    everything: Sequence[int] = env.task_ids()
    if not tasks.files:
        everything = _of_games(tasks.games, env, None) if tasks.games is not None else everything
        return [(everything, ORDER)]
    known = set(everything)
    lists = {name: read_ids(Path(path), env.name) for name, path in sorted(tasks.files.items())}
    for name, ids in lists.items():
        unknown = [i for i in ids if i not in known]
        if unknown:
            raise UserError(
                f"agent_r.tasks.files.{name}: {env.name} has no task {some(unknown)}; remove it from "
                f"{tasks.files[name]}."
            )
    given = {i for ids in lists.values() for i in ids}
    rest = with_each(everything, lambda ids: [i for i in ids if i not in given])
    train, test = lists.get("train", rest), lists.get("test", rest)
    if tasks.games is not None:
        train = _of_games(tasks.games, env, train)
    check_disjoint({"the training file": train, "the test file": test})
    return [(test, ("test",)), (train, ("dev", "train", "demonstrations"))]


def _of_games(games: GameParams, env: AgentEnv, among: Sequence[int] | None) -> list[int]:
    """Ids of the environment's numbered games, restricted to ``among`` if given."""
    return cast(ListsGames, env).ids_of_games(games.start, games.stop, games.variations, among)


def check_disjoint(splits: Mapping[str, Sequence[int]]) -> None:
    """Refuse splits that share ids.

    Raises:
        UserError: names two splits and the ids in both.
    """
    names = list(splits)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            shared = sorted(set(splits[one]) & set(splits[other]))
            if shared:
                raise UserError(
                    f"agent_r.tasks: task {some(shared)} is in both {one} and {other}; remove it from one of the two."
                )


def read_ids(path: Path, env_name: str) -> list[int]:
    """Task ids of a JSON file in any of the formats above, in its order and without duplicates.

    Raises:
        UserError: the file is missing, not JSON, has another format, contains no id, or is of another environment.
    """
    try:
        ids = list(dict.fromkeys(_flatten(load_json(path), env_name)))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not a list of task ids of {env_name} ({first_line(error)}); give a JSON list of numbers, or of "
            f'{{"item_id": "{env_name}_<number>"}}.'
        ) from None
    if not ids:
        raise UserError(f"{path} contains no task id; add at least one.")
    return ids


def _flatten(value: Any, env_name: str) -> Iterable[int]:
    """The ids in one of the published formats.

    Raises:
        ValueError: the value has another format.
    """
    wrapped = isinstance(value, dict) and isinstance(value.get("ids"), (dict, list))
    if wrapped:
        value = value["ids"]
    # Lists by ScienceWorld's task number: the keys are not ids, unlike in AgentGym's objects.
    if isinstance(value, dict) and (wrapped or any(isinstance(group, list) for group in value.values())):
        value = [item for group in value.values() for item in (group if isinstance(group, list) else [group])]
    elif isinstance(value, dict):
        value = list(value)
    if not isinstance(value, list):
        raise ValueError("expected a list or an object")
    for item in value:
        if isinstance(item, dict):
            item = item.get("item_id")
        if isinstance(item, str):
            number = item.removeprefix(f"{env_name}_")
            if "_" in number:  # int() would read "7_1" as 71
                raise ValueError(f"{item!r} is not an id")
            yield int(number)
        elif isinstance(item, int) and not isinstance(item, bool):
            yield item
        else:
            raise ValueError(f"{item!r} is not an id")


def select(split: Sequence[int], cfg: SearchParams) -> list[int]:
    """The tasks of a split that one collection searches, in the split's order.

    ``min`` and ``max`` keep the ids with ``min`` <= id < ``max``, like the original's options of that name. Of these,
    ``tasks`` are taken from index ``offset`` on, and of those the first ``limit``.

    Raises:
        UserError: nothing is left, or fewer than ``tasks`` although no range of ids narrows the split.
    """
    inside = [i for i in split if (cfg.min is None or i >= cfg.min) and (cfg.max is None or i < cfg.max)]
    chosen = inside[cfg.offset : cfg.offset + cfg.tasks]
    narrowed = len(inside) < len(split)
    if not chosen or (len(chosen) < cfg.tasks and not narrowed):
        raise UserError(
            f"agent_r generate: {cfg.tasks} tasks from offset {cfg.offset} are requested, but the training split has "
            f"{len(inside)}{' in that range of ids' if narrowed else ''}; request fewer or raise agent_r.tasks.train."
        )
    return chosen[: cfg.limit]


def demonstrate(env: AgentEnv, task_id: int, observation_weight: float = 0.0) -> Example:
    """The expert's episode as a training example that ends with the last reply; every reply has weight 1.

    ``observation_weight``: the weight of observations, including the first.

    Raises:
        UserError: no such task, or the expert's path, as read from the replies, does not end with reward 1.
    """
    observation = env.reset(task_id)
    messages = opening(env.instruction, observation)
    messages[-1] = messages[-1].model_copy(update={"weight": observation_weight})
    reward, misread = 0.0, ""
    for move in env.expert():
        if len(messages) % 2:  # the last message is a reply, so its observation comes next
            messages.append(Message(role="user", content=observation, weight=observation_weight))
        messages.append(Message(role="assistant", content=f"Thought: {move.thought}\nAction: {move.action}", weight=1))
        action = parse_action(messages[-1].content)  # what the environment receives when a model says the same
        if action == WAIT:
            raise UserError(
                f"{env.name}, task {task_id}: the expert's action 'wait' never reaches the environment, because "
                "Agent-R answers it (docs/agent-r.md, A4); give it another name."
            )
        if action != move.action:
            misread = f" (its action {move.action[:80]!r} is read as {action[:80]!r})"
        step = env.step(action)
        observation, reward = clean_observation(step.observation), step.reward
    if reward != 1:
        raise UserError(
            f"{env.name}, task {task_id}: the expert ends with reward {reward:g} instead of 1{misread}; exclude the "
            "task from the demonstrations."
        )
    return Example(id=f"demonstration_{task_id}", messages=messages, source=f"{env.name}-{task_id}")


def demonstrate_revision(env: AgentEnv, task_id: int, *key: object) -> Example | None:
    """The expert's episode with a slip: a valid action that does not help, the revision turn, and the rest.

    A large model knows how to admit an error; one trained from scratch on faultless episodes has never seen that. The
    slip has weight 0, like the bad steps of a revision trajectory. The steps after it are executed from the state it
    leads to. None if the goal cannot be reached after the slip. ``key`` seeds the draw.
    """
    draw = rng("slip", env.name, task_id, *key)
    observation = env.reset(task_id)
    messages = opening(env.instruction, observation)
    slip_at, slipped, reward = draw.randrange(max(1, len(env.expert()))), False, 0.0
    for number in range(LONGEST):
        here = env.snapshot()
        plan = env.expert()
        env.restore(here)
        if not plan:
            break
        if number == slip_at:
            others = [action for action in env.valid_actions() or [] if action != plan[0].action]
            if not others:
                return None
            slipped, action = True, draw.choice(others)
            step = env.step(action)
            said = Message(role="assistant", content=f"Thought: {SLIP_THOUGHT}\nAction: {action}")
            after = revision_turn(draw.choice(REVISION_THOUGHTS))
        else:
            step = env.step(plan[0].action)
            said = Message(role="assistant", content=f"Thought: {plan[0].thought}\nAction: {plan[0].action}", weight=1)
            after = []
        reward = step.reward
        messages += [said, Message(role="user", content=clean_observation(step.observation)), *after]
    if not slipped or reward != 1:
        return None
    return Example(id=f"revision_{task_id}", messages=messages[:-1], source=f"{env.name}-{task_id}")


def texts(examples: Sequence[Example]) -> list[dict[str, str]]:
    """Training texts of the small tokenizer: every message as often as it occurs, and revision turns.

    Each example adds one revision turn (cycling through the ten thoughts), as if it had been revised once.
    """
    rows = []
    for index, example in enumerate(examples):
        rows += [{"text": message.content} for message in example.messages]
        rows.append({"text": revision_reply(REVISION_THOUGHTS[index % len(REVISION_THOUGHTS)])})
    return rows

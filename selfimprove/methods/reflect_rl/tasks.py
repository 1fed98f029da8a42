"""Reflect-RL's tasks: splits to train on, to tune settings on, and to test on (docs/reflect-rl.md, L45).

Splits are frozen, hashed and disjoint lists of task ids, drawn by the run's seed. AutoExplore's ids are indices into
the tasks.json beside them. Trajectories come from the training split only, so that no test task is ever trained on.
"""

from collections.abc import Sequence
from typing import Literal

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.envs.listed import ListedText
from selfimprove.envs.splits import HeldOut, draw_splits
from selfimprove.methods.reflect_rl.params import TaskParams

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


def build_splits(cfg: TaskParams, env: EnumeratedEnv, *, seed: int) -> dict[Split, list[int]]:
    """The three splits, disjoint, in an order drawn by the seed.

    Without counts, all tasks are split 7:2:1, as round(.7 n), round(.2 n) and the rest (the original's draws are
    unseeded and do not come from one shuffle). If the environment has its own splits (ALFWorld), dev and test are drawn
    from ``valid``. Of other text environments (``ListedText``), dev and test are the same as for the other methods if
    the counts are the same.

    Raises:
        UserError: there are too few tasks, or a split would be empty.
    """
    learn, judge = list(env.task_ids("train")), list(env.task_ids("valid"))
    splits: dict[Split, list[int]] = {}
    if learn == judge and isinstance(env, ListedText):
        tasks = env.task_ids("train")
        counts: dict[str, int] = dict(zip(SPLITS, _sizes(cfg, _whole(tasks)), strict=True))
        drawn = draw_splits(env.name, tasks, counts, seed=seed, where="reflect_rl.tasks")
        splits = {name: drawn[name] for name in SPLITS}
    elif learn == judge:
        rng("reflect_rl panels", seed, env.name).shuffle(learn)
        sizes = _sizes(cfg, len(learn))
        _enough(env.name, sum(sizes), len(learn))
        starts = (0, sizes[0], sizes[0] + sizes[1])
        splits = {n: learn[a : a + size] for n, a, size in zip(SPLITS, starts, sizes, strict=True)}
    else:
        rng("reflect_rl train panel", seed, env.name).shuffle(learn)
        rng("reflect_rl test panels", seed, env.name).shuffle(judge)
        train, dev, test = _sizes(cfg, min(len(learn), len(judge)))
        _enough(env.name, train, len(learn))
        _enough(env.name, dev + test, len(judge))
        splits = {"train": learn[:train], "dev": judge[:dev], "test": judge[dev : dev + test]}
    for name in ("train", "test"):
        if not splits[name]:
            raise UserError(f"reflect_rl.tasks: {env.name} has too few tasks to leave any for {name}; add tasks.")
    if cfg.few_data:
        splits["train"] = splits["train"][: cfg.few_data]
    return splits


def _whole(ids: Sequence[int]) -> int:
    """Number of tasks to split 7:2:1: all, or with held-out dev and test as many as each part allows."""
    if isinstance(ids, HeldOut):
        return min(10 * len(tasks) // {"train": 7, "dev": 2, "test": 1}[part] for part, tasks in ids.of.items())
    return len(ids)


def _sizes(cfg: TaskParams, n: int) -> tuple[int, int, int]:
    if cfg.train is not None and cfg.dev is not None and cfg.test is not None:
        return cfg.train, cfg.dev, cfg.test
    train, dev = round(0.7 * n), round(0.2 * n)
    return train, dev, n - train - dev


def _enough(name: str, asked: int, there: int) -> None:
    if asked > there:
        raise UserError(f"reflect_rl.tasks: {asked} tasks are requested, but {name} has {there}; request fewer.")

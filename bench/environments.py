"""Latency of the environments: a step of each, a sandboxed command in a large tree, and Taxi's shortest paths.

ScienceWorld is measured only if it is installed.
"""

import time
from collections.abc import Callable
from typing import Any

LIMITS = {
    "textcraft_step_ms": 0.2,
    "webshop_search_ms": 2.0,
    "sciworld_step_ms": 15.0,
    "taxi_step_ms": 0.05,
    "taxi_oracle_ms": 50.0,
    "kitchen_step_ms": 1.0,
    "autoexplore_command_ms": 1.0,
}
"""Upper bounds that the metrics should stay below. ``taxi_oracle_ms`` covers all 300 starts."""

TREE_FILES, FOLDER_FILES = 10_000, 100


def measure(**_: int) -> dict[str, Any]:
    """Milliseconds of each operation, best of three rounds; None for ScienceWorld without its package or Java."""
    from selfimprove.envs.textcraft.env import TextCraft
    from selfimprove.envs.textcraft.recipes import RecipeBook
    from selfimprove.envs.webshop.env import WebShop

    craft = TextCraft(RecipeBook.load(None))
    tasks = list(craft.task_ids())[:200]

    def crafting() -> int:
        steps = 0
        for task in tasks:
            craft.reset(task)
            plan = [move.action for move in craft.expert()]
            for action in plan:
                craft.step(action)
            steps += len(plan)
        return steps

    shop = WebShop(products=1000)
    goals = list(shop.task_ids())[:200]

    def searching() -> int:
        for goal in goals:
            shop.reset(goal)
            shop.step(f"search[{shop.instruction_text()}]")
        return len(goals)

    crafting()  # fills the cache of the expert's plans, so that only the environment is timed
    return {
        "textcraft_step_ms": _per(crafting),
        "webshop_search_ms": _per(searching, rounds=1),  # a second round would read its results from the cache
        "sciworld_step_ms": _sciworld(),
        **_taxi(),
        "kitchen_step_ms": _kitchen(),
        "autoexplore_command_ms": _sandbox(),
        "limits": LIMITS,
    }


def _per(work: Callable[[], int], rounds: int = 3) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        count = work()
        best = min(best, (time.perf_counter() - started) / count)
    return round(1000 * best, 4)


def _sciworld() -> float | None:
    from selfimprove.core.errors import UserError
    from selfimprove.envs.sciworld.env import SciWorld
    from selfimprove.envs.sciworld.jvm import JvmPool

    pool = JvmPool(1)
    try:
        world = SciWorld(pool)
        world.reset(0)
        return _per(lambda: sum(1 for _ in range(50) if world.step("look around")))
    except UserError:
        return None
    finally:
        pool.close()


def _taxi() -> dict[str, float]:
    from selfimprove.envs.taxi import grid as taxi_grid
    from selfimprove.envs.taxi.env import Taxi

    taxi = Taxi("full", max_turns=20)
    plans = {}
    for task in taxi.task_ids():
        taxi.reset(task)
        plans[task] = [str(action) for action in taxi.oracle()]

    def driving() -> int:
        for task, plan in plans.items():
            taxi.reset(task)
            for action in plan:
                taxi.step(action)
        return sum(map(len, plans.values()))

    def searching() -> int:
        for value in vars(taxi_grid).values():
            if hasattr(value, "cache_clear"):  # including the precomputed tables
                value.cache_clear()
        for state in taxi_grid.starts():
            taxi_grid.best_actions(state)
        return 1

    return {"taxi_step_ms": _per(driving), "taxi_oracle_ms": _per(searching)}


def _kitchen() -> float:
    """A step followed by the list of admissible commands, in games played for the first time."""
    from selfimprove.envs.alfworld.kitchen import Kitchen

    kitchen = Kitchen(max_turns=100)
    plans = {}
    for task in range(200):
        kitchen.reset(task)
        plans[task] = kitchen.oracle()

    def cooking() -> int:
        for task, plan in plans.items():
            kitchen.reset(task)
            for action in plan:
                kitchen.step(action)
                kitchen.valid_actions()
        return sum(map(len, plans.values()))

    return _per(cooking, rounds=1)


def _sandbox() -> float:
    """A command in a tree of 10,000 files: all six kinds of commands in turn, two files per episode."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from selfimprove.envs.autoexplore.sandbox import Sandbox
    from selfimprove.envs.autoexplore.tree import Leaveout, Tree, View

    with TemporaryDirectory() as place:
        for number in range(TREE_FILES):
            file = Path(place, f"part{number // (10 * FOLDER_FILES)}", f"d{number // FOLDER_FILES}", f"f{number}.py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"value = {number}\n" * 200)
        tree = Tree.scan(place)

        def exploring() -> int:
            count = 0
            for episode in range(100):
                folder = f"part{episode // 10}/d{episode}"
                names = [f"f{episode * FOLDER_FILES + i}.py" for i in range(2)]
                box = Sandbox(View(tree, Leaveout.around([f"{folder}/{name}" for name in names], 0.5, episode)))
                argvs = [["cd", folder], ["ls"], ["cat", names[0]], ["head", names[1]], ["tail", "-n", "3", names[1]]]
                for argv in [*argvs, ["cat", "../../nothing.py"], ["id", names[0]]]:
                    box.run(argv)
                    count += 1
            return count

        return _per(exploring)


def show(metrics: dict[str, Any]) -> None:
    """Print the metrics with their limits."""
    for name, limit in LIMITS.items():
        print(f"  {name}: {metrics[name]} (below {limit})")

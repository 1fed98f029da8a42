"""Environments: milliseconds of a TextCraft step, a WebShop search, and a ScienceWorld step where it is installed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

LIMITS = {"textcraft_step_ms": 0.2, "webshop_search_ms": 2.0, "sciworld_step_ms": 15.0}
"""What the figures should stay below."""


def measure() -> dict[str, Any]:
    """Milliseconds of each, best of three rounds; None for ScienceWorld without its package or Java."""
    from selfimprove.envs.textcraft import TextCraft
    from selfimprove.envs.textcraft_recipes import RecipeBook
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

    crafting()  # the expert's plans are remembered: what is timed is the world
    return {
        "textcraft_step_ms": _per(crafting),
        "webshop_search_ms": _per(searching, rounds=1),  # a second round would find its answers remembered
        "sciworld_step_ms": _sciworld(),
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
    from selfimprove.envs.sciworld import SciWorld
    from selfimprove.envs.sciworld_jvm import JvmPool
    from selfimprove.errors import UserError

    pool = JvmPool(1)
    try:
        world = SciWorld(pool)
        world.reset(0)
        return _per(lambda: sum(1 for _ in range(50) if world.step("look around")))
    except UserError:
        return None
    finally:
        pool.close()


def show(figures: dict[str, Any]) -> None:
    """Print them beside their limits."""
    for name, limit in LIMITS.items():
        print(f"  {name}: {figures[name]} (below {limit})")

"""TextCraft's expert: the fewest actions that craft the goal from the inventory and obtainable raw materials.

For every missing item, a plan fixes the recipe and the items that fill its tags (``Making``); the rest is arithmetic:
how often each item is crafted, and how much raw material that requires. The search branches over makings in order of
estimated cost and prunes branches that cannot beat the best known plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from selfimprove.envs.textcraft.files import Ingredient, Recipe, item_name
from selfimprove.envs.textcraft.recipes import RecipeBook

BRANCHES = 2000  # after so many branches, the best plan so far is used; existing books need at most about 1,000


class Act(NamedTuple):
    """One action of a plan: ``get`` (no ``making``) or a craft of ``amount``. ``use``: the first item that needs it."""

    item: str
    amount: int
    making: Making | None
    use: str | None

    @property
    def text(self) -> str:
        """The action in the form that ``step`` accepts."""
        return self.making.command if self.making else f"get {self.amount} {item_name(self.item)}"


@dataclass(frozen=True)
class Making:
    """A recipe with an item chosen for every slot."""

    recipe: Recipe
    inputs: tuple[tuple[str, int], ...]

    @property
    def command(self) -> str:
        """The craft action, with tags replaced by items."""
        inputs = ", ".join(f"{count} {item_name(item)}" for item, count in self.inputs)
        return f"craft {self.recipe.count} {item_name(self.recipe.output)} using {inputs}"


@dataclass(frozen=True)
class _Draft:
    """The result of a set of makings: the actions known to be needed, and the first item that has no making yet."""

    cost: int
    order: list[str]
    times: dict[str, int]
    gets: dict[str, int]
    pending: str | None


@lru_cache(maxsize=1 << 14)
def plan(book: RecipeBook, goal: str, inventory: tuple[tuple[str, int], ...]) -> tuple[Act, ...]:
    """The actions, with raw material obtained just before its first use; () if the goal can't be crafted.

    Each item has a single making, and each slot is filled with one kind of item; mixed plans are not considered.
    """
    held = dict(inventory)
    best: tuple[_Draft, dict[str, Making]] | None = None
    branches = 0
    stack: list[dict[str, Making]] = [{}]
    while stack and (best is None or branches < BRANCHES):
        made = stack.pop()
        branches += 1
        draft = _draft(book, goal, made, held)
        if draft is None or (best is not None and draft.cost >= best[0].cost):
            continue
        if draft.pending is None:
            best = draft, made
        else:
            item = draft.pending
            ways = sorted(_ways(book, item), key=lambda making: _look(book, making, held))
            stack += [{**made, item: making} for making in reversed(ways)]
    return () if best is None else tuple(_acts(goal, *best))


def _draft(book: RecipeBook, goal: str, made: dict[str, Making], held: dict[str, int]) -> _Draft | None:
    """Compute the actions for ``made``; None if it has a cycle or needs something unobtainable."""
    order = _post_order(goal, made)
    if order is None:
        return None
    need, times, gets, pending = {goal: 1}, {}, {}, []
    for item in reversed(order):
        missing = need.get(item, 0) - (held.get(item, 0) if item != goal else 0)
        if missing <= 0:
            continue
        if item in made:
            times[item] = -(-missing // made[item].recipe.count)
            for part, count in made[item].inputs:
                need[part] = need.get(part, 0) + times[item] * count
        elif item in book.recipes:
            pending.append(item)
        elif book.is_raw(item):
            gets[item] = missing
        else:
            return None
    cost = sum(times.values()) + len(gets) + len(pending)
    return _Draft(cost, order, times, gets, pending[0] if pending else None)


def _post_order(goal: str, made: dict[str, Making]) -> list[str] | None:
    """Every item after the items it is made from; None if there is a cycle."""
    order: list[str] = []
    state: dict[str, bool] = {}  # True: finished, False: in progress
    stack: list[tuple[str, Iterator[tuple[str, int]]]] = []

    def enter(item: str) -> None:
        state[item] = False
        stack.append((item, iter(made[item].inputs if item in made else ())))

    enter(goal)
    while stack:
        item, parts = stack[-1]
        part = next(parts, None)
        if part is None:
            stack.pop()
            state[item] = True
            order.append(item)
        elif part[0] not in state:
            enter(part[0])
        elif not state[part[0]]:
            return None
    return order


def _ways(book: RecipeBook, item: str) -> Iterator[Making]:
    """Every recipe of the item, with every way to fill its slots with obtainable items."""
    for recipe in book.recipes[item]:
        for names in product(*(_fillings(book, slot) for slot in recipe.inputs)):
            making = Making(recipe, tuple(zip(names, (slot.count for slot in recipe.inputs), strict=True)))
            if book.match(item, making.inputs) is recipe:
                yield making


def _fillings(book: RecipeBook, slot: Ingredient) -> list[str]:
    names = book.members[slot.name] if slot.is_tag else [slot.name]
    return [name for name in names if name in book.depths]


def _look(book: RecipeBook, making: Making, held: dict[str, int]) -> int:
    """An estimate of a making's cost in actions, used only to order the search."""
    return sum(0 if held.get(item, 0) >= count else 1 + book.depths[item] for item, count in making.inputs)


def _acts(goal: str, draft: _Draft, made: dict[str, Making]) -> Iterator[Act]:
    use: dict[str, str] = {}
    for item in draft.order:
        for part, _ in made[item].inputs if item in draft.times else ():
            use.setdefault(part, item)
    for item in draft.order:
        if item in draft.gets:
            yield Act(item, draft.gets[item], None, use.get(item))
        for _ in range(draft.times.get(item, 0)):
            yield Act(item, made[item].recipe.count, made[item], use.get(item) if item != goal else None)

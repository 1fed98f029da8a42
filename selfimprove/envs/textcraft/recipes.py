"""Recipe books for TextCraft: which items are made from which, the goals, and the commands shown to the player.

A book is a folder of recipe files (``files.py``), one JSON object {file name: recipe}, or the embedded book
(``book.py``). Files are read in sorted order, independent of the directory's order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import load_json, only_regular
from selfimprove.envs.textcraft.book import embedded_recipes
from selfimprove.envs.textcraft.files import Ingredient, Recipe, read_recipe

DISTRACTORS = 10  # the maximum number of commands shown that the goal does not need


class RecipeBook:
    """What can be crafted; read once, immutable, and shared by all copies of the environment.

    ``recipes``: item -> its recipes. ``by_tag``: tag -> recipes of the items with this tag. ``items``, ``tags``: all
    ids. ``tag_of``: item -> its tag. ``depths``: item or tag -> length of the chain of crafts from raw material (0:
    raw). ``goals``: (craftable item, depth), sorted stably by depth; a task is an index into it.
    """

    def __init__(self, files: Mapping[str, Any], where: Path | str) -> None:
        """Read {file name: recipe}; ``where``: the book, for errors.

        Raises:
            UserError: a recipe is invalid (names the file and the key), or nothing can be crafted.
        """
        self.recipes: dict[str, list[Recipe]] = {}
        self.by_tag: dict[str, list[Recipe]] = {}
        self.items: set[str] = set()
        self.tags: set[str] = set()
        self.tag_of: dict[str, str] = {}
        self._shown: dict[tuple[str, int], tuple[Recipe, ...]] = {}
        for file in sorted(files):
            recipe = read_recipe(files[file], f"{where}, {file}")
            if recipe is not None:
                self._add(recipe)
        self._tags_nobody_crafts_become_items()
        self.members = {tag: [item for item, own in self.tag_of.items() if own == tag] for tag in sorted(self.tags)}
        self.depths = self._least_depths()
        craftable = [(item, self.depths[item]) for item in self.recipes if item in self.depths]
        self.goals: list[tuple[str, int]] = sorted(craftable, key=lambda goal: goal[1])
        if not self.goals:
            raise UserError(
                f"{where}: nothing can be crafted, because every recipe needs its own output; provide recipes that "
                "start from raw materials."
            )

    @staticmethod
    def load(path: Path | None = None) -> RecipeBook:
        """The book at ``path``: a folder of recipe files or a JSON object {file name: recipe}; None: the embedded book.

        Raises:
            UserError: no such file, not JSON, or an invalid recipe.
        """
        if path is None:
            return _embedded()
        only_regular(path)
        if path.is_dir():
            files = {file.name: load_json(file) for file in sorted(path.glob("*.json"))}
            if not files:
                raise UserError(f"{path}: the folder contains no .json recipe files; name one that does.")
            return RecipeBook(files, path)
        merged = load_json(path)
        if not isinstance(merged, dict) or not merged:
            raise UserError(f"{path}: must be a non-empty JSON object {{file name: recipe}}; fix it.")
        return RecipeBook(merged, path)

    def _add(self, recipe: Recipe) -> None:
        """Add a recipe; if an input already depends on its output, only record its names."""
        for slot in recipe.inputs:
            (self.tags if slot.is_tag else self.items).add(slot.name)
        self.items.add(recipe.output)
        if len(recipe.inputs) == 1 and recipe.inputs[0].name.endswith("_block"):
            return
        if recipe.tag is not None and recipe.tag != recipe.output:  # a group may have the same name as its item
            self.tags.add(recipe.tag)
            self.tag_of[recipe.output] = recipe.tag
        if any(self._depends(slot.name, recipe.output) for slot in recipe.inputs):
            return
        self.recipes.setdefault(recipe.output, []).append(recipe)
        if recipe.tag is not None:
            self.by_tag.setdefault(recipe.tag, []).append(recipe)

    def _depends(self, name: str, output: str) -> bool:
        """Whether ``output`` is ``name`` or an input of some recipe on the way to ``name``."""
        seen, queue = {name}, [name]
        while queue:
            for recipe in self.recipes.get(queue.pop(), []):
                queue += [slot.name for slot in recipe.inputs if slot.name not in seen]
                seen.update(slot.name for slot in recipe.inputs)
        return output in seen

    def _tags_nobody_crafts_become_items(self) -> None:
        crafted = {tag for item, tag in self.tag_of.items() if item in self.recipes}
        all_recipes = chain.from_iterable(self.recipes.values())
        lone = {slot.name for recipe in all_recipes for slot in recipe.inputs if slot.is_tag} - crafted

        def as_item(recipe: Recipe) -> Recipe:
            inputs = tuple(
                Ingredient(slot.name, slot.count, slot.is_tag and slot.name not in lone) for slot in recipe.inputs
            )
            return Recipe(recipe.output, recipe.count, inputs, recipe.tag)

        self.recipes = {item: [as_item(recipe) for recipe in recipes] for item, recipes in self.recipes.items()}
        self.by_tag = {tag: [as_item(recipe) for recipe in recipes] for tag, recipes in self.by_tag.items()}
        self.items |= lone
        self.tags -= lone
        left_out = crafted - set(self.by_tag)  # tags whose own recipes were not added
        for item, tag in self.tag_of.items():
            if tag in left_out:
                self.by_tag.setdefault(tag, []).extend(self.recipes.get(item, []))

    def _least_depths(self) -> dict[str, int]:
        """Least fixed point; items that need themselves (by a tag) or lack a recipe get no depth and are no goals."""
        depths = {item: 0 for item in sorted(self.items) if self.is_raw(item)}
        # An item whose recipes name several tags bears only the last one. An item's own recipes take precedence over
        # those of a tag with the same name.
        bearing = {
            tag: [recipe for recipe in recipes if self.tag_of.get(recipe.output, tag) == tag]
            for tag, recipes in self.by_tag.items()
        }
        makers = {**bearing, **self.recipes}
        changed = True
        while changed:
            changed = False
            for name, recipes in makers.items():
                known = [
                    1 + max(depths[slot.name] for slot in recipe.inputs)
                    for recipe in recipes
                    if all(slot.name in depths for slot in recipe.inputs)
                ]
                if known and depths.get(name) != min(known):
                    depths[name] = min(known)
                    changed = True
        return depths

    def is_craftable(self, name: str) -> bool:
        """Whether an item or a tag has a recipe."""
        return name in self.recipes or name in self.by_tag

    def is_raw(self, item: str) -> bool:
        """Whether ``get`` can obtain the item."""
        return item in self.items and item not in self.tags and not self.is_craftable(item)

    def bears(self, item: str | None, slot: Ingredient) -> bool:
        """Whether the item may be put into the slot."""
        if item is None:
            return False
        return self.tag_of.get(item) == slot.name if slot.is_tag else item == slot.name

    def match(self, output: str | None, inputs: Sequence[tuple[str | None, int]]) -> Recipe | None:
        """The first recipe of ``output`` with exactly these inputs; each slot takes the first input that fits."""
        for recipe in self.recipes.get(output, []) if output is not None else []:
            left = list(inputs)
            for slot in recipe.inputs:
                found = next((given for given in left if self.bears(given[0], slot)), None)
                if found is None or found[1] != slot.count:
                    break
                left.remove(found)
            else:
                if not left:
                    return recipe
        return None

    def reachable(self, name: str) -> list[Recipe]:
        """All recipes on the way to an item or tag, closest first, repeated once per path."""
        found: list[Recipe] = []
        pending: list[tuple[str, frozenset[str]]] = [(name, frozenset())]
        while pending:
            wanted, above = pending.pop()
            if wanted in above:
                continue
            own = self.recipes.get(wanted) or self.by_tag.get(wanted) or []
            found += own
            slots = [slot.name for recipe in own for slot in recipe.inputs]
            pending += [(slot, above | {wanted}) for slot in reversed(slots)]
        return found

    @cached_property
    def _uses(self) -> dict[str, list[Recipe]]:
        """Item or tag -> recipes that use it; a recipe whose output has a tag occurs twice, as in the original."""
        uses: dict[str, list[Recipe]] = {}
        for makers in (self.recipes, self.by_tag):
            for recipes in makers.values():
                for recipe in recipes:
                    for slot in recipe.inputs:
                        uses.setdefault(slot.name, []).append(recipe)
        return uses

    def commands(self, goal: str, seed: int) -> tuple[Recipe, ...]:
        """The recipes shown to the player: the reachable ones and up to ten others that share an input, shuffled.

        The draws are the original's (one ``random.Random(seed)`` per task), but over sorted lists instead of sets.
        """
        if (goal, seed) not in self._shown:
            self._shown[goal, seed] = self._draw_commands(goal, random.Random(seed))
        return self._shown[goal, seed]

    def _draw_commands(self, goal: str, draw: random.Random) -> tuple[Recipe, ...]:
        reachable = self.reachable(goal)
        shown = {recipe.command: recipe for recipe in reachable}
        others: dict[str, Recipe] = {}
        for recipe in reachable:
            for slot in recipe.inputs:
                uses = self._uses.get(slot.name, [])
                others.update((other.command, other) for other in draw.sample(uses, min(len(uses), 10)))
        distractors = sorted(others.keys() - shown.keys())
        lines = sorted(shown) + draw.sample(distractors, min(len(distractors), DISTRACTORS))
        draw.shuffle(lines)
        return tuple(shown.get(line) or others[line] for line in lines)


@lru_cache(maxsize=1)
def _embedded() -> RecipeBook:
    return RecipeBook(embedded_recipes(), "the embedded recipe book")

"""TextCraft: craft an item from raw materials with the given crafting commands (Prasad et al. 2023, ADaPT; AgentGym).

An episode (goal 867 of the embedded book, played by the expert)::

    Crafting commands:
    craft 1 marble tower using 1 marble gate, 1 marble step
    craft 1 marble oven using 3 marble brick, 1 clay
    craft 3 marble brick using 2 marble rock
    craft 1 marble stair using 2 marble step
    craft 1 marble bowl using 3 marble rock
    craft 1 marble wall using 4 marble brick
    craft 1 marble step using 2 marble brick
    craft 2 marble tile using 1 marble brick, 1 glaze

    Goal: craft marble stair.

    Thought: First I get 4 marble rock for the marble brick.
    Action: get 4 marble rock
    Got 4 marble rock
    Thought: I craft marble brick, which the marble step needs.
    Action: craft 3 marble brick using 2 marble rock
    Crafted 3 minecraft:marble_brick
    Thought: Now I make marble brick for the marble step.
    Action: craft 3 marble brick using 2 marble rock
    Crafted 3 minecraft:marble_brick
    Thought: Now I make marble step for the marble stair.
    Action: craft 1 marble step using 2 marble brick
    Crafted 1 minecraft:marble_step
    Thought: Now I make marble step for the marble stair.
    Action: craft 1 marble step using 2 marble brick
    Crafted 1 minecraft:marble_step
    Thought: Now I can craft the marble stair.
    Action: craft 1 marble stair using 2 marble step
    Crafted 1 minecraft:marble_stair

The last craft earns reward 1 and ends the episode; every other step earns 0 (docs/agent-r.md, A35). Replies are
AgentGym's verbatim, including odd ones; docstrings and comments note where it crashes or contradicts itself.
"""

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from selfimprove.core.seeds import rng
from selfimprove.envs.interface import Move, Step
from selfimprove.envs.textcraft.expert import Act, Making, plan
from selfimprove.envs.textcraft.files import Recipe, item_id, item_name
from selfimprove.envs.textcraft.recipes import RecipeBook

INSTRUCTION = """\
You craft items. You are given crafting commands and a goal. Actions:
get {n} {item}: get raw material, which no command makes.
craft {n} {item} using {n} {item}, {n} {item}: craft by one of the given commands, with its exact numbers. \
Where a command names a kind of item, use an item of that kind.
inventory: see what you have.
Answer each time with a thought and one action:
Thought: why
Action: the action"""

_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]+) (.*)")
_INVENTORY = re.compile(r"inventory")
_COUNTED = re.compile(r"([0-9]+) (.*)")
_DIGITS = 4000  # longer numbers are not accepted; int() and str() refuse more than 4,300 digits


class _Failed(Exception):
    """The action is not possible; the text is the reply."""


_GET_THOUGHTS = (
    "I need {count} {item} for the {use}.",
    "I get {count} {item}, which the {use} takes.",
    "First I get {count} {item} for the {use}.",
)
_CRAFT_THOUGHTS = (
    "Now I make {item} for the {use}.",
    "I craft {item}, which the {use} needs.",
    "The {use} needs {item}, so I craft it.",
)
_GOAL_THOUGHTS = (
    "I have everything for the {item}.",
    "Now I can craft the {item}.",
    "All is there, so I make the {item}.",
)


class TextCraftSnapshot(NamedTuple):
    """A snapshot: the task, the inventory (in order of acquisition), and whether the goal is reached."""

    task: int
    inventory: tuple[tuple[str, int], ...]
    done: bool


class TextCraft:
    """The environment; copies share only the book, which is immutable.

    ``seed`` determines the distractors and the order of the commands; all tasks use the same seed, as in the original.
    """

    name = "textcraft"
    instruction = INSTRUCTION

    def __init__(self, book: RecipeBook, seed: int = 42) -> None:
        self._book = book
        self._seed = seed
        self.restore(TextCraftSnapshot(0, (), False))

    def task_ids(self) -> Sequence[int]:
        """Indices into the book's goals."""
        return range(len(self._book.goals))

    def reset(self, task_id: int) -> str:
        """Start with an empty inventory; the goal's index is ``task_id`` modulo the number of goals."""
        self.restore(TextCraftSnapshot(task_id % len(self._book.goals), (), False))
        lines = "\n".join(recipe.command for recipe in self._book.commands(self._goal, self._seed))
        return f"Crafting commands:\n{lines}\n\nGoal: craft {item_name(self._goal)}."

    def step(self, action: str) -> Step:
        """Act; the replies are the original's verbatim."""
        valid = True
        try:
            observation = self._act(action)
        except _Failed as failure:
            observation, valid = str(failure), False
        score = 1.0 if self._done else 0.0
        return Step(observation, score, self._done, {"raw_score": score, "valid": valid, "disaster": False})

    def snapshot(self) -> TextCraftSnapshot:
        """A few strings and numbers; hashable."""
        return TextCraftSnapshot(self._task, tuple(self._inventory.items()), self._done)

    def restore(self, snapshot: TextCraftSnapshot) -> None:
        self._task, inventory, self._done = snapshot
        self._inventory = dict(inventory)
        self._goal = self._book.goals[self._task][0]

    def valid_actions(self) -> list[str]:
        """Crafts that the inventory allows, gets in the amounts that a command or the expert uses, and ``inventory``.

        Only recipes and items that the task's commands mention; [] when done.
        """
        if self._done:
            return []
        actions = {"inventory"}
        for recipe in self._book.commands(self._goal, self._seed):
            for slot in recipe.inputs:
                if not slot.is_tag and self._book.is_raw(slot.name):
                    actions.add(f"get {slot.count} {item_name(slot.name)}")
            actions.update(self._crafts_now(recipe))
        actions.update(act.text for act in self._plan() if act.making is None)
        return sorted(actions)

    def expert(self) -> list[Move]:
        """The fewest actions to the goal from here, each with a short reason; [] if done or if there is no path."""
        acts = () if self._done else self._plan()
        return [Move(self._thought(act, len(acts) - i), act.text) for i, act in enumerate(acts)]

    def _plan(self) -> tuple[Act, ...]:
        return plan(self._book, self._goal, tuple(self._inventory.items()))

    def _thought(self, act: Act, left: int) -> str:
        """A sentence for an action, drawn by the task, the action and the number of remaining actions."""
        item = item_name(act.item)
        if act.making is None:
            texts = _GET_THOUGHTS
        else:
            texts = _CRAFT_THOUGHTS if act.use else _GOAL_THOUGHTS
        text = rng("textcraft thought", self._seed, self._task, act.text, left).choice(texts)
        return text.format(item=item, count=act.amount, use=item_name(act.use or act.item))

    def _crafts_now(self, recipe: Recipe) -> list[str]:
        """The craft actions for a recipe that the inventory allows: one for each way to fill its tags."""
        fits = [
            [item for item, held in self._inventory.items() if held >= slot.count and self._book.bears(item, slot)]
            for slot in recipe.inputs
        ]
        ways = [tuple(zip(items, (slot.count for slot in recipe.inputs), strict=True)) for items in product(*fits)]
        return [Making(recipe, way).command for way in ways if self._affords(way)]

    def _affords(self, inputs: Sequence[tuple[str, int]]) -> bool:
        """Whether the inventory contains all inputs at once."""
        total: dict[str, int] = {}
        for item, count in inputs:
            total[item] = total.get(item, 0) + count
        return all(self._inventory.get(item, 0) >= count for item, count in total.items())

    def _act(self, action: str) -> str:
        """Perform the action and return the reply. Raises ``_Failed`` with the reply if the action is not possible."""
        if match := _CRAFT.match(action):
            return self._craft(match[1], match[2])
        if match := _GET.match(action):
            return self._get(match[1], match[2])
        if _INVENTORY.match(action):
            carried = "".join(f"[{item_name(item)}] ({count}) " for item, count in self._inventory.items())
            return "Inventory: " + (carried or "You are not carrying anything.")
        raise _Failed(f"Could not execute {action}")

    def _get(self, digits: str, name: str) -> str:
        """Add raw material, which is unlimited; tags and craftable items are not found."""
        count, item = _number(digits), item_id(name)
        if not self._book.is_raw(item):
            raise _Failed(f"Could not find {name}")
        self._inventory[item] = self._inventory.get(item, 0) + count
        return f"Got {count} {name}"

    def _craft(self, wanted: str, using: str) -> str:
        """Apply a recipe once; the requested number is ignored, the inputs' numbers must match the recipe's."""
        counted = _COUNTED.match(wanted)
        count, name = (_number(counted[1]), counted[2]) if counted else (1, wanted)
        output, tag = self._item_or_tag(name)
        inputs: list[tuple[str | None, int]] = []
        for part in using.split(","):
            match = _COUNTED.match(part.strip())
            if match is None:
                raise _Failed(f"Wrong item format: {part.strip()}")
            inputs.append((self._item_or_tag(match[2])[0], _number(match[1])))
        given = [(item, n) for item, n in inputs if item is not None and self._inventory.get(item, -1) >= n]
        if len(given) < len(inputs):
            raise _Failed(f"Could not find enough items to craft {output}")
        recipe = self._book.match(output, inputs)
        if recipe is None:  # the original prints the repr of its output object, so we do as well
            item_tag = f"ItemTag(tag={tag!r}, item_id={output!r})"
            raise _Failed(f"Could not find a valid recipe for ItemTagWithCount(item_tag={item_tag}, count={count})")
        if not self._affords(given):  # the same item twice: the original checks each mention separately, and crashes
            raise _Failed(f"Could not find enough items to craft {output}")
        for item, n in given:
            self._inventory[item] -= n
            if not self._inventory[item]:
                del self._inventory[item]
        self._inventory[recipe.output] = self._inventory.get(recipe.output, 0) + recipe.count
        self._done = self._done or recipe.output == self._goal
        return f"Crafted {recipe.count} {recipe.output}"

    def _item_or_tag(self, name: str) -> tuple[str | None, str | None]:
        """(item, None) or (None, tag): a tag is not an item, so inputs must name items that have the tag."""
        full = item_id(name)
        return (None, full) if full in self._book.tags else (full, None)


def _number(digits: str) -> int:
    """Parse a number. Raises ``_Failed`` if it has too many digits."""
    if len(digits) > _DIGITS:
        raise _Failed(f"Wrong item format: {digits}")
    return int(digits)

"""Recipe files for TextCraft: reads recipes from JSON and reports what is wrong with an invalid one.

A recipe file, in the format of the game whose recipes the original uses, and the resulting command::

    {"type": "minecraft:crafting_shaped", "group": "ladder", "pattern": ["##", "##", "&&"],
     "key": {"#": {"item": "minecraft:ash_pole"}, "&": {"tag": "minecraft:cord"}},
     "result": {"item": "minecraft:ash_ladder", "count": 3}}

    craft 3 ash ladder using 4 ash pole, 2 cord
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from selfimprove.core.errors import UserError

NAMESPACE = "minecraft:"
_ID = re.compile(r"minecraft:[a-z0-9_./-]+")


def item_name(item: str) -> str:
    """The name of an item in commands and actions: ``minecraft:ash_pole`` -> ``ash pole``."""
    return item.replace(NAMESPACE, "").replace("_", " ")


def item_id(name: str) -> str:
    """The id of the item with this name: ``ash pole`` -> ``minecraft:ash_pole``."""
    return NAMESPACE + name.replace(" ", "_")


@dataclass(frozen=True)
class Ingredient:
    """``count`` of an item, or of any one item with a tag (``is_tag``)."""

    name: str
    count: int
    is_tag: bool = False


@dataclass(frozen=True)
class Recipe:
    """Makes ``count`` of ``output``, which has the tag ``tag``, from ``inputs``."""

    output: str
    count: int
    inputs: tuple[Ingredient, ...]
    tag: str | None = None

    @cached_property
    def command(self) -> str:
        """The crafting command shown to the player."""
        inputs = ", ".join(f"{slot.count} {item_name(slot.name)}" for slot in self.inputs)
        return f"craft {self.count} {item_name(self.output)} using {inputs}"


def read_recipe(row: Any, where: str) -> Recipe | None:
    """The recipe in a file's content; None if it is not a crafting recipe (smelting, …).

    Raises:
        UserError: a key is missing or wrong, or an item is unknown; the message begins with ``where``, the file.
    """
    return _Reader(where).read(row)


@dataclass(frozen=True)
class _Reader:
    """Reads one recipe; ``where``: the book and file, for errors."""

    where: str

    def read(self, row: Any) -> Recipe | None:
        kind = self._full(self._field(row, "type", str))
        if kind == "minecraft:crafting_shaped":
            inputs = self._shaped(row)
        elif kind == "minecraft:crafting_shapeless":
            inputs = self._shapeless(row)
        else:
            return None
        output, count = self._result(row)
        group = row.get("group") or None
        tag = None if group is None else self._id(group, "group")
        return Recipe(output, count, tuple(inputs), tag)

    def _shaped(self, row: Any) -> list[Ingredient]:
        """One slot per symbol of the key, with its count in the pattern."""
        lines = self._field(row, "pattern", list)
        if not all(isinstance(line, str) for line in lines):
            raise UserError(f"{self.where}, key 'pattern': an element has the wrong type ({_short(lines)}); fix it.")
        pattern = "".join(lines)
        key = self._field(row, "key", dict)
        for symbol in pattern:
            if symbol != " " and symbol not in key:
                raise UserError(f"{self.where}, key 'pattern': undefined symbol {symbol!r}; define it in 'key'.")
        slots = []
        for symbol, choice in key.items():
            if len(symbol) != 1 or symbol not in pattern:
                raise UserError(f"{self.where}, key 'key': {symbol!r} does not occur in the pattern; delete it.")
            name, is_tag = self._ingredient(choice, "key")
            slots.append(Ingredient(name, pattern.count(symbol), is_tag))
        return self._some(slots, "key")

    def _shapeless(self, row: Any) -> list[Ingredient]:
        """One slot per name, with its count, in the order of the first mention."""
        counts: dict[tuple[str, bool], int] = {}
        for choice in self._field(row, "ingredients", list):
            name, is_tag = self._ingredient(choice, "ingredients")
            counts[name, is_tag] = counts.get((name, is_tag), 0) + 1
        return self._some([Ingredient(name, count, is_tag) for (name, is_tag), count in counts.items()], "ingredients")

    def _ingredient(self, choice: Any, key: str) -> tuple[str, bool]:
        """(id, whether it is a tag); the first one if there are alternatives."""
        if isinstance(choice, list) and choice:
            choice = choice[0]
        if isinstance(choice, dict):
            for kind in ("item", "tag"):
                if kind in choice:
                    return self._id(choice[kind], key), kind == "tag"
        raise UserError(f"{self.where}, key {key!r}: unknown item {_short(choice)}; name an 'item' or a 'tag'.")

    def _result(self, row: Any) -> tuple[str, int]:
        result = self._field(row, "result", (str, dict))
        if isinstance(result, str):
            return self._id(result, "result"), 1
        if "item" not in result:
            raise UserError(
                f"{self.where}, key 'result': the key 'item' is missing; name the item that the recipe makes."
            )
        count = result.get("count") or 1
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise UserError(f"{self.where}, key 'result.count': must be a whole number above 0, not {_short(count)}.")
        return self._id(result["item"], "result"), count

    def _id(self, value: Any, key: str) -> str:
        """The full id; the default namespace is the game's, the only one that actions can express."""
        full = self._full(value) if isinstance(value, str) else ""
        if not _ID.fullmatch(full):
            raise UserError(
                f"{self.where}, key {key!r}: invalid id {_short(value)}; write 'minecraft:' followed by lower-case "
                "letters, digits and _."
            )
        return full

    @staticmethod
    def _full(value: str) -> str:
        return value if ":" in value else NAMESPACE + value

    def _field(self, row: Any, key: str, kind: type | tuple[type, ...]) -> Any:
        if not isinstance(row, dict):
            raise UserError(f"{self.where}: a recipe must be a JSON object, not {_short(row)}; fix or delete it.")
        if key not in row:
            raise UserError(f"{self.where}: the key {key!r} is missing; add it or delete the recipe.")
        if not isinstance(row[key], kind):
            raise UserError(f"{self.where}, key {key!r}: has the wrong type ({_short(row[key])}); fix it.")
        return row[key]

    def _some(self, slots: list[Ingredient], key: str) -> list[Ingredient]:
        if not slots:
            raise UserError(f"{self.where}, key {key!r}: a recipe needs an input; add one or delete the recipe.")
        return slots


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

"""For the tests of TextCraft: the embedded book, and a small world with given things in hand."""

from selfimprove.envs.textcraft.env import TextCraft, TextCraftSnapshot
from selfimprove.envs.textcraft.files import item_name
from selfimprove.envs.textcraft.recipes import RecipeBook

BOOK = RecipeBook.load()


def shapeless(output: str, count: int, *inputs: str, group: str | None = None) -> dict:
    """``#cord`` is a tag; an input named twice is required twice."""
    choices = [{"tag": name[1:]} if name.startswith("#") else {"item": name} for name in inputs]
    row = {"type": "crafting_shapeless", "ingredients": choices, "result": {"item": output, "count": count}}
    return row | ({"group": group} if group else {})


# A small world with a tag, two recipes for an item, recipes for several pieces, and an intermediate item needed twice.
SMALL = RecipeBook(
    {
        "bow": shapeless("bow", 1, "stick", "stick", "#cord"),
        "cord1": shapeless("hemp_cord", 1, "hemp", "hemp", group="cord"),
        "cord2": shapeless("silk_cord", 3, "silk", group="cord"),
        "stick1": shapeless("stick", 1, "branch"),
        "stick2": shapeless("stick", 4, "plank", "plank"),
        "plank": shapeless("plank", 2, "log"),
        "rack": shapeless("rack", 1, "bow", "bow", "plank"),
    },
    "small",
)
TASK = {item_name(goal): i for i, (goal, _) in enumerate(SMALL.goals)}


def at(goal: str, **inventory: int) -> TextCraft:
    """The small world, with these things in hand."""
    env = TextCraft(SMALL)
    env.restore(
        TextCraftSnapshot(TASK[goal], tuple((f"minecraft:{item}", count) for item, count in inventory.items()), False)
    )
    return env

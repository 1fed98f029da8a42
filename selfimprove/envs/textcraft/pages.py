"""Text about crafting for pretraining: recipes to look up, the results of crafts, the inventory after a few actions.

A page::

    craft 2 ash pole using 1 ash branch
    craft 1 ash stool using 1 ash plank, 2 ash pole
    How is ash pole made?                                   craft 2 ash pole using 1 ash branch
    Is ash branch made by a command?                        no
    2 times 3 marble rock is how much?                      6 marble rock
    get 4 ash branch                                        Got 4 ash branch

Half of the recipes have their numbers redrawn, so that a recipe must be looked up and cannot be memorised. Complete
episodes are from other books: the embedded book with its words permuted and all numbers redrawn. No page therefore
shows how a goal of the embedded book is reached.
"""

import re
from collections import Counter
from functools import lru_cache
from random import Random

from selfimprove.core.seeds import rng
from selfimprove.envs.passages import Passage
from selfimprove.envs.textcraft.book import FAMILIES, embedded_recipes
from selfimprove.envs.textcraft.env import TextCraft
from selfimprove.envs.textcraft.files import Ingredient, Recipe, item_id, item_name
from selfimprove.envs.textcraft.recipes import RecipeBook


def recipes(draws: Random) -> list[Passage]:
    """Five to twelve commands, and questions about them."""
    book = RecipeBook.load(None)
    goal = draws.choice(book.goals)[0]
    shown = list(book.commands(goal, draws.randrange(1000)))
    shown = [_renumbered(draws, recipe) for recipe in draws.sample(shown, min(len(shown), draws.randint(5, 12)))]
    shown = list({recipe.output: recipe for recipe in shown}.values())
    page = [Passage("Crafting commands:\n" + "\n".join(recipe.command for recipe in shown))]
    made = {recipe.output for recipe in shown}
    slots = [slot for recipe in shown for slot in recipe.inputs]
    for _ in range(draws.randint(5, 10)):
        recipe, slot, times = draws.choice(shown), draws.choice(slots), draws.randint(2, 6)
        item, part = item_name(recipe.output), item_name(slot.name)
        page.append(
            draws.choice(
                (
                    Passage(f"How is {item} made?", recipe.command, "lookup"),
                    Passage(f"What does {item} take?", _inputs(recipe), "lookup"),
                    Passage(f"Is {part} made by a command?", "yes" if slot.name in made else "no", "lookup"),
                    Passage(
                        f"{times} times {slot.count} {part} is how much?", f"{times * slot.count} {part}", "arithmetic"
                    ),
                    _rounds(recipe, times),
                )
            )
        )
    return page


_BOOKS = 400
_MOST_ACTIONS = 14


def episodes(draws: Random) -> list[Passage]:
    """A goal of another book, and the expert's path to it."""
    book = _other_book(draws.randrange(_BOOKS))
    goals_at: dict[int, list[int]] = {}
    for task, (_, depth) in enumerate(book.goals):
        goals_at.setdefault(depth, []).append(task)
    while True:
        env = TextCraft(book, seed=draws.randrange(10_000))
        told = env.reset(draws.choice(goals_at[draws.choice(sorted(goals_at))]))
        moves = env.expert()
        if len(moves) <= _MOST_ACTIONS:
            break
    page = []
    for number, move in enumerate(moves):
        said = f"Thought: {move.thought}\nAction: {move.action}"
        page.append(Passage(told, said, "reading" if number else "solving"))
        told = env.step(move.action).observation
    return page


@lru_cache(maxsize=_BOOKS)
def _other_book(number: int) -> RecipeBook:
    """The embedded book with its materials and its other words permuted separately, and all numbers redrawn."""
    draws = rng("crafting pages", number)
    materials = sorted({word for family in FAMILIES for word in family.split()})
    others = sorted({word for lines in FAMILIES.values() for word in re.findall("[a-z]+", lines)} - set(materials))
    exchanged = {
        word: other
        for words in (materials, others)
        for word, other in zip(words, draws.sample(words, len(words)), strict=True)
    }

    def other(match: re.Match[str]) -> str:
        return exchanged.get(match[0]) or str(draws.choice((1, 1, 2, 2, 3, 4, 5, 6)))

    families = {re.sub("[a-z]+", other, name): re.sub("[a-z]+|[0-9]+", other, FAMILIES[name]) for name in FAMILIES}
    return RecipeBook(embedded_recipes(families), "crafting pages")


def carrying(draws: Random) -> list[Passage]:
    """A few actions with their replies, and the resulting inventory."""
    book = RecipeBook.load(None)
    makers = [recipe for recipes in book.recipes.values() for recipe in recipes]
    known = [recipe for recipe in makers if all(book.is_raw(slot.name) for slot in recipe.inputs)]
    held: Counter[str] = Counter()
    page = []
    for _ in range(draws.randint(1, 3)):
        recipe = _renumbered(draws, draws.choice(known))
        for slot in recipe.inputs:
            name = item_name(slot.name)
            held[name] += slot.count
            page.append(Passage(f"get {slot.count} {name}", f"Got {slot.count} {name}", "copying"))
        for slot in recipe.inputs:
            held[item_name(slot.name)] -= slot.count
        held[item_name(recipe.output)] += recipe.count
        reply = f"Crafted {recipe.count} {item_id(item_name(recipe.output))}"
        page.append(Passage(recipe.command, reply, "copying"))
        if draws.random() < 0.5:
            spare = draws.choice(known).inputs[0]
            held[item_name(spare.name)] += spare.count
            page.append(
                Passage(f"get {spare.count} {item_name(spare.name)}", f"Got {spare.count} {item_name(spare.name)}")
            )
        carried = "".join(f"[{name}] ({count}) " for name, count in held.items() if count)
        page.append(Passage("inventory", f"Inventory: {carried}".strip()))
    return page


def _renumbered(draws: Random, recipe: Recipe) -> Recipe:
    if draws.random() < 0.5:
        return recipe
    inputs = tuple(Ingredient(slot.name, draws.randint(1, 9), slot.is_tag) for slot in recipe.inputs)
    return Recipe(recipe.output, draws.randint(1, 6), inputs, recipe.tag)


def _inputs(recipe: Recipe) -> str:
    return ", ".join(f"{slot.count} {item_name(slot.name)}" for slot in recipe.inputs)


def _rounds(recipe: Recipe, wanted: int) -> Passage:
    times = -(-wanted // recipe.count)
    return Passage(
        f"How often is {item_name(recipe.output)} crafted for {wanted}?",
        f"One craft makes {recipe.count}, so {times} time{'s' * (times > 1)}.",
        "arithmetic",
    )

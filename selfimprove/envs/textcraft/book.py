"""The embedded recipe book: our own world of woods, metals, cloth, stone, bread, fruit, colours and gems.

A line is a recipe for each material of its family (``{}``)::

    cord: 2 hemp cord <- 3 hemp                    2 hemp cords, which have the tag cord, are made from 3 hemp
    1 {} ladder <- 4 {} pole, 2 #cord              #: any item with the tag
    3 paper <- 2 pulp|rag                          |: alternatives; TextCraft uses the first

Whatever can be made from one material can be made from every other material of its family, with the same numbers, so
that knowledge about ash ladders transfers to yew ladders. ``embedded_recipes`` returns the book as recipe files in the
format of ``files.py``, which any TextCraft server can load.
"""

import re
from collections.abc import Mapping
from typing import Any

FAMILIES: dict[str, str] = {
    "alder ash aspen beech birch cedar elm fir hazel holly larch lime maple oak olive pine poplar rowan willow yew": """
        4 {} plank <- 1 {} trunk
        2 {} pole <- 1 {} branch
        1 {} bench <- 5 {} plank
        2 {} shelf <- 2 {} plank, 1 glue
        1 {} stool <- 1 {} plank, 2 {} pole
        1 {} crate <- 4 {} plank
        1 {} ladder <- 4 {} pole, 2 #cord
        1 {} chest <- 1 {} crate, 1 hinge
        1 {} bed <- 1 {} bench, 1 wool cloth
        1 {} cabinet <- 2 {} shelf, 1 {} plank
        1 {} cart <- 1 {} chest, 2 {} pole
        1 {} dresser <- 1 {} cabinet, 1 mirror
    """,
    "brass bronze chrome cobalt copper gold iron lead nickel pewter platinum silver steel tin titanium zinc": """
        2 {} bar <- 3 {} ore
        1 {} bar <- 4 {} scrap
        6 {} nail <- 1 {} bar
        2 {} plate <- 2 {} bar
        3 {} wire <- 1 {} bar
        1 {} bell <- 4 {} bar
        1 {} spade <- 1 {} bar, 1 #handle
        1 {} hammer <- 2 {} bar, 1 #handle
        1 {} pan <- 1 {} plate, 1 #handle
        1 {} helm <- 2 {} plate, 1 padding
        1 {} lamp <- 1 {} plate, 1 wick
        2 {} ring <- 1 {} wire
        1 {} chain <- 3 {} ring
        1 {} kettle <- 1 {} pan, 1 {} plate
        1 {} lantern <- 1 {} lamp, 1 glass
    """,
    "alpaca angora bamboo cashmere cotton felt jute linen mohair nylon silk wool": """
        4 {} thread <- 1 raw {}
        1 {} cloth <- 4 {} thread
        1 {} rope <- 3 {} thread
        1 {} net <- 6 {} thread
        1 {} sack <- 2 {} cloth
        1 {} apron <- 1 {} cloth, 1 {} rope
        1 {} cap <- 1 {} cloth, 1 button
        1 {} hammock <- 1 {} net, 1 {} rope
        1 {} flag <- 1 {} cloth, 1 ash pole
        1 {} hood <- 1 {} cap, 2 {} thread
        1 {} coat <- 1 {} apron, 1 buckle
    """,
    "agate basalt chalk dolomite flint gneiss granite jasper limestone marble obsidian onyx quartz sandstone shale "
    "slate": """
        3 {} brick <- 2 {} rock
        1 {} bowl <- 3 {} rock
        1 {} wall <- 4 {} brick
        1 {} step <- 2 {} brick
        1 {} oven <- 3 {} brick, 1 clay
        2 {} tile <- 1 {} brick, 1 glaze
        1 {} gate <- 1 {} wall, 1 hinge
        1 {} stair <- 2 {} step
        1 {} mosaic <- 4 {} tile
        1 {} tower <- 1 {} gate, 1 {} step
        1 {} bath <- 1 {} mosaic, 1 {} bowl
    """,
    "amaranth barley buckwheat emmer maize millet oat quinoa rye sorghum spelt wheat": """
        2 {} flour <- 3 {} grain
        1 {} malt <- 2 {} grain
        2 {} dough <- 2 {} flour, 1 water
        1 {} porridge <- 1 {} flour, 1 milk
        1 {} ale <- 1 {} malt, 2 water
        1 {} loaf <- 2 {} dough
        3 {} bun <- 1 {} dough, 1 yeast
        1 {} pie <- 1 {} dough, 1 #jam
        1 {} toast <- 1 {} loaf, 1 butter
        1 {} sandwich <- 1 {} loaf, 1 #jam
    """,
    "apple apricot bilberry cherry currant elderberry fig grape peach pear plum quince": """
        jam: 1 {} jam <- 3 {}
        2 {} juice <- 2 {}
        1 {} tart <- 1 {} jam, 1 pastry
        1 {} syrup <- 2 {} juice, 1 sugar
        1 {} cider <- 2 {} juice, 1 yeast
        1 {} cake <- 1 {} syrup, 2 rye flour
        1 {} punch <- 1 {} syrup, 1 {} juice
        1 {} trifle <- 1 {} punch, 1 cream
    """,
    "amber azure coral crimson indigo ivory lilac maroon ochre scarlet teal violet": """
        2 {} pigment <- 1 {} petal
        1 {} ink <- 2 {} petal, 1 water
        2 {} paint <- 1 {} pigment, 1 oil
        1 {} candle <- 1 {} pigment, 2 wax
        1 {} pane <- 1 {} pigment, 2 glass
        1 {} quill <- 1 {} ink, 1 feather
        1 {} letter <- 1 {} ink, 2 paper
        1 {} ribbon <- 1 {} pigment, 1 silk cloth
        1 {} sign <- 1 {} paint, 1 pine plank
        1 {} window <- 2 {} pane
        1 {} vase <- 1 {} paint, 1 clay pot
        1 {} wreath <- 1 {} ribbon, 1 ivy
        1 {} casement <- 1 {} window, 1 hinge
    """,
    "beryl citrine diamond emerald garnet opal pearl peridot ruby sapphire topaz zircon": """
        1 cut {} <- 2 rough {}
        1 {} charm <- 1 cut {}, 1 #cord
        1 {} pin <- 1 cut {}, 1 silver bar
        1 {} brooch <- 2 cut {}, 1 buckle
        1 {} ring <- 1 cut {}, 1 silver wire
        1 {} amulet <- 1 {} charm, 1 feather
        1 {} crown <- 1 {} ring, 2 silver bar
    """,
    "": """
        cord: 2 hemp cord <- 3 hemp
        cord: 1 flax cord <- 2 flax
        cord: 2 nettle cord <- 2 nettle
        handle: 1 bone handle <- 1 bone
        handle: 1 horn handle <- 1 horn
        handle: 1 reed handle <- 2 reed
        3 paper <- 2 pulp|rag
        2 paper <- 3 reed
        1 clay pot <- 2 clay
        1 herb tea <- 2 #herb, 1 water
        2 varnish <- 1 oil, 1 resin|sap
    """,
}

_LINE = re.compile(r"(?:(?P<group>\w+): )?(?P<count>[0-9]+) (?P<output>[\w ]+) <- (?P<inputs>.+)")
_INPUT = re.compile(r"(?P<count>[0-9]+) (?P<tag>#?)(?P<names>[\w |]+)")


def embedded_recipes(families: Mapping[str, str] = FAMILIES) -> dict[str, Any]:
    """{file name: recipe} for the given families, in the format of ``files.py``."""
    files: dict[str, Any] = {}
    for materials, lines in families.items():
        for line in lines.strip().splitlines():
            for material in materials.split() or [""]:
                name, recipe = _recipe(line.strip().replace("{}", material))
                assert name not in files, f"two recipes are called {name}"
                files[name] = recipe
    return files


def _recipe(line: str) -> tuple[str, dict[str, Any]]:
    """(file name, recipe) of a line without ``{}``: shapeless for up to three pieces, else in rows of three."""
    head = _LINE.fullmatch(line)
    assert head is not None, line
    output = _id(head["output"])
    inputs: list[tuple[int, Any]] = []
    for part in head["inputs"].split(", "):
        match = _INPUT.fullmatch(part)
        assert match is not None, line
        choices = [{"tag" if match["tag"] else "item": _id(name)} for name in match["names"].split("|")]
        inputs.append((int(match["count"]), choices if len(choices) > 1 else choices[0]))
    recipe: dict[str, Any] = {"group": head["group"]} if head["group"] else {}
    if sum(count for count, _ in inputs) <= 3:
        ingredients = [choice for count, choice in inputs for _ in range(count)]
        recipe |= {"type": "minecraft:crafting_shapeless", "ingredients": ingredients}
    else:
        pieces = "".join("ABC"[i] * count for i, (count, _) in enumerate(inputs))
        recipe |= {
            "type": "minecraft:crafting_shaped",
            "pattern": [pieces[i : i + 3].ljust(3) for i in range(0, len(pieces), 3)],
            "key": {"ABC"[i]: choice for i, (_, choice) in enumerate(inputs)},
        }
    recipe["result"] = {"item": output, "count": int(head["count"])}
    first = head["inputs"].split(", ")[0].split(" ", 1)[1].split("|")[0].lstrip("#")
    return f"{_file(head['output'])}_from_{_file(first)}.json", recipe


def _id(name: str) -> str:
    return "minecraft:" + _file(name)


def _file(name: str) -> str:
    return name.replace(" ", "_")

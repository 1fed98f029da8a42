"""Vocabulary of the generated catalogue: departments, kinds of products, attributes, options. Data only, no logic.

The vocabulary is deliberately small (a model trained from scratch must learn to shop with it), and chosen so that the
reward's fuzzy comparisons never confuse two attributes or option values (a test checks every pair).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of product.

    ``query`` is a search query for it (the original's field), ``noun`` its name in titles, ``use`` its purpose.
    ``options`` are keys of ``OPTIONS``; ``prices`` are the usual lowest and highest price in dollars.
    """

    query: str
    noun: str
    use: str
    options: tuple[str, ...]
    prices: tuple[int, int]


@dataclass(frozen=True)
class Department:
    """A category, its shelves (the middle of the category path) and the attributes its products may have."""

    category: str
    label: str
    attributes: tuple[str, ...]
    shelves: dict[str, tuple[Kind, ...]]


OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "color": ("color", ("black", "white", "blue", "red", "green", "pink", "brown", "gray")),
    "clothing size": ("size", ("small", "medium", "large", "xxl")),
    "shoe size": ("size", ("7", "8", "9", "10")),
    "bed size": ("size", ("twin", "full", "queen", "king")),
    "bottle": ("size", ("travel", "regular", "jumbo")),
    "length": ("length", ("short", "middle", "long")),
    "pack": ("pack", ("single", "double", "family")),
    "scent": ("scent", ("citrus", "coconut", "lavender", "vanilla")),
    "flavor": ("flavor", ("honey", "cocoa", "berry", "ginger", "apple")),
}
"""Option group -> the name on the page, and all values, of which each product offers some."""

DEPARTMENTS: tuple[Department, ...] = (
    Department(
        category="fashion",
        label="Clothing, Shoes & Jewelry",
        attributes=(
            "machine wash", "slim fit", "daily wear", "quick drying", "soft cotton", "light weight", "classic style",
            "warm lining", "hand made", "arch support",
        ),
        shelves={
            "Clothing": (
                Kind("shirts", "shirt", "office", ("color", "clothing size"), (12, 40)),
                Kind("sweaters", "sweater", "winter", ("color", "clothing size"), (20, 70)),
                Kind("jackets", "jacket", "rain", ("color", "clothing size"), (30, 120)),
                Kind("shorts", "shorts", "summer", ("color", "clothing size"), (10, 35)),
            ),
            "Shoes": (
                Kind("sneakers", "sneakers", "running", ("color", "shoe size"), (25, 90)),
                Kind("boots", "boots", "hiking", ("color", "shoe size"), (40, 140)),
                Kind("sandals", "sandals", "beach", ("color", "shoe size"), (10, 50)),
            ),
            "Accessories": (
                Kind("hats", "hat", "garden", ("color",), (8, 30)),
                Kind("backpacks", "backpack", "school", ("color",), (20, 80)),
            ),
        },
    ),
    Department(
        category="beauty",
        label="Beauty & Personal Care",
        attributes=(
            "cruelty free", "sensitive skin", "dry hair", "long lasting", "natural oils", "alcohol free",
            "clinically tested", "deep moisture", "vitamin rich", "gentle formula",
        ),
        shelves={
            "Hair Care": (
                Kind("shampoo", "shampoo", "curls", ("scent", "bottle"), (6, 30)),
                Kind("hair masks", "hair mask", "split ends", ("scent",), (8, 35)),
                Kind("hair brushes", "hair brush", "tangles", ("color",), (5, 25)),
            ),
            "Skin Care": (
                Kind("face creams", "face cream", "night", ("bottle",), (10, 60)),
                Kind("body lotions", "body lotion", "winter", ("scent", "bottle"), (7, 30)),
                Kind("soap bars", "soap bar", "hands", ("scent", "pack"), (4, 20)),
                Kind("lip balms", "lip balm", "travel", ("pack",), (3, 15)),
            ),
        },
    ),
    Department(
        category="electronics",
        label="Electronics",
        attributes=(
            "fast charging", "noise cancelling", "easy carry", "high speed", "water resistant", "heavy duty",
            "energy saving", "plug play", "stereo sound", "tangle proof",
        ),
        shelves={
            "Audio": (
                Kind("headphones", "headphones", "calls", ("color",), (15, 150)),
                Kind("speakers", "speaker", "parties", ("color",), (20, 200)),
                Kind("microphones", "microphone", "streaming", (), (25, 160)),
            ),
            "Computers": (
                Kind("keyboards", "keyboard", "gaming", ("color",), (15, 120)),
                Kind("laptop stands", "laptop stand", "desk", ("color",), (12, 60)),
                Kind("webcams", "webcam", "meetings", (), (20, 110)),
            ),
            "Power": (
                Kind("chargers", "charger", "phone", ("color", "length"), (8, 45)),
                Kind("power banks", "power bank", "camping", ("color",), (15, 70)),
                Kind("cables", "cable", "monitor", ("length",), (4, 25)),
            ),
        },
    ),
    Department(
        category="garden",
        label="Home & Kitchen",
        attributes=(
            "easy clean", "super plush", "eco friendly", "stain proof", "space saving", "solid wood", "dishwasher safe",
            "fade resistant", "double sided", "non slip",
        ),
        shelves={
            "Bedding": (
                Kind("blankets", "blanket", "sofa", ("color", "bed size"), (15, 80)),
                Kind("pillows", "pillow", "side sleepers", ("bed size",), (10, 50)),
                Kind("bed sheets", "bed sheet", "summer", ("color", "bed size"), (18, 90)),
            ),
            "Decor": (
                Kind("curtains", "curtains", "bedroom", ("color", "length"), (15, 70)),
                Kind("rugs", "rug", "hallway", ("color",), (20, 150)),
                Kind("table lamps", "table lamp", "reading", ("color",), (15, 90)),
            ),
            "Kitchen": (
                Kind("coffee mugs", "coffee mug", "camping", ("color", "pack"), (6, 30)),
                Kind("storage boxes", "storage box", "pantry", ("pack",), (8, 45)),
                Kind("cutting boards", "cutting board", "bread", (), (10, 60)),
            ),
        },
    ),
    Department(
        category="grocery",
        label="Grocery & Gourmet Food",
        attributes=(
            "gluten free", "low sugar", "non gmo", "high protein", "certified organic", "shelf stable", "fair trade",
            "keto diet", "no preservatives", "slowly roasted",
        ),
        shelves={
            "Snacks": (
                Kind("granola bars", "granola bar", "breakfast", ("flavor", "pack"), (4, 25)),
                Kind("crackers", "crackers", "cheese", ("flavor", "pack"), (3, 20)),
                Kind("cookies", "cookies", "kids", ("flavor",), (4, 22)),
                Kind("mixed nuts", "mixed nuts", "hiking", ("pack",), (6, 35)),
            ),
            "Drinks": (
                Kind("green tea", "green tea", "morning", ("flavor", "pack"), (5, 30)),
                Kind("coffee beans", "coffee beans", "espresso", ("pack",), (8, 45)),
                Kind("fruit juice", "fruit juice", "lunch", ("flavor",), (3, 18)),
            ),
        },
    ),
)  # fmt: skip

BRANDS: tuple[str, ...] = (
    "Aldera", "Bramo", "Corvi", "Delmar", "Elvano", "Fenwick", "Garo", "Halden", "Iskra", "Jorvik", "Kelda", "Lumeo",
    "Marlo", "Nordal", "Ostra", "Pavo", "Quill", "Rovena", "Sorel", "Tamsin", "Umbra", "Velka", "Wexley", "Yarrow",
)  # fmt: skip

REVIEWS: tuple[tuple[str, float, str], ...] = (
    ("Good value", 5.0, "The {noun} does what it says."),
    ("Fine", 4.0, "I use it for {use} and it is fine."),
    ("Not for me", 2.0, "I sent the {noun} back."),
    ("As expected", 3.0, "Nothing special, it works."),
)
"""Title, stars and text of the possible reviews."""

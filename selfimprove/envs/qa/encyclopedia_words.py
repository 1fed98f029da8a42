"""Vocabulary of the embedded encyclopedia: names, crafts, sentences and question forms. Data only, no logic.

Names are short and consist of recurring words, because a model trained from scratch must learn to copy names that it
has never seen in full; sentences are regular for the same reason. ``{x}`` is the subject, other braces are facts.
"""

from dataclasses import dataclass

FIRST_NAMES = (
    "Alda", "Anka", "Bela", "Bram", "Cora", "Dain", "Dora", "Edda", "Egon", "Fara", "Finn", "Gero", "Gita", "Hale",
    "Hedda", "Ilo", "Ines", "Ivar", "Jory", "Juna", "Kalle", "Kira", "Lars", "Lida", "Loma", "Mara", "Milo", "Nell",
    "Nils", "Odo", "Oren", "Paco", "Pia", "Quin", "Rafe", "Rosa", "Sona", "Sven", "Tess", "Tilo", "Ugo", "Una", "Vera",
    "Vito", "Wanda", "Yara", "Yves", "Zeno",
)  # fmt: skip
LAST_NAMES = (
    "Abel", "Adler", "Bask", "Birk", "Brandt", "Caro", "Crane", "Dahl", "Delf", "Ekman", "Elm", "Falk", "Fenn", "Frost",
    "Gale", "Grim", "Hask", "Holt", "Hume", "Imre", "Jarl", "Joss", "Kemp", "Krell", "Lamm", "Lund", "Marsh", "Moor",
    "Nash", "Norr", "Oster", "Pell", "Penn", "Quist", "Rand", "Roth", "Sand", "Stahl", "Tarn", "Thorn", "Umber", "Vale",
    "Venn", "Voss", "Ward", "Wolf", "Yale", "Zorn",
)  # fmt: skip
TOWN_STEMS = ("Tol", "Mar", "Bel", "Kes", "Dor", "Hal", "Ven", "Lor", "Sil", "Ost", "Ram", "Gar")
TOWN_ENDS = ("ma", "by", "wick", "ford", "en")
LANDS = ("Ressa", "Umbria", "Nordal", "Istria", "Calda", "Pomera", "Zeland", "Arvon")
RIVERS = (
    "Anu", "Bree", "Dell", "Eska", "Fyn", "Isel", "Joll", "Lune", "Mira", "Neth", "Orb", "Rill", "Saar", "Tave", "Ure",
    "Wye",
)  # fmt: skip
SEAS = ("Amber Sea", "Cold Sea", "Grey Sea", "Long Sea", "White Sea")
SIDES = ("north", "south", "east", "west")
PRODUCTS = ("beer", "bread", "cheese", "glass", "honey", "lace", "paper", "salt", "silk", "wine")
CRAFTS = (
    "baker", "doctor", "dancer", "judge", "miner", "painter", "pilot", "poet", "sailor", "singer", "smith", "weaver",
)  # fmt: skip
SEASONS = ("spring", "summer", "autumn", "winter")
ADJECTIVES = (
    "Amber", "Black", "Blue", "Broken", "Burning", "Copper", "Crooked", "Empty", "First", "Frozen", "Golden", "Green",
    "Hidden", "Hollow", "Iron", "Last", "Lost", "Narrow", "Old", "Pale", "Quiet", "Red", "Second", "Secret", "Silver",
    "Stone", "Tall", "Velvet", "White", "Wooden",
)  # fmt: skip
NOUNS = (
    "Anchor", "Arrow", "Barn", "Bell", "Bridge", "Candle", "Castle", "Cloud", "Crown", "Door", "Drum", "Eagle",
    "Feather", "Field", "Flower", "Forest", "Garden", "Gate", "Hammer", "Harbour", "Harp", "Heron", "Horse",
    "Island", "Key", "King", "Ladder", "Lamp", "Lantern", "Letter", "Lion", "Mask", "Mill", "Mirror", "Moon",
    "Mountain", "Orchard", "Owl", "Queen", "River", "Road", "Rose", "Ship", "Snow", "Star", "Storm", "Sun", "Swan",
    "Tower", "Wall", "Well", "Wheel", "Window", "Yoke",
)  # fmt: skip
ORGANISATIONS = ("Academy", "Bank", "Club", "Guild", "Press", "School", "Society")
EVENTS = ("Fair", "Feast", "Games", "March", "Race")

WORKS = {
    "novel": "author", "play": "author", "poem": "author",
    "opera": "composer", "ballet": "composer", "song": "composer",
    "statue": "maker", "mural": "maker", "clock": "maker",
}  # fmt: skip
"""Kind of work -> role of its creator, which is also the name of the relation."""


# --- paragraphs ------------------------------------------------------------------------------------------------------

PARAGRAPHS: dict[str, tuple[str, ...]] = {
    "person": (
        "{x} was a {craft} from {birthplace}, born in {birth year}. The teacher of {x} was {teacher}.",
        "{x}, born in {birth year}, was a {craft} who learned from {teacher}. {x} came from {birthplace}.",
        "Born in {birthplace} in {birth year}, {x} became a {craft}. {x} was taught by {teacher}.",
        "{x} learned from {teacher} and became a {craft}. {x} was born in {birthplace} in {birth year}.",
    ),
    "work": (
        "{x} is a {kind} by {maker}. It appeared in {year} and was first shown in {stage}.",
        "{maker} is the {role} of {x}, a {kind} of {year}. It was first shown in {stage}.",
        "{x}, a {kind} of {year}, was first shown in {stage}. Its {role} is {maker}.",
    ),
    "organisation": (
        "{x} has its seat in {seat}. It was founded by {founder} in {year}.",
        "{founder} founded {x} in {year}. It has its seat in {seat}.",
        "In {year} {founder} founded {x}, which has its seat in {seat}.",
    ),
    "event": (
        "{x} is held in {site} every {season}. It was founded by {founder}.",
        "Every {season} {x} is held in {site}. Its founder is {founder}.",
        "{founder} founded {x}, which is held in {site} every {season}.",
    ),
    "town": (
        "{x} is a town in {land}. {x} lies on the river {river} and is known for its {product}.",
        "{x}, a town on the river {river}, is known for its {product}. {x} lies in {land}.",
        "The town of {x} in {land} lies on the river {river}. {x} makes good {product}.",
    ),
    "river": (
        "The {x} is a river. The {x} flows into the {sea}.",
        "The river {x} runs to the {sea}. The {x} is deep and slow.",
    ),
    "land": (
        "{x} is a land in the {side}. The capital of {x} is {capital}.",
        "The land of {x} lies in the {side}. {capital} is the capital of {x}.",
    ),
}


# --- relations and ways to ask ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Relation:
    """A fact that a paragraph states about its subject.

    ``of`` and ``to`` are kinds of entries; ``to`` None: the value is not an entry. ``noun`` denotes the value inside a
    longer question, ``asks`` are questions for it; the ``hard_`` variants are paraphrases.
    """

    name: str
    of: str
    to: str | None
    noun: str
    hard_nouns: tuple[str, ...]
    asks: tuple[str, ...]
    hard_asks: tuple[str, ...]


RELATIONS: tuple[Relation, ...] = (
    Relation("author", "work", "person", "the author of {x}", ("the person who wrote {x}",),
             ("Who is the author of {x}?", "Who wrote {x}?"), ("By whom was {x} written?",)),
    Relation("composer", "work", "person", "the composer of {x}", ("the person who composed {x}",),
             ("Who is the composer of {x}?", "Who composed {x}?"), ("By whom was {x} composed?",)),
    Relation("maker", "work", "person", "the maker of {x}", ("the person who made {x}",),
             ("Who is the maker of {x}?", "Who made {x}?"), ("By whom was {x} made?",)),
    Relation("stage", "work", "town", "the first stage of {x}", ("the town where {x} was first shown",),
             ("Where was {x} first shown?", "In which town was {x} first shown?"), ("Which town saw {x} first?",)),
    Relation("founder", "organisation", "person", "the founder of {x}", ("the person who founded {x}",),
             ("Who is the founder of {x}?", "Who founded {x}?"), ("By whom was {x} founded?",)),
    Relation("seat", "organisation", "town", "the seat of {x}", ("the town where {x} has its seat",),
             ("Where is the seat of {x}?", "In which town is the seat of {x}?"), ("Which town is the home of {x}?",)),
    Relation("founder", "event", "person", "the founder of {x}", ("the person who founded {x}",),
             ("Who is the founder of {x}?", "Who founded {x}?"), ("By whom was {x} founded?",)),
    Relation("site", "event", "town", "the site of {x}", ("the town where {x} is held",),
             ("Where is {x} held?", "In which town is {x} held?"), ("Which town holds {x}?",)),
    Relation("birthplace", "person", "town", "the birthplace of {x}", ("the town where {x} was born",),
             ("Where was {x} born?", "In which town was {x} born?"),
             ("Which town does {x} come from?", "Name the home town of {x}.")),
    Relation("teacher", "person", "person", "the teacher of {x}", ("the person who taught {x}",),
             ("Who was the teacher of {x}?", "Who taught {x}?"), ("From whom did {x} learn?",)),
    Relation("birth year", "person", None, "the birth year of {x}", (),
             ("When was {x} born?", "In which year was {x} born?"), ("What is the birth year of {x}?",)),
    Relation("craft", "person", None, "the craft of {x}", (),
             ("What was the craft of {x}?", "What was {x} by craft?"), ("What did {x} do for a living?",)),
    Relation("land", "town", "land", "the land of {x}", ("the land where {x} lies",),
             ("In which land is {x}?", "In which land does {x} lie?"), ("To which land does {x} belong?",)),
    Relation("river", "town", "river", "the river of {x}", ("the river that runs through {x}",),
             ("On which river is {x}?", "On which river does {x} lie?"), ("Which river runs through {x}?",)),
    Relation("product", "town", None, "the product of {x}", (),
             ("What is {x} known for?", "For which product is {x} known?"), ("What does {x} make well?",)),
    Relation("sea", "river", None, "the sea of {x}", (),
             ("Into which sea does {x} flow?", "To which sea does {x} run?"), ("In which sea does {x} end?",)),
    Relation("capital", "land", "town", "the capital of {x}", ("the town from which {x} is ruled",),
             ("What is the capital of {x}?", "Which town is the capital of {x}?"), ("From where is {x} ruled?",)),
    Relation("side", "land", None, "the side of {x}", (),
             ("On which side does {x} lie?", "On which side is {x}?"), ("Where does one find {x}?",)),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """A question that compares two entries of one kind by ``fact``.

    ``pick``: the answer is the entry that comes first, or last; None: whether both facts are equal, yes or no.
    """

    of: str
    fact: str
    pick: str | None
    asks: tuple[str, ...]
    hard_asks: tuple[str, ...]


COMPARISONS: tuple[Comparison, ...] = (
    Comparison("person", "birth year", "first", ("Who was born first, {a} or {b}?", "Who is older, {a} or {b}?"),
               ("Of {a} and {b}, who was born before the other?",)),
    Comparison("person", "birth year", "last", ("Who was born last, {a} or {b}?", "Who is younger, {a} or {b}?"),
               ("Of {a} and {b}, who was born after the other?",)),
    Comparison("work", "year", "first", ("Which appeared first, {a} or {b}?", "Which is older, {a} or {b}?"),
               ("Of {a} and {b}, which appeared before the other?",)),
    Comparison("organisation", "year", "first", ("Which was founded first, {a} or {b}?", "Which is older, {a} or {b}?"),
               ("Of {a} and {b}, which was founded before the other?",)),
    Comparison("person", "birthplace", None,
               ("Were {a} and {b} born in the same town?", "Are {a} and {b} from the same town?"),
               ("Do {a} and {b} share a birthplace?",)),
    Comparison("person", "craft", None, ("Did {a} and {b} have the same craft?", "Were {a} and {b} of the same craft?"),
               ("Do {a} and {b} share a craft?",)),
    Comparison("work", "stage", None, ("Were {a} and {b} first shown in the same town?",),
               ("Do {a} and {b} share a first stage?",)),
    Comparison("organisation", "seat", None, ("Do {a} and {b} have their seat in the same town?",),
               ("Do {a} and {b} share a seat?",)),
)  # fmt: skip

NOUN_OF_FACT = {
    "birth year": "the birth year of {x}",
    "year": "the year of {x}",
    "birthplace": "the birthplace of {x}",
    "craft": "the craft of {x}",
    "stage": "the first stage of {x}",
    "seat": "the seat of {x}",
}


# --- the expert's thoughts -------------------------------------------------------------------------------------------

FIRST_THOUGHTS = ("I need {noun}.", "First I look for {noun}.", "I search for {noun}.")
NEXT_THOUGHTS = ("{told}. Now I need {noun}.", "{told}. Next I look for {noun}.")
LAST_THOUGHTS = ("{told}.", "{told}. That is the answer.")
PICK_THOUGHTS = ("{told}. {early} is before {late}.", "{told}. So {early} comes before {late}.")
SAME_THOUGHTS = ("{told}. They are the same.", "{told}. So they are the same.")
OTHER_THOUGHTS = ("{told}. They are not the same.", "{told}. So they are not the same.")

"""The templates of the arithmetic generator: scenes, as data.

A scene is a short story: an *opening* sets the running value, *moves* change it, and a *closing* asks the question (and
may change it once more). Each piece is a sentence with the operations it requires::

    Piece("{n} packs {k1} bags of {m1} {x}.", "k1 * m1 ; v + s")

Placeholders: ``{n}`` and ``{f}`` are two names, ``{x}`` the things counted. Numbers are named after their range in
``Difficulty``: ``{k1}`` a factor, ``{m1}`` a multiplicand, ``{t1}`` a term. In the operations, ``v`` is the value
before the piece and ``s`` the result of the piece's previous operation. An opening with a bare number adds no step.
"""

from dataclasses import dataclass

NAMES = (
    "Mia", "Tom", "Ana", "Leo", "Zoe", "Max", "Ida", "Ben", "Eva", "Sam", "Lena", "Omar", "Ruth", "Ivan", "Nora",
    "Hugo", "Asha", "Kofi", "Yuki", "Lars", "Maya", "Theo", "Rosa", "Finn", "Alba", "Emil", "Tara", "Noel", "Vera",
    "Raj", "Lucia", "Karim",
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """One sentence, its operations (``left op right`` separated by ``;``, or a bare number) and the unit counted."""

    text: str
    operations: str
    unit: str = "{x}"

    @property
    def steps(self) -> int:
        """The number of operations that the sentence adds to the solution."""
        return self.operations.count(";") + 1 if " " in self.operations else 0


@dataclass(frozen=True)
class Scene:
    """A story: the things that may be counted in it, and its pieces."""

    things: tuple[str, ...]
    openings: tuple[Piece, ...]
    moves: tuple[Piece, ...]
    closings: tuple[Piece, ...]


SCENES = (
    Scene(  # a collection
        things=("marbles", "stickers", "cards", "shells", "coins", "stamps", "beads", "buttons"),
        openings=(
            Piece("{n} has {t1} {x}.", "t1"),
            Piece("{n} has {k1} boxes with {m1} {x} in each.", "k1 * m1"),
            Piece("{n} has {t1} red {x} and {t2} blue {x}.", "t1 + t2"),
            Piece("{n} keeps {m1} {x} on each of {k1} shelves.", "m1 * k1"),
        ),
        moves=(
            Piece("{n} finds {t1} more.", "v + t1"),
            Piece("{f} gives {n} {t1} {x}.", "v + t1"),
            Piece("{n} loses {t1} of them.", "v - t1"),
            Piece("{n} gives {t1} {x} to {f}.", "v - t1"),
            Piece("{n} buys {k1} packs of {m1} {x}.", "k1 * m1 ; v + s"),
            Piece("{n} gives {m1} {x} to each of {k1} friends.", "m1 * k1 ; v - s"),
        ),
        closings=(
            Piece("How many {x} does {n} have now?", ""),
            Piece("{f} has {k1} times as many. How many {x} does {f} have?", "v * k1"),
            Piece("{f} has {t1} more than {n}. How many {x} does {f} have?", "v + t1"),
            Piece("{n} shares them equally among {k1} children. How many {x} does each child get?", "v / k1"),
        ),
    ),
    Scene(  # a bakery
        things=("rolls", "muffins", "cookies", "pies", "bagels", "buns", "cakes"),
        openings=(
            Piece("{n} bakes {t1} {x}.", "t1"),
            Piece("{n} bakes {k1} trays of {m1} {x}.", "k1 * m1"),
            Piece("{n} bakes {t1} {x} in the morning and {t2} in the afternoon.", "t1 + t2"),
            Piece("{n} bakes {m1} {x} an hour for {k1} hours.", "m1 * k1"),
        ),
        moves=(
            Piece("{n} sells {t1} of them.", "v - t1"),
            Piece("{t1} {x} are burnt and thrown away.", "v - t1"),
            Piece("{f} brings {t1} more.", "v + t1"),
            Piece("{f} brings {k1} baskets of {m1} {x}.", "k1 * m1 ; v + s"),
            Piece("{k1} guests eat {m1} {x} each.", "k1 * m1 ; v - s"),
        ),
        closings=(
            Piece("How many {x} are left?", ""),
            Piece("Each one costs {k1} dollars. How many dollars are the {x} worth?", "v * k1", "dollars"),
            Piece("{n} packs them in boxes of {k1}. How many boxes does {n} fill?", "v / k1", "boxes"),
            Piece("{f} baked {t1} more than that. How many {x} did {f} bake?", "v + t1"),
        ),
    ),
    Scene(  # money
        things=("dollars", "euros", "pounds"),
        openings=(
            Piece("{n} saved {t1} {x}.", "t1"),
            Piece("{n} works {k1} hours for {m1} {x} an hour.", "k1 * m1"),
            Piece("{n} earns {m1} {x} a day for {k1} days.", "m1 * k1"),
            Piece("{n} earns {t1} {x} on Monday and {t2} on Tuesday.", "t1 + t2"),
        ),
        moves=(
            Piece("{n} spends {t1} on a coat.", "v - t1"),
            Piece("{n} pays {t1} for food.", "v - t1"),
            Piece("{f} gives {n} {t1} {x}.", "v + t1"),
            Piece("{n} buys {k1} books for {m1} {x} each.", "k1 * m1 ; v - s"),
            Piece("{n} sells {k1} pictures for {m1} {x} each.", "k1 * m1 ; v + s"),
        ),
        closings=(
            Piece("How many {x} does {n} have left?", ""),
            Piece("{f} has {k1} times as much. How many {x} does {f} have?", "v * k1"),
            Piece("{f} has {t1} {x}. How many {x} do they have together?", "v + t1"),
            Piece("{n} saves the same every month. How many {x} is that in {k1} months?", "v * k1"),
        ),
    ),
    Scene(  # a farm
        things=("apples", "pears", "plums", "lemons", "melons", "peaches", "eggs"),
        openings=(
            Piece("{n} picks {t1} {x}.", "t1"),
            Piece("A farm has {k1} rows of trees, and {n} picks {m1} {x} from each row.", "k1 * m1"),
            Piece("{n} picks {t1} {x} and {f} picks {t2}.", "t1 + t2"),
        ),
        moves=(
            Piece("{t1} of them are rotten.", "v - t1"),
            Piece("{n} eats {t1}.", "v - t1"),
            Piece("{f} picks {t1} more.", "v + t1"),
            Piece("{n} fills {k1} crates with {m1} {x} each and sells them.", "k1 * m1 ; v - s"),
            Piece("{f} brings {k1} bags with {m1} {x} in each.", "k1 * m1 ; v + s"),
        ),
        closings=(
            Piece("How many {x} are left?", ""),
            Piece("Each one weighs {k1} ounces. How many ounces do the {x} weigh?", "v * k1", "ounces"),
            Piece("They are shared equally by {k1} families. How many {x} does each family get?", "v / k1"),
            Piece("{f} sells {t1} of them. How many {x} remain?", "v - t1"),
        ),
    ),
    Scene(  # a journey
        things=("miles", "kilometers"),
        openings=(
            Piece("{n} drives {t1} {x}.", "t1"),
            Piece("{n} rides {k1} hours at {m1} {x} an hour.", "k1 * m1"),
            Piece("{n} walks {m1} {x} a day for {k1} days.", "m1 * k1"),
            Piece("{n} drives {t1} {x} before lunch and {t2} after it.", "t1 + t2"),
        ),
        moves=(
            Piece("Then {n} drives {t1} {x} more.", "v + t1"),
            Piece("Then {n} rides {k1} hours at {m1} {x} an hour.", "k1 * m1 ; v + s"),
            Piece("{n} turns and goes {t1} {x} back.", "v - t1"),
            Piece("A train takes {n} {t1} {x} further.", "v + t1"),
        ),
        closings=(
            Piece("How many {x} from the start is {n} now?", ""),
            Piece("{f} goes {k1} times as far. How many {x} does {f} go?", "v * k1"),
            Piece("{f} goes {t1} {x} less. How many {x} does {f} go?", "v - t1"),
        ),
    ),
    Scene(  # reading and other work counted in pieces
        things=("pages", "letters", "forms", "puzzles"),
        openings=(
            Piece("{n} finishes {t1} {x}.", "t1"),
            Piece("{n} finishes {m1} {x} a day for {k1} days.", "m1 * k1"),
            Piece("{n} finishes {t1} {x} on Friday and {t2} on Saturday.", "t1 + t2"),
            Piece("{k1} people finish {m1} {x} each.", "k1 * m1"),
        ),
        moves=(
            Piece("{f} adds {t1} {x}.", "v + t1"),
            Piece("{t1} {x} have to be done again and do not count.", "v - t1"),
            Piece("For {k1} more days {n} finishes {m1} {x} a day.", "k1 * m1 ; v + s"),
            Piece("On Sunday {n} finishes {t1} more.", "v + t1"),
        ),
        closings=(
            Piece("How many {x} are finished?", ""),
            Piece("{f} finishes {k1} times as many. How many {x} does {f} finish?", "v * k1"),
            Piece("There are {t1} {x} more to do. How many {x} are there in all?", "v + t1"),
            Piece("The work is checked by {k1} people in equal parts. How many {x} does each check?", "v / k1"),
        ),
    ),
    Scene(  # a school trip
        things=("children", "visitors", "students", "guests"),
        openings=(
            Piece("{t1} {x} wait at a station.", "t1"),
            Piece("{k1} buses bring {m1} {x} each.", "k1 * m1"),
            Piece("A hall has {k1} rows with {m1} {x} in each.", "k1 * m1"),
            Piece("{t1} {x} come by train and {t2} on foot.", "t1 + t2"),
        ),
        moves=(
            Piece("{t1} more arrive.", "v + t1"),
            Piece("{t1} of them go home.", "v - t1"),
            Piece("{k1} cars with {m1} {x} each arrive.", "k1 * m1 ; v + s"),
            Piece("{k1} vans take {m1} {x} each away.", "k1 * m1 ; v - s"),
        ),
        closings=(
            Piece("How many {x} are there now?", ""),
            Piece("Each of them pays {k1} dollars. How many dollars is that?", "v * k1", "dollars"),
            Piece("They form {k1} equal groups. How many {x} are in each group?", "v / k1"),
            Piece("Tomorrow {t1} fewer will come. How many {x} will come tomorrow?", "v - t1"),
        ),
    ),
)

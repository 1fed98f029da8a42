"""Generates the world of the embedded encyclopedia from a seed: people, works, organisations, events and places.

An entry and its paragraph::

    Entry("Mara Venn", "person", "test", {"birthplace": "Tolma", "craft": "painter", "birth year": "1712",
                                          "teacher": "Ilo Frost"})
    Mara Venn was a painter from Tolma, born in 1712. The teacher of Mara Venn was Ilo Frost.

People, works, organisations and events belong to one split each and refer only to others of the same split. Towns,
rivers and lands are common to all splits, like countries in a real encyclopedia.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from random import Random

from selfimprove.envs.qa import encyclopedia_words as words
from selfimprove.envs.qa.base import Paragraph, Split

SHARES: dict[Split, float] = {"train": 0.6, "dev": 0.15, "test": 0.25}
"""Each split's share of the people, works, organisations and events."""

YEARS = (1501, 1899)


@dataclass(frozen=True)
class Entry:
    """The subject of a paragraph. ``facts``: relation -> title of another entry, or a word. ``split`` None: common."""

    title: str
    kind: str
    split: Split | None
    facts: dict[str, str] = field(hash=False)


@dataclass(frozen=True)
class FictionalWorld:
    """All entries by title, including distractors, the paragraphs in corpus order, and the entries of each split."""

    entries: dict[str, Entry]
    paragraphs: tuple[Paragraph, ...]
    asked: dict[Split, tuple[Entry, ...]]


def most_people() -> int:
    """The maximum number of people, including distractors, for which there are enough names and titles."""
    return len(words.ADJECTIVES) * len(words.NOUNS) * 3 // 4


def build_world(people: int, distractors: int, draws: Random) -> FictionalWorld:
    """A world of ``people`` people, as many works, and up to a third as many organisations and as many events.

    ``distractors``: the number of additional people, with their works, whose names consist of the same words and about
    whom there are no questions.
    """
    towns = [stem + end for stem, end in product(words.TOWN_STEMS, words.TOWN_ENDS)]
    entries = [*_places(draws, towns)]
    total = people + distractors
    names = _names(draws, words.FIRST_NAMES, words.LAST_NAMES, total)
    titles = [f"The {name}" for name in _names(draws, words.ADJECTIVES, words.NOUNS, total)]
    clubs = _names(draws, words.NOUNS, words.ORGANISATIONS, total // 3)
    fairs = _names(draws, words.ADJECTIVES, words.EVENTS, total // 3)
    asked: dict[Split, tuple[Entry, ...]] = {}
    start = 0.0
    for split, share in SHARES.items():
        part = (start, start + share)
        mine = [_share(pool[: len(pool) * people // total], part) for pool in (names, titles, clubs, fairs)]
        asked[split] = tuple(_made(draws, split, towns, *mine))
        entries += asked[split]
        start += share
    rest = [pool[len(pool) * people // total :] for pool in (names, titles, clubs, fairs)]
    if distractors > 1:
        entries += _made(draws, None, towns, *rest)
    draws.shuffle(entries)
    paragraphs = tuple(Paragraph(title=entry.title, text=_sentence(draws, entry)) for entry in entries)
    return FictionalWorld({entry.title: entry for entry in entries}, paragraphs, asked)


def _names(draws: Random, firsts: Sequence[str], lasts: Sequence[str], count: int) -> list[str]:
    """``count`` distinct names of two words, or all if there are fewer."""
    names = [f"{first} {last}" for first, last in product(firsts, lasts)]
    return draws.sample(names, min(count, len(names)))


def _share(pool: Sequence[str], part: tuple[float, float]) -> list[str]:
    return list(pool[round(part[0] * len(pool)) : round(part[1] * len(pool))])


def _places(draws: Random, towns: Sequence[str]) -> Iterator[Entry]:
    for town in towns:
        facts = {
            "land": draws.choice(words.LANDS),
            "river": draws.choice(words.RIVERS),
            "product": draws.choice(words.PRODUCTS),
        }
        yield Entry(town, "town", None, facts)
    for river in words.RIVERS:
        yield Entry(river, "river", None, {"sea": draws.choice(words.SEAS)})
    for land, capital in zip(words.LANDS, draws.sample(list(towns), len(words.LANDS)), strict=True):
        yield Entry(land, "land", None, {"side": draws.choice(words.SIDES), "capital": capital})


def _made(
    draws: Random,
    split: Split | None,
    towns: Sequence[str],
    names: Sequence[str],
    titles: Sequence[str],
    clubs: Sequence[str],
    fairs: Sequence[str],
) -> Iterator[Entry]:
    """People, and the works, organisations and events that they created."""
    for place, name in enumerate(names):
        # The offset is never 0, so nobody is their own teacher.
        teacher = names[(place + draws.randrange(1, len(names))) % len(names)]
        facts = {
            "birthplace": draws.choice(towns),
            "craft": draws.choice(words.CRAFTS),
            "birth year": str(draws.randint(*YEARS)),
            "teacher": teacher,
        }
        yield Entry(name, "person", split, facts)
    for title in titles:
        kind, role = draws.choice(list(words.WORKS.items()))
        facts = {"kind": kind, "stage": draws.choice(towns), "year": str(draws.randint(*YEARS))}
        yield Entry(title, "work", split, {**facts, role: draws.choice(names)})
    for club in clubs:
        facts = {"seat": draws.choice(towns), "year": str(draws.randint(*YEARS)), "founder": draws.choice(names)}
        yield Entry(club, "organisation", split, facts)
    for fair in fairs:
        facts = {"site": draws.choice(towns), "season": draws.choice(words.SEASONS), "founder": draws.choice(names)}
        yield Entry(fair, "event", split, facts)


def _sentence(draws: Random, entry: Entry) -> str:
    facts = dict(entry.facts)
    if entry.kind == "work":
        facts["role"] = words.WORKS[facts["kind"]]
        facts["maker"] = facts[facts["role"]]
    text = draws.choice(words.PARAGRAPHS[entry.kind]).format_map({"x": named(entry), **facts})
    return text[0].upper() + text[1:]


def named(entry: Entry) -> str:
    """The entry's name in a sentence: organisations and events have an article."""
    return f"the {entry.title}" if entry.kind in ("organisation", "event") else entry.title

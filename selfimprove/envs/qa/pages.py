"""Text of encyclopedias for pretraining: paragraphs of worlds that no method searches, and questions about them.

A page::

    Mara Venn was a painter from Tolma, born in 1712. The teacher of Mara Venn was Ilo Frost.
    The Silver Gate is a novel by Mara Venn. It appeared in 1745 and was first shown in Kesby.
    Who wrote The Silver Gate?                              The author of The Silver Gate is Mara Venn.
    search[Mara Venn]                                       Mara Venn was a painter from Tolma, born in 1712. …
    Which is before, 1712 or 1745?                          1712 is before 1745.

Pages are from many worlds with different facts, so that the answers must be read from the page. These questions need
one paragraph; a second kind of page contains complete searches in other worlds, from the question to the answer.
"""

from functools import lru_cache
from random import Random

from selfimprove.core.seeds import key_bits, rng
from selfimprove.envs.passages import Passage
from selfimprove.envs.qa import encyclopedia_words as words
from selfimprove.envs.qa.encyclopedia import Encyclopedia, EncyclopediaParams, make_encyclopedia
from selfimprove.envs.qa.encyclopedia_world import YEARS, FictionalWorld, build_world, named

_WORLDS = 400
_PEOPLE = 60


def paragraphs(draws: Random) -> list[Passage]:
    """Two to five paragraphs, and five to nine questions about them."""
    world = _world(draws.randrange(_WORLDS))
    shown = draws.sample(world.paragraphs, draws.randint(2, 5))
    page = [Passage(paragraph.text) for paragraph in shown]
    for _ in range(draws.randint(5, 9)):
        paragraph = draws.choice(shown)
        entry = world.entries[paragraph.title]
        relation = draws.choice([r for r in words.RELATIONS if r.of == entry.kind and r.name in entry.facts])
        noun, fact = relation.noun.format(x=named(entry)), entry.facts[relation.name]
        asked = _sentence(draws.choice((*relation.asks, *relation.hard_asks)).format(x=named(entry)))
        kind = draws.random()
        if kind < 0.45:
            page.append(Passage(asked, f"{_sentence(noun)} is {fact}.", "lookup"))
        elif kind < 0.75:
            page.append(Passage(asked, fact, "lookup"))
        elif kind < 0.85:
            page.append(Passage(f"search[{entry.title}]", paragraph.text, "copying"))
        else:
            page.append(_years(draws))
    return page


def searches(draws: Random) -> list[Passage]:
    """One or two questions that need one to three paragraphs, with the expert's searches and their results."""
    encyclopedia = _encyclopedia(draws.randrange(_WORLDS))
    found = {paragraph.title: paragraph.text for paragraph in encyclopedia.paragraphs}
    page = []
    for quest in draws.sample(encyclopedia.splits["train"], draws.randint(1, 2)):
        told = quest.question.question
        for number, lookup in enumerate(quest.lookups):
            said = f"Thought: {lookup.thought}\nAction: search[{lookup.query}]"
            page.append(Passage(told, said, "reading" if number else "solving"))
            told = found[lookup.title]
        page.append(Passage(told, f"Thought: {quest.conclusion}\nAction: finish[{quest.question.gold}]"))
    return page


@lru_cache(maxsize=_WORLDS)
def _encyclopedia(number: int) -> Encyclopedia:
    params = EncyclopediaParams(people=_PEOPLE, distractors=0, hops={1: 0.2, 2: 0.5, 3: 0.3}, comparisons=0.35)
    return make_encyclopedia(params, {"train": 40}, seed=key_bits("encyclopedia pages", number))


@lru_cache(maxsize=_WORLDS)
def _world(number: int) -> FictionalWorld:
    return build_world(_PEOPLE, 0, rng("encyclopedia pages", number))


def _years(draws: Random) -> Passage:
    early, late = sorted(draws.sample(range(*YEARS), 2))
    first, second = draws.sample((early, late), 2)
    return Passage(f"Which is before, {first} or {second}?", f"{early} is before {late}.", "reading")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]

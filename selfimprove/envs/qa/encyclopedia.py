"""The embedded encyclopedia: a fictional world to search, and questions that need one to three paragraphs.

Two questions about a default world, with the paragraphs that answer the first::

    In which town was the author of The Silver Gate born?                                       (bridge, two hops)
        The Silver Gate is a novel by Mara Venn. It appeared in 1745 and was first shown in Kesby.
        Mara Venn was a painter from Tolma, born in 1712. The teacher of Mara Venn was Ilo Frost.
        -> Tolma
    Who was born first, Mara Venn or Ilo Frost?                                                 (comparison)
        -> Ilo Frost

Every relation has one value, so answers are unique. Splits are disjoint by content: people, works, organisations and
events belong to one split each. Questions are scored like HotpotQA. A question's scripted expert looks up each
paragraph in turn by its title; the wording of its thoughts is drawn by the question's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from pydantic import Field, field_validator, model_validator

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section
from selfimprove.core.seeds import rng
from selfimprove.core.sums import float_sum
from selfimprove.envs.qa import encyclopedia_words as words
from selfimprove.envs.qa.base import Paragraph, Question, Split, content_id
from selfimprove.envs.qa.encyclopedia_words import Comparison, Relation
from selfimprove.envs.qa.encyclopedia_world import SHARES, Entry, FictionalWorld, build_world, most_people, named
from selfimprove.envs.qa.experts import Lookup, Quest

_PATIENCE = 500  # draws for one question before the world counts as exhausted


class EncyclopediaParams(Section):
    """The size of the world and the difficulty of its questions."""

    people: int = Field(
        default=900,
        ge=60,
        le=1_000_000,
        description="number of people, and of works; 60 % of them are in the training split",
    )
    distractors: int = Field(
        default=100, ge=0, le=1_000_000, description="number of people (and of works) that no question is about"
    )
    hops: dict[int, float] = Field(
        default={1: 0.2, 2: 0.6, 3: 0.2}, description="share of the bridge questions by number of paragraphs needed"
    )
    comparisons: float = Field(default=0.25, ge=0, le=1, description="share of questions that compare two entries")
    hard_wordings: float = Field(default=0.2, ge=0, le=1, description="share of questions with less common wording")

    @field_validator("hops")
    @classmethod
    def _hops_known(cls, hops: dict[int, float]) -> dict[int, float]:
        if not hops or set(hops) - {1, 2, 3} or min(hops.values()) < 0 or float_sum(hops.values()) <= 0:
            raise ValueError("hops: the keys must be among 1, 2 and 3, and the shares at least 0 with a sum above 0")
        return hops

    @model_validator(mode="after")
    def _names_suffice(self) -> EncyclopediaParams:
        if self.people + self.distractors > most_people():
            raise ValueError(f"people + distractors must be at most {most_people()}; lower one")
        return self


@dataclass(frozen=True)
class Encyclopedia:
    """The corpus, and the splits' questions with their scripted experts' plans.

    ``names``: the entries' titles and the values of all facts, i.e. every possible answer except yes and no.
    """

    paragraphs: tuple[Paragraph, ...]
    splits: dict[Split, tuple[Quest, ...]]
    names: tuple[str, ...]


def make_encyclopedia(params: EncyclopediaParams, counts: Mapping[Split, int], *, seed: int) -> Encyclopedia:
    """A world and ``counts`` questions about it; a deterministic function of the arguments.

    The questions of a split are drawn one after the other, so a smaller count yields a prefix.

    Raises:
        UserError: the world is too small for that many distinct questions.
    """
    world = build_world(params.people, params.distractors, rng("encyclopedia", seed))
    splits: dict[Split, tuple[Quest, ...]] = {}
    for split in SHARES:
        writer = _Writer(world, params, split, rng("encyclopedia", seed, split))
        splits[split] = tuple(writer.write(counts.get(split, 0)))
    names = {word for entry in world.entries.values() for word in (entry.title, *entry.facts.values())}
    return Encyclopedia(world.paragraphs, splits, tuple(sorted(names)))


class _Writer:
    """Draws the questions of one split."""

    def __init__(self, world: FictionalWorld, params: EncyclopediaParams, split: Split, draws: Random) -> None:
        self._world, self._params, self._split, self._draws = world, params, split, draws
        self._of: dict[str, list[Entry]] = {}
        for entry in world.asked[split]:
            self._of.setdefault(entry.kind, []).append(entry)
        self._paths = _paths()

    def write(self, count: int) -> list[Quest]:
        """``count`` questions with distinct texts."""
        quests: dict[str, Quest] = {}
        shares = self._params.hops
        for _ in range(count):
            # The kind is fixed before the attempts, so that kinds that fail more often do not become rarer.
            compares = self._draws.random() < self._params.comparisons
            hops = self._draws.choices(list(shares), weights=list(shares.values()))[0]
            for _ in range(_PATIENCE):
                quest = self._comparison() if compares else self._bridge(hops)
                if quest is not None and quest.question.question not in quests:
                    quests[quest.question.question] = quest
                    break
            else:
                raise UserError(
                    f"the encyclopedia has {len(quests)} questions for the {self._split} split, but {count} are "
                    "requested; raise people or request fewer."
                )
        return list(quests.values())

    def _bridge(self, hops: int) -> Quest | None:
        """A question along a chain of relations: it names the first entry, and each following one must be found."""
        path = self._draws.choice(self._paths[hops])
        entry = self._draws.choice(self._of[path[0].of])
        chain, subject = [entry], named(entry)
        hard = self._draws.random() < self._params.hard_wordings
        for number, relation in enumerate(path):
            if relation.name not in chain[-1].facts:  # a novel has an author but no composer
                return None
            found = chain[-1].facts[relation.name]
            if number + 1 < len(path):
                chain.append(self._world.entries[found])
                nouns = relation.hard_nouns if hard and relation.hard_nouns else (relation.noun,)
                subject = self._draws.choice(nouns).format(x=subject)
        if found in [link.title for link in chain]:
            return None  # the capital of the land of its own capital
        asks = path[-1].hard_asks if hard else path[-1].asks
        text = self._draws.choice(asks).format(x=subject)
        question = Question(
            id=content_id("encyclopedia", self._split, text),
            task="encyclopedia",
            question=text[0].upper() + text[1:],
            gold=found,
            titles=[link.title for link in chain],
            kind="bridge",
        )
        return _bridge_quest(question, chain, path)

    def _comparison(self) -> Quest | None:
        """A question about two entries of one kind."""
        comparison = self._draws.choice(words.COMPARISONS)
        pool = self._of[comparison.of]
        a, b = self._draws.sample(pool, 2)
        if comparison.pick is None and self._draws.random() < 0.5:  # equal facts are rare, so choose among such entries
            fact = a.facts[comparison.fact]
            alike = [entry for entry in pool if entry is not a and entry.facts[comparison.fact] == fact]
            if not alike:
                return None
            b = self._draws.choice(alike)
        fact_a, fact_b = a.facts[comparison.fact], b.facts[comparison.fact]
        if comparison.pick is None:
            gold = "yes" if fact_a == fact_b else "no"
        elif fact_a == fact_b:
            return None
        else:
            gold = (a if (fact_a < fact_b) == (comparison.pick == "first") else b).title
        hard = self._draws.random() < self._params.hard_wordings
        text = self._draws.choice(comparison.hard_asks if hard else comparison.asks).format(a=named(a), b=named(b))
        question = Question(
            id=content_id("encyclopedia", self._split, text),
            task="encyclopedia",
            question=text,
            gold=gold,
            titles=[a.title, b.title],
            kind="comparison",
        )
        return _comparison_quest(question, a, b, comparison)


def _paths() -> dict[int, list[tuple[Relation, ...]]]:
    """Chains of one, two and three relations that start at an entry of a split."""
    starts = ("person", "work", "organisation", "event")
    paths: dict[int, list[tuple[Relation, ...]]] = {1: [(r,) for r in words.RELATIONS if r.of in starts]}
    for hops in (2, 3):
        paths[hops] = [(*path, r) for path in paths[hops - 1] for r in words.RELATIONS if r.of == path[-1].to]
    return paths


# --- the scripted expert's plans -------------------------------------------------------------------------------------


def _bridge_quest(question: Question, chain: list[Entry], path: tuple[Relation, ...]) -> Quest:
    draws = rng("encyclopedia expert", question.id)
    lookups = []
    told = ""
    for entry, relation in zip(chain, path, strict=True):
        noun = relation.noun.format(x=named(entry))
        thoughts = words.NEXT_THOUGHTS if told else words.FIRST_THOUGHTS
        lookups.append(Lookup(draws.choice(thoughts).format(noun=noun, told=told), entry.title, entry.title))
        told = _tell(noun, entry.facts[relation.name])
    return Quest(question, tuple(lookups), draws.choice(words.LAST_THOUGHTS).format(told=told))


def _comparison_quest(question: Question, a: Entry, b: Entry, comparison: Comparison) -> Quest:
    draws = rng("encyclopedia expert", question.id)
    nouns = [words.NOUN_OF_FACT[comparison.fact].format(x=named(entry)) for entry in (a, b)]
    facts = [entry.facts[comparison.fact] for entry in (a, b)]
    told = [_tell(noun, fact) for noun, fact in zip(nouns, facts, strict=True)]
    first = draws.choice(words.FIRST_THOUGHTS).format(noun=nouns[0])
    second = draws.choice(words.NEXT_THOUGHTS).format(told=told[0], noun=nouns[1])
    if comparison.pick is None:
        thoughts = words.SAME_THOUGHTS if facts[0] == facts[1] else words.OTHER_THOUGHTS
        conclusion = draws.choice(thoughts).format(told=told[1])
    else:
        early, late = sorted(facts)
        conclusion = draws.choice(words.PICK_THOUGHTS).format(told=told[1], early=early, late=late)
    lookups = (Lookup(first, a.title, a.title), Lookup(second, b.title, b.title))
    return Quest(question, lookups, conclusion)


def _tell(noun: str, fact: str) -> str:
    told = f"{noun} is {fact}"
    return told[0].upper() + told[1:]

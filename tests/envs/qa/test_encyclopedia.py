import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import combinations, product
from typing import Any

import pytest
from pydantic import ValidationError

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.qa import encyclopedia_words as words
from selfimprove.envs.qa.base import duplicates
from selfimprove.envs.qa.datasets import score
from selfimprove.envs.qa.encyclopedia import EncyclopediaParams, make_encyclopedia
from selfimprove.envs.qa.encyclopedia_world import build_world, most_people
from selfimprove.envs.qa.experts import demonstrate
from selfimprove.envs.qa.tools.bm25 import LocalSearch

COUNTS = {"train": 900, "dev": 120, "test": 500}


@pytest.fixture(scope="module")
def world() -> Any:
    return make_encyclopedia(EncyclopediaParams(), COUNTS, seed=17)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def search(world: Any) -> LocalSearch:
    return LocalSearch(world.paragraphs)


def test_the_expert_finds_every_paragraph_and_solves_every_split(world: Any, search: Any) -> None:
    text = {paragraph.title: paragraph.text for paragraph in world.paragraphs}
    assert {split: len(quests) for split, quests in world.splits.items()} == COUNTS
    for quests in world.splits.values():
        for quest in quests:
            expert = demonstrate(quest, search)
            assert score(expert.answer, quest.question).reward == 1
            assert [part.observation for part in expert.rounds[:-1]] == [text[t] for t in quest.question.titles]
            assert expert.source == "scripted"


@pytest.mark.parametrize("params", [{"people": 60, "distractors": 0}, {"people": 700, "distractors": 500}])
@pytest.mark.parametrize("seed", [0, 1])
def test_lookups_find_their_paragraphs_in_small_worlds_and_among_many_distractors(params: Any, seed: int) -> None:
    small = make_encyclopedia(EncyclopediaParams(**params), {"train": 60, "dev": 15, "test": 30}, seed=seed)
    search = LocalSearch(small.paragraphs)
    text = {paragraph.title: paragraph.text for paragraph in small.paragraphs}
    for quest in [quest for quests in small.splits.values() for quest in quests]:
        assert [search(lookup.query) for lookup in quest.lookups] == [text[lookup.title] for lookup in quest.lookups]


def test_a_bridge_answer_is_in_its_last_paragraph_and_a_comparison_names_both_titles(world: Any, search: Any) -> None:
    for quest in world.splits["test"]:
        question = quest.question
        last = search(quest.lookups[-1].query)
        assert last is not None
        if question.kind == "bridge":
            assert question.gold.lower() in last.lower()  # copied from the paragraph
            assert question.gold not in re.findall(r"\w+", question.question)
        else:
            a, b = question.titles
            assert question.gold in ("yes", "no", a, b)
            assert a in question.question
            assert b in question.question


def test_gold_answers_of_comparisons_agree_with_the_facts() -> None:
    world = build_world(300, 0, rng("encyclopedia", 5))
    made = make_encyclopedia(EncyclopediaParams(people=300, distractors=0, comparisons=1), {"test": 200}, seed=5)
    golds: Counter[Any] = Counter()
    for quest in made.splits["test"]:
        question, (a, b) = quest.question, (world.entries[t].facts for t in quest.question.titles)
        if question.gold in ("yes", "no"):
            facts = {"craft": "craft", "born": "birthplace", "from": "birthplace", "birthplace": "birthplace"}
            facts |= {"shown": "stage", "stage?": "stage", "seat": "seat", "seat?": "seat"}
            asked = question.question.replace("birthplace?", "birthplace").replace("craft?", "craft").split()
            fact = next(facts[word] for word in asked if word in facts)
            assert (question.gold == "yes") == (a[fact] == b[fact])
        else:
            fact = "birth year" if "birth year" in a else "year"
            later = any(word in question.question.split() for word in ("last,", "younger,", "after"))
            first, second = question.titles if (a[fact] < b[fact]) != later else question.titles[::-1]
            assert question.gold == first != second
        golds["yes/no" if question.gold in ("yes", "no") else "which"] += 1
        golds[question.gold] += 1
    assert min(golds["yes"], golds["no"], golds["which"]) > 20


@cache
def form(template: str) -> re.Pattern[str]:
    """The texts of a template. A brace is a group; at its second mention, it must be the same words."""
    groups: set[str] = set()

    def group(brace: re.Match[str]) -> str:
        name = brace[1].replace(" ", "_")
        known = name in groups
        groups.add(name)
        return f"(?P={name})" if known else rf"(?P<{name}>[\w ]+?)"

    return re.compile(re.sub(r"\{([\w ]+)\}", group, re.sub(r"[.?]", r"\\\g<0>", template)), re.IGNORECASE)


def read(templates: Iterable[str], text: str) -> list[dict[str, str]]:
    """What a text says in the form of each template that fits."""
    return [found.groupdict() for template in templates if (found := form(template).fullmatch(text))]


def plain(name: str) -> str:
    """A name without its article."""
    return re.sub("^[Tt]he ", "", name)


class Reader:
    """Answers questions from nothing but the texts of the paragraphs."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.known: dict[tuple[str, str, str], set[str]] = {}  # name, kind of entry, relation -> values
        for text in texts:
            ((kind, said),) = [(kind, said) for kind, forms in words.PARAGRAPHS.items() for said in read(forms, text)]
            if "maker" in said:
                role = words.WORKS[said["kind"]]
                assert said.pop("role", role) == role
                said[role] = said.pop("maker")
            name = plain(said.pop("x"))
            for relation, value in said.items():
                self.known.setdefault((name, kind, relation), set()).add(plain(value))

    def values(self, subject: str, kind: str, relation: str) -> set[str]:
        """The values of a relation of all entries of a kind that the subject may denote, by name or by a chain."""
        names = {plain(subject)}
        for link in words.RELATIONS:
            if link.to == kind:
                for said in read((link.noun, *link.hard_nouns), subject):
                    names |= self.values(said["x"], link.of, link.name)
        return {value for name in names for value in self.known.get((name, kind, relation.replace(" ", "_")), ())}

    def answers(self, question: str) -> set[str]:
        """The answers to all readings of a question."""
        found: set[str] = set()
        for relation in words.RELATIONS:
            for said in read((*relation.asks, *relation.hard_asks), question):
                found |= self.values(said["x"], relation.of, relation.name)
        for comparison in words.COMPARISONS:
            for said in read((*comparison.asks, *comparison.hard_asks), question):
                for a, b in product(*(self.values(said[x], comparison.of, comparison.fact) for x in "ab")):
                    first, second = (said["a"], said["b"]) if a < b else (said["b"], said["a"])
                    same = "yes" if a == b else "no"
                    found.add(plain({"first": first, "last": second, None: same}[comparison.pick]))
        return found


def test_the_paragraphs_support_no_answer_but_the_gold_one() -> None:
    params = EncyclopediaParams(people=200, distractors=40, hard_wordings=0.5)
    made = make_encyclopedia(params, {"train": 300, "test": 100}, seed=17)
    reader = Reader(paragraph.text for paragraph in made.paragraphs)
    for quest in (*made.splits["train"], *made.splits["test"]):
        assert reader.answers(quest.question.question) == {plain(quest.question.gold)}, quest.question


def test_splits_are_disjoint_by_question_and_by_entry(world: Any) -> None:
    assert duplicates({split: [q.question for q in quests] for split, quests in world.splits.items()}) == {}
    common = {stem + end for stem in words.TOWN_STEMS for end in words.TOWN_ENDS} | {*words.LANDS, *words.RIVERS}
    entries = {
        split: {title for quest in quests for title in quest.question.titles} - common
        for split, quests in world.splits.items()
    }
    for one, other in combinations(entries, 2):
        assert not entries[one] & entries[other]


def test_a_split_does_not_depend_on_the_sizes_of_the_other_splits(world: Any) -> None:
    fewer = make_encyclopedia(EncyclopediaParams(), {"train": 10, "test": 300}, seed=17)
    assert fewer.paragraphs == world.paragraphs
    assert fewer.splits["test"] == world.splits["test"][:300]
    assert fewer.splits["dev"] == ()
    assert make_encyclopedia(EncyclopediaParams(), {"test": 5}, seed=18).splits["test"] != fewer.splits["test"][:5]


def test_the_world_does_not_depend_on_the_hash_salt() -> None:
    program = """
from selfimprove.envs.qa.encyclopedia import EncyclopediaParams, make_encyclopedia
print(make_encyclopedia(EncyclopediaParams(people=90), {"test": 20}, seed=3))
"""
    printed = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True
        ).stdout
        for salt in ("1", "2")
    }
    assert len(printed) == 1


def test_difficulty_params_set_the_kinds_of_questions() -> None:
    def kinds(**params: Any) -> Counter:
        made = make_encyclopedia(EncyclopediaParams(**params), {"train": 300}, seed=1)
        return Counter((q.question.kind, len(q.lookups)) for q in made.splits["train"])

    assert set(kinds(comparisons=0, hops={3: 1.0})) == {("bridge", 3)}
    assert set(kinds(comparisons=1)) == {("comparison", 2)}
    mixed = kinds(comparisons=0.5, hops={1: 0.5, 2: 0.5})
    assert 120 < mixed["comparison", 2] < 180
    assert 50 < mixed["bridge", 1] < 100

    easy = make_encyclopedia(EncyclopediaParams(hard_wordings=0), {"train": 200}, seed=1)
    hard = make_encyclopedia(EncyclopediaParams(hard_wordings=1), {"train": 200}, seed=1)
    starts = [{q.question.question.split()[0] for q in made.splits["train"]} for made in (easy, hard)]
    assert {"Of", "Name"} <= starts[1] - starts[0]


def test_questions_and_thoughts_vary_in_wording_and_paragraphs_are_short(world: Any, search: Any) -> None:
    quests = world.splits["train"]
    assert len({quest.question.question.split(" ")[0] for quest in quests}) > 8
    assert len({quest.lookups[0].thought.split(" the ")[0] for quest in quests}) == len(words.FIRST_THOUGHTS)
    assert max(len(paragraph.text.split()) for paragraph in world.paragraphs) <= 25
    assert max(len(quest.question.gold.split()) for quest in quests) <= 3
    rounds = {len(demonstrate(quest, search).rounds) for quest in quests}
    assert rounds == {2, 3, 4}
    assert demonstrate(quests[0], search).rounds[-1].action == f"finish[{quests[0].question.gold}]"
    assert "[" not in "".join(paragraph.title + paragraph.text for paragraph in world.paragraphs)


def test_no_word_belongs_to_two_kinds_of_names() -> None:
    towns = {stem + end for stem in words.TOWN_STEMS for end in words.TOWN_ENDS}
    pools = [words.FIRST_NAMES, words.LAST_NAMES, towns, words.LANDS, words.RIVERS, words.ADJECTIVES, words.NOUNS]
    for one, other in combinations([{word.lower() for word in pool} for pool in pools], 2):
        assert not one & other
    assert all(len(set(pool)) == len(pool) for pool in pools)


@pytest.mark.parametrize(
    "params",
    [
        {"hops": {4: 1.0}},
        {"hops": {}},
        {"hops": {1: 0.0}},
        {"hops": {1: -1.0, 2: 1.0}},
        {"people": most_people(), "distractors": 1},
        {"people": 10},
        {"comparisons": 1.5},
    ],
)
def test_params_that_no_world_can_satisfy_are_refused(params: Any) -> None:
    with pytest.raises(ValidationError):
        EncyclopediaParams(**params)


def test_a_world_too_small_for_its_questions_is_reported() -> None:
    with pytest.raises(UserError, match=r"questions for the dev split, but 400 are requested; raise people"):
        make_encyclopedia(
            EncyclopediaParams(people=60, distractors=0, comparisons=0, hops={1: 1.0}), {"dev": 400}, seed=1
        )

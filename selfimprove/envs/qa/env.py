"""The environment of look-up questions: search a corpus, look up words in the paragraph found, answer.

An episode (a question about the embedded encyclopedia, played by the expert)::

    In which town was the author of The Silver Gate born?
    Thought: I need the author of The Silver Gate.
    Action: search[The Silver Gate]
    The Silver Gate is a novel by Mara Venn. It appeared in 1745.
    Thought: Mara Venn wrote it. Now I need the birthplace of Mara Venn.
    Action: search[Mara Venn]
    Mara Venn was a painter from Tolma. She was born in 1712.
    Thought: Mara Venn was born in Tolma.
    Action: finish[Tolma]
    The answer is right.

A search for a title finds that paragraph, any other search the best one by BM25. ``lookup[words]`` returns the next
sentence with these words in the paragraph found last. ``finish[...]`` ends the episode; the reward is that of the
question's task (``datasets.score``).
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Move, Step
from selfimprove.envs.qa.datasets import score
from selfimprove.envs.qa.experts import Quest
from selfimprove.envs.qa.tools.bm25 import LocalSearch
from selfimprove.envs.splits import HeldOut

INSTRUCTION = """\
You are asked a question and have a collection of paragraphs to search. Actions:
search[words] · lookup[words in the paragraph found last] · finish[answer]
finish ends the episode: only use it once you know the answer, and answer in as few words as there are.
Answer each time with a thought and one action:
Thought: why
Action: the action"""

NOTHING_FOUND = "Nothing was found."
UNKNOWN = "The actions are search[words], lookup[words] and finish[answer]."
RIGHT, WRONG = "The answer is right.", "The answer is wrong."

_ACTION = re.compile(r"\s*(search|lookup|finish)\[(.*)\]\s*", re.DOTALL | re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w+")
_LONGEST = 6
"""The maximum number of words in a name when texts are searched for names."""


class Asked(NamedTuple):
    """A snapshot: the task, the searches so far, the paragraphs found, and the look-ups since the last search."""

    task: int
    queries: tuple[str, ...] = ()
    found: tuple[int, ...] = ()
    lookups: tuple[str, ...] = ()
    answer: str | None = None
    reward: float = 0.0


class Questions:
    """Implements ``AgentEnv``. Copies share the questions and the corpus's index, which are immutable.

    ``names``: the possible answers; those that occur in the text so far are listed as actions. None: answers, and
    therefore actions, cannot be listed. ``ids``: the indices of ``quests`` if some are held out, else None.
    """

    instruction = INSTRUCTION

    def __init__(
        self,
        name: str,
        quests: Sequence[Quest],
        search: LocalSearch,
        names: Collection[str] | None = None,
        ids: HeldOut | None = None,
    ) -> None:
        """Raises: UserError: there are no questions."""
        if not quests:
            raise UserError(f"{name} has no questions; name a source that has some.")
        self.name, self._quests, self._search = name, quests, search
        self._titled = {paragraph.title: place for place, paragraph in enumerate(search.paragraphs)}
        self._names = None if names is None else frozenset(names) | frozenset(self._titled)
        self._ids: Sequence[int] = range(len(quests)) if ids is None else ids
        self._now = Asked(0)

    def task_ids(self) -> Sequence[int]:
        """Indices into the list of questions."""
        return self._ids

    def reset(self, task_id: int) -> str:
        """The question. Raises: UserError: no such task."""
        if task_id not in range(len(self._quests)):
            raise UserError(
                f"{self.name} has no question {task_id}; choose a number from 0 to {len(self._quests) - 1}."
            )
        self._now = Asked(task_id)
        return self._quest.question.question

    @property
    def _quest(self) -> Quest:
        return self._quests[self._now.task]

    def step(self, action: str) -> Step:
        """See ``AgentEnv``; actions after the end have no effect."""
        read = _ACTION.fullmatch(action)
        if self._now.answer is not None or read is None:
            said = self._verdict() if self._now.answer is not None else UNKNOWN
            return self._answer(said, valid=False)
        verb, words = read[1].lower(), read[2].strip()
        if verb == "finish":
            reward = score(words, self._quest.question).reward
            self._now = self._now._replace(answer=words, reward=reward)
            return self._answer(self._verdict(), valid=True)
        told = self._look_up(words) if verb == "lookup" else self._find(words)
        return self._answer(told or NOTHING_FOUND, valid=told is not None)

    def _verdict(self) -> str:
        return RIGHT if self._now.reward == 1 else WRONG

    def _answer(self, said: str, valid: bool) -> Step:
        now = self._now
        info = {"raw_score": now.reward, "valid": valid, "disaster": False}
        return Step(said, now.reward, now.answer is not None, info)

    def _find(self, query: str) -> str | None:
        now, place = self._now, self._search.place(query)
        if place is None or self._search.paragraphs[place].title != query:
            place = self._titled.get(query, place)  # BM25 may rank a paragraph about the title above the title's own
        found = now.found if place is None else (*now.found, place)
        self._now = now._replace(queries=(*now.queries, query), found=found, lookups=())
        return None if place is None else self._search.shown(place)

    def _look_up(self, words: str) -> str | None:
        """The n-th sentence with these words, if they are looked up for the n-th time since the last search."""
        now = self._now
        text = self._search.paragraphs[now.found[-1]].text if now.found and words else ""
        holding = [sentence for sentence in _SENTENCE.split(text) if text and words.lower() in sentence.lower()]
        before = now.lookups.count(words.lower())
        self._now = now._replace(lookups=(*now.lookups, words.lower()))
        return holding[before] if before < len(holding) else None

    def snapshot(self) -> Asked:
        """Only strings and numbers; hashable."""
        return self._now

    def restore(self, snapshot: Asked) -> None:
        self._now = snapshot

    def valid_actions(self) -> list[str] | None:
        """Searches for titles and answers that occur in the text so far, yes and no, and the expert's next action."""
        if self._names is None:
            return None
        if self._now.answer is not None:
            return []
        texts = [self._quest.question.question, *(self._search.paragraphs[place].text for place in self._now.found)]
        held = {name for text in texts for name in _held(text, self._names)}
        asked = {f"search[{name}]" for name in held & self._titled.keys() if name not in self._now.queries}
        return sorted(asked | {f"finish[{name}]" for name in {*held, "yes", "no"}} | {self.expert()[0].action})

    def expert(self) -> list[Move]:
        """See ``AgentEnv``: the plan's remaining searches, and the answer."""
        if self._now.answer is not None:
            return []
        quest = self._quest
        ways = [
            Move(one.thought, f"search[{one.query}]") for one in quest.lookups if one.query not in self._now.queries
        ]
        return [*ways, Move(quest.conclusion, f"finish[{quest.question.gold}]")]


def _held(text: str, names: Collection[str]) -> Iterator[str]:
    """The names that occur in a text as whole words."""
    words = [(word.start(), word.end()) for word in _WORD.finditer(text)]
    for first, (start, _) in enumerate(words):
        for _, end in words[first : first + _LONGEST]:
            if text[start:end] in names:
                yield text[start:end]

"""The pretraining text of the base model: pages of every embedded world, several per sequence.

A sequence has one of two formats, chosen with equal probability. As turns ::

    <|user|>craft 2 ash pole using 1 ash branch
    How is ash pole made?<|end|><|assistant|>craft 2 ash pole using 1 ash branch<|end|>

or as one text without chat markers, as in the ``react`` template that SPIN uses. Statements and questions are drawn at
random, so predicting them teaches little: their weight is ``Text.statement_weight``, that of answers is 1.
"""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from random import Random
from typing import Annotated

from pydantic import AfterValidator, Field

from selfimprove.apps.pretraining import copying
from selfimprove.core.chat import ChatFormat
from selfimprove.core.named_templates import PLAIN_SPECIAL_TOKENS
from selfimprove.core.params import Section
from selfimprove.core.records import Example, Message
from selfimprove.core.seeds import rng
from selfimprove.envs.alfworld import pages as alfworld
from selfimprove.envs.autoexplore import pages as autoexplore
from selfimprove.envs.math import pages as math
from selfimprove.envs.passages import Page, Passage
from selfimprove.envs.qa import pages as qa
from selfimprove.envs.taxi import pages as taxi
from selfimprove.envs.textcraft import pages as textcraft
from selfimprove.training.encode import EncodeCounters, EncodedExample, encode_example

WORLDS: dict[str, tuple[Page, ...]] = {
    "math": (math.sums, math.story, math.problems, math.problems, math.problems, math.problems),
    "textcraft": (textcraft.recipes, textcraft.carrying, textcraft.episodes, textcraft.episodes, textcraft.episodes),
    "qa": (qa.paragraphs, qa.searches, qa.searches),
    "taxi": (taxi.maps,),
    "alfworld": (alfworld.visit,),
    "autoexplore": (autoexplore.folder,),
    "copying": (copying.repeats, copying.pairs),
}
"""World -> the kinds of its pages; a kind listed several times is drawn proportionally more often."""


def _words(draws: Random) -> list[str]:
    """Ten to forty different words of one world, in random order."""
    page = draws.choice(WORLDS[draws.choice(("math", "textcraft", "qa", "alfworld", "autoexplore"))])(draws)
    words = sorted({word.strip(".,:?[]") for passage in page for word in passage.text.split()} - {""})
    return draws.sample(words, min(len(words), draws.randint(10, 40)))


def _lines(draws: Random) -> list[Passage]:
    """Lines of words to be repeated."""
    words = [_words(draws) for _ in range(draws.randint(1, 3))]
    return [Passage(f"Repeat: {line}", line, "copying") for line in map(" ".join, words)]


def _pairs(draws: Random) -> list[Passage]:
    """Pairs of words, and questions that ask for the second word of a pair."""
    words = _words(draws)
    known = dict(zip(words[::2], words[1::2], strict=False))
    asked = draws.sample(sorted(known), min(6, len(known)))
    page = [Passage("\n".join(f"{word} is {other}." for word, other in known.items()))]
    return [*page, *(Passage(f"What is {word}?", known[word], "lookup") for word in asked)]


WORLDS["words"] = (_lines, _lines, _pairs)
IDS = "ids"
"""In place of a world: lines of random token ids (``Lines``)."""


def _checked(shares: dict[str, float], names: Collection[str]) -> dict[str, float]:
    """Raises: ValueError: a name that is not among ``names``, a negative share, or nothing but zeros."""
    for name, share in shares.items():
        if name not in names:
            raise ValueError(f"{name!r} is no world; choose from {', '.join(names)}")
        if share < 0:
            raise ValueError(f"{name}: the share {share:g} is negative; set 0 or more")
    if not sum(shares.values()):
        raise ValueError("all shares are 0; raise one")
    return shares


WorldShares = Annotated[dict[str, float], AfterValidator(partial(_checked, names=list(WORLDS)))]
PhaseShares = Annotated[dict[str, float], AfterValidator(partial(_checked, names=[*WORLDS, IDS]))]


class Text(Section):
    """The composition of the text, and how it is divided into sequences."""

    held_out: int = Field(ge=1, description="sequences of each world that are held out for evaluation")
    shares: WorldShares = Field(description="share of the sequences for each world")
    lengths: dict[int, float] = Field(
        description="approximate sequence lengths in tokens: pages are added until the length is reached"
    )
    statement_weight: float = Field(default=0.25, ge=0, le=1)


class Lines(Section):
    """Sequences that consist of lines of random token ids, each followed by its copy.

    With one line per sequence, copying is learnt within minutes, because the line to copy is always the one just read;
    from sequences of several lines alone, it is not learnt at all (docs/experiments.md).
    """

    of: list[int] = Field(
        default=[4, 16], min_length=2, max_length=2, description="minimum and maximum number of ids in a line"
    )
    lines: int = Field(ge=1, description="maximum number of lines in a sequence")


def page_of(world: str, *key: object) -> list[Passage]:
    """One page; ``key`` seeds its random draws."""
    draws = rng("pretraining", world, *key)
    return draws.choice(WORLDS[world])(draws)


def world_of(shares: dict[str, float], number: int) -> str:
    """The world of the training sequence with this number."""
    return rng("pretraining world", number).choices(list(shares), list(shares.values()))[0]


def encoded(
    text: Text,
    model: Path,
    seed: int,
    numbers: range,
    shares: dict[str, float] | None = None,
    lines: Lines | None = None,
) -> list[EncodedExample]:
    """The training sequences with these numbers, in order; ``shares`` overrides the text's.

    ``lines``: settings of the sequences of the share ``ids``, or of all sequences if ``shares`` is None.
    """
    writer = Writer(text, model)
    shares = shares or ({IDS: 1.0} if lines is not None else text.shares)
    found = []
    for number in numbers:
        world = world_of(shares, number)
        repeats = lines if world == IDS else None
        found.append(
            writer.repeated(repeats, seed, number) if repeats else writer.sequence(world, seed, "train", number)
        )
    return [one for one in found if one is not None]


class Writer:
    """Writes sequences with a model folder's tokenizer."""

    def __init__(self, text: Text, model: Path) -> None:
        self._text = text
        self._longest = max(text.lengths)
        self._turns, self._one_text = ChatFormat.load(model), ChatFormat.load(model, "react")

    def repeated(self, lines: Lines, *key: object) -> EncodedExample:
        """The copying sequence for a key: lines of ids as the user, each repeated and ended by the assistant."""
        draws, chat = rng("pretraining lines", *key), self._turns
        user, assistant = map(PLAIN_SPECIAL_TOKENS.index, ("<|user|>", "<|assistant|>"))
        ids: list[int] = []
        weights: list[float] = []
        for _ in range(draws.randint(1, lines.lines)):
            length = draws.randint(*lines.of)
            line = [draws.randrange(len(PLAIN_SPECIAL_TOKENS), chat.vocab_size) for _ in range(length)]
            context = [user, *line, chat.end_id, assistant]
            ids += [*context, *line, chat.end_id]
            weights += [0.0] * len(context) + [1.0] * (len(line) + 1)
        return EncodedExample(ids, weights)

    def sequence(self, world: str, *key: object) -> EncodedExample | None:
        """The sequence for a key; None if its first page alone is too long."""
        draws = rng("pretraining sequence", world, *key)
        wanted = draws.choices(list(self._text.lengths), list(self._text.lengths.values()))[0]
        as_turns = draws.random() < 0.5
        chat = self._turns if as_turns else self._one_text
        passages: list[Passage] = []
        best: EncodedExample | None = None
        for number in range(64):
            passages += page_of(world, *key, number)
            messages = turns(passages, self._text.statement_weight, as_turns)
            example = Example(id=f"{world}-{number}", messages=messages, source=world)
            one = encode_example(example, chat, 1 << 20, EncodeCounters())
            if one is None or len(one.ids) > self._longest:
                break
            best = one
            if len(one.ids) >= wanted:
                break
        return best


def turns(passages: list[Passage], statement_weight: float, as_turns: bool) -> list[Message]:
    """Statements and questions become user messages, answers the assistant's; the last answer ends the text."""
    messages: list[Message] = []
    said: list[str] = []
    for passage in passages:
        said.append(passage.text)
        if passage.answer:
            words = "\n".join(said)
            if not as_turns:
                words = f"{words}\n" if not messages else f"\n{words}\n"
            messages.append(Message(role="user", content=words, weight=statement_weight))
            messages.append(Message(role="assistant", content=passage.answer, weight=1.0))
            said = []
    return messages

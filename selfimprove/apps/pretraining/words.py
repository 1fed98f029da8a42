"""The tokenizer of the pretrained base: a token for each frequent word of the embedded worlds, single digits, bytes.

    Mia has 7 boxes.    ->  "Mia", " has ", "7", " boxes", "."
    |P: | : : |         ->  "|", "P", ":", " ", "|", " ", ":", …

A word includes the preceding space, as in GPT-2, but a name does not: "Mara" is the same token in every position, so
that names can be copied. Before a digit or a name, the space belongs to the preceding word. In the taxi's maps every
wall, gap and cell is a token, so that columns keep their distance. Other words are composed of the fewest known pieces,
down to bytes, so that any text can be encoded.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from selfimprove.apps.pretraining.corpus import WORLDS, page_of
from selfimprove.core.errors import UserError
from selfimprove.core.named_templates import NAMED_TEMPLATES, PLAIN_SPECIAL_TOKENS
from selfimprove.envs.alfworld.kitchen import INSTRUCTION as KITCHEN
from selfimprove.envs.alfworld.kitchen import Kitchen
from selfimprove.envs.autoexplore.env import INSTRUCTION as AUTOEXPLORE
from selfimprove.envs.feedback import FAILURE, SUCCESS
from selfimprove.envs.math.arithmetic import Difficulty, generate
from selfimprove.envs.math.arithmetic_expert import solution
from selfimprove.envs.qa.encyclopedia import EncyclopediaParams, make_encyclopedia
from selfimprove.envs.taxi.env import ACTION_LIST, Taxi
from selfimprove.envs.taxi.env import INSTRUCTION as TAXI
from selfimprove.envs.textcraft.env import INSTRUCTION as TEXTCRAFT
from selfimprove.envs.textcraft.env import TextCraft
from selfimprove.envs.textcraft.recipes import RecipeBook
from selfimprove.methods.agent_r.prompts import ASSENT, SYSTEM
from selfimprove.methods.agent_r.revise import REVISION_THOUGHTS
from selfimprove.methods.rise.prompts import PROBLEM
from selfimprove.methods.spin.prompts import NEUTRAL, RESPONSE, WRAPPER
from selfimprove.models.tokenizer import write_config

_BEFORE = r"(?: (?=[A-Z0-9]))?"
PIECES = rf"[0-9]|[A-Z][A-Za-z]*|[|:]| ?[a-z]+{_BEFORE}| ?[^\sA-Za-z0-9|:]+(?:\n+|{_BEFORE})|[^\S\n]|\n+"
"""Pre-tokenization pattern: a text is first split into these pieces, and no token crosses a split."""

FIXED = (
    SYSTEM,
    TEXTCRAFT,
    TAXI,
    KITCHEN,
    AUTOEXPLORE,
    WRAPPER,
    RESPONSE,
    SUCCESS,
    PROBLEM.partition("{")[0],
    FAILURE.partition("{")[0],
)
"""Texts that occur verbatim in every dialogue of a method or world: one token each, never seen in pretraining."""


def make_tokenizer(pages: int, vocab_size: int, folder: Path, seed: int) -> None:
    """Write the tokenizer, with the chat template ``plain``, to ``folder``; equal arguments give equal bytes.

    Args:
        pages: number of pages of each world on which words are counted.
        vocab_size: total number of ids; the most frequent words are chosen.

    Raises:
        UserError: ``vocab_size`` is too small for bytes and special tokens.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = vocab_size - len(PLAIN_SPECIAL_TOKENS) - len(letters) - len(FIXED)
    if room < 0:
        raise UserError(f"vocabulary: {vocab_size} ids leave no room for words; give at least {vocab_size - room}.")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    counts = Counter(piece for text in texts(pages, seed) for piece in re.findall(PIECES, text))
    words = [level.pre_tokenize_str(piece)[0][0] for piece, _ in sorted(counts.items(), key=lambda it: (-it[1], it[0]))]
    words = [word for word in words if len(word) > 1 and word not in letters][:room]
    # A unigram model chooses the tokens with the highest total score: as few as possible, bytes only if necessary.
    vocabulary = [*((token, 0.0) for token in PLAIN_SPECIAL_TOKENS), *((word, -1.0) for word in words)]
    vocabulary += [(letter, -1.5) for letter in letters]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in PLAIN_SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in FIXED])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_config(folder, {"pad_token": "<|pad|>", "eos_token": "<|end|>"}, NAMED_TEMPLATES["plain"])


def texts(pages: int, seed: int) -> Iterator[str]:
    """The text on which words are counted: the worlds' pages, experts' solutions and the methods' fixed texts."""
    for world in WORLDS:
        if world not in ("copying", "words"):  # made-up words, and words taken from the other worlds
            for number in range(pages):
                for passage in page_of(world, seed, "tokenizer", number):
                    yield passage.text
                    yield passage.answer
    yield from _said(pages, seed)
    yield from [*REVISION_THOUGHTS, *FIXED, ASSENT, NEUTRAL, ACTION_LIST] * pages


def _said(pages: int, seed: int) -> Iterator[str]:
    """Solutions by the scripted experts for about ``pages`` tasks of each world."""
    problems = generate(pages, seed=seed, split="demonstrations", difficulty=Difficulty())
    yield from (solution(problem) for problem in problems)
    crafting, taxi, kitchen = TextCraft(RecipeBook.load(None), seed), Taxi(), Kitchen(seed)
    for env, tasks in ((crafting, crafting.task_ids()), (taxi, taxi.task_ids()), (kitchen, kitchen.task_ids("train"))):
        for task in list(tasks)[:: max(1, len(tasks) // pages)]:
            yield env.reset(task)  # type: ignore[attr-defined]
            moves: Iterable[tuple[str, str]] = env.expert()  # type: ignore[attr-defined]
            yield from (f"Thought: {thought}\nAction: {action}" for thought, action in moves)
    book = make_encyclopedia(EncyclopediaParams(people=300), {"train": pages}, seed=seed)
    for quest in book.splits["train"]:
        yield from (quest.question.question, quest.conclusion, f"Observation: finish[{quest.question.gold}]")
        yield from (f"{lookup.thought}\nAction: search[{lookup.query}]" for lookup in quest.lookups)

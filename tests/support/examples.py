"""Fixtures: a tiny model folder, its tokenizer alone, both created once, and examples and pairs to train it on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Example, Message, Pair
from selfimprove.core.seeds import rng
from tests.support.tiny import make_tiny_model, train_tokenizer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random 2-layer model with its tokenizer."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=32)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tokenizer, without a model."""
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def chat(tokenizer: Path) -> ChatFormat:
    """The tokenizer's format, with the template ``plain``."""
    return ChatFormat.load(tokenizer)


@pytest.fixture(scope="session")
def dialogues() -> Callable[..., list[Example]]:
    """Factory of n seeded examples: one to three attempts at a sum; only the last is trained, with a weight of RISE."""

    def make(n: int, seed: int = 0) -> list[Example]:
        random = rng("dialogues", seed)
        examples = []
        for number in range(n):
            a, b = random.randrange(100), random.randrange(100)
            messages = [Message(role="user", content=f"Mia has {a} apples and buys {b} more. How many apples?")]
            for wrong in range(random.randrange(3)):
                messages.append(Message(role="assistant", content=f"\\boxed{{{a - b + wrong}}}"))
                messages.append(Message(role="user", content="Your answer is incorrect. Please try again!"))
            steps = " ".join(f"{a} + {i} = {a + i}." for i in range(random.randrange(6)))
            weight = random.choice([12.1825, 1.0, 0.0821])
            messages.append(Message(role="assistant", content=f"{steps} \\boxed{{{a + b}}}", weight=weight))
            examples.append(Example(id=f"identity_{number}", messages=messages))
        return examples

    return make


@pytest.fixture(scope="session")
def duels() -> Callable[..., list[Pair]]:
    """Factory of n seeded pairs: an expert that looks up the sum, and a policy that guesses, sometimes verbosely."""

    def make(n: int, seed: int = 0) -> list[Pair]:
        random = rng("duels", seed)
        pairs = []
        for number in range(n):
            a, b = random.randrange(100), random.randrange(100)
            guess = "I think. " * random.randrange(6)
            pairs.append(
                Pair(
                    id=f"duel_{number}",
                    prompt=[Message(role="user", content=f"Mia has {a} apples and buys {b} more. How many apples?")],
                    real=[
                        Message(role="assistant", content=f"Search[{a} + {b}]", weight=1.0),
                        Message(role="user", content=f"{a} + {b} = {a + b}."),
                        Message(role="assistant", content=f"Finish[{a + b}]", weight=1.0),
                    ],
                    generated=[Message(role="assistant", content=f"{guess}Finish[{a - b}]", weight=1.0)],
                    source="iter0",
                )
            )
        return pairs

    return make

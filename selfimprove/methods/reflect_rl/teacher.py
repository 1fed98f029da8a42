"""The teacher, which reflects and acts: the environment's scripted one, or a chat model (docs/reflect-rl.md, L8, L12).

A chat model is prompted in two turns per step, as the original prompts GPT-4::

    user       <the state>  Analyze the situation in at most 50 words. Do not choose a command yet.
    assistant  The task is about events, so the folder core is promising.
    user       <the list of actions>  Choose one: answer with its label only.
    assistant  2
"""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol, runtime_checkable

from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey, rng
from selfimprove.engines.base import Completion, Engine, Request
from selfimprove.envs.interface import EnumeratedEnv, Last, State
from selfimprove.envs.labels import oracle_label
from selfimprove.methods.reflect_rl.params import AgentParams, GenerateParams

SYSTEM = (
    "You play a text game step by step. At each step you read the state of the game, analyze it, and choose one of "
    "the listed actions."
)
ANALYZE = "Analyze the situation in at most 50 words. Do not choose an action yet."
ANALYZE_FIRST = "Describe in one sentence, of at most 100 words, what matters now."
ANALYZE_LATER = (
    "Write two sentences, of at most 100 words together: first what the last action did, good or bad, then what "
    "matters now."
)
WRONG = (
    "The last action was a mistake. Explain in at most 50 words why it was wrong and what should be done instead. Do "
    "not choose an action yet."
)
SPOILER = (
    "For your eyes only: the best next action is {command}. Explain the situation so that a player could find it, but "
    "never name that action."
)
CHOOSE = "Choose one of them: answer with its label and nothing else."
TELLING_TRIES = 3
"""Number of attempts of a teacher that reveals the spoiler before the step is left out."""

_LAST_ACTION = re.compile(r"\baction[*`]*:(.*)", re.IGNORECASE)
"""Text after "action:" in a line; sought in the last line of an answer."""
_NUMBERED = re.compile(r"action \d+:", re.IGNORECASE)
"""The beginning of a line of the list of actions, whose number is a label."""
_MARKUP = "*`\"'> \n"
"""Characters around a command in a chat model's answer."""
LONGEST_COMMAND = 6
"""Maximum number of words of a command, such as take apple 1 from fridge 1."""

_WHOLE = re.compile(r"(\w+)(?:\.(?!\d).*|:.*)?", re.DOTALL)
"""An answer that is a label, alone or followed by a dot or colon and any text; 1.5 is not label 1."""
_ACTION = re.compile(r"\baction\b", re.IGNORECASE)
_LETTER = re.compile(r"\baction\b[\"'`*)\]]*\s*:[\s\"'`*(\[]*([A-Za-z])(?![^\S\n]*\w|['’-]\w)", re.IGNORECASE)
"""A letter directly after "action:" that does not start a sentence, as it does in "Action: I would go"."""
_LETTERED = re.compile(r"\baction[\"'`*]* [\"'`*(\[]*([A-Za-z])[\"'`*)\]]*:", re.IGNORECASE)
"""A letter in the form of the list of actions: Action a: go to microwave 1."""
_INTEGER = re.compile(r"(?<![\w./\u2212-])(?<!\d,)\d+(?![\w/]|-\w|\.\d|,\d{3}(?!\d)|\.[a-z])")
"""An unsigned whole number that is not part of a decimal, a longer number or a path (1.5, -1, 1,000, 3.py).

1,2 is two numbers.
"""
_STATED = re.compile(r"\baction[\"'`*)\]]*\s*:[\s\"'`*(\[]*(\d+)(?!\w|-\w|\.\d|,\d{3}(?!\d))", re.IGNORECASE)
_NEXT = re.compile(r"\baction[-_]?[\s\"'`*(\[)\]]*(\d+)(?!\w|-\w|\.\d|,\d{3}(?!\d))", re.IGNORECASE)
"""The number directly after "action:", and directly after the word."""
_UNREADABLE = re.compile(r"\baction[\"'`*)\]]*\s*:[\s\"'`*(\[]*[\u2212-]?\d", re.IGNORECASE)
"""A digit directly after "action:", which is the choice even if the number is no label, as in "Action: 3.0"."""


def read_label(text: str, labels: Collection[str]) -> str | None:
    """The label that a chat model chose, or None if it named no listed one.

    The candidates, in order: a letter directly after "action:"; the first whole number directly after "action:"; a
    letter between "action" and a colon; the first whole number directly after the word "action"; the whole answer,
    ignoring text after a dot or colon; the first whole number anywhere after "action"; the first whole number that
    stands alone. Parts of numbers are ignored, and a number that is not listed is never replaced by another one
    (docs/reflect-rl.md, L38)::

        1. The passenger is north.\n2. Action: 3          ->  3
        Of the 6 moves, the best action is 3.              ->  3
        I would not take action 2, it hits a wall.
        Action: 3                                          ->  3
        Action 12                                          ->  12, None if only 0 to 5 are listed
        Action a: go to microwave 1                        ->  a
        Action: 3.0. The passenger is 1 row away.          ->  None
    """
    letter = _LETTER.search(text)
    if letter is not None and letter[1] in labels:
        return letter[1]
    stated = _STATED.search(text)
    if stated is None and _UNREADABLE.search(text):
        return None
    lettered = _LETTERED.search(text)
    if stated is None and lettered is not None and lettered[1] in labels:
        return lettered[1]
    stated = stated or _NEXT.search(text)
    whole = _WHOLE.fullmatch(text.strip().strip("*`\"'()[]").strip())
    if stated is None and whole is not None and whole[1] in labels:
        return whole[1]
    if stated is not None:
        return stated[1] if stated[1] in labels else None
    word = _ACTION.search(text)
    number = _INTEGER.search(text, word.end()) if word is not None else None
    if number is None and letter is None:  # an unlisted letter was the choice
        number = _INTEGER.search(text)
    return number[0] if number is not None and number[0] in labels else None


def read_choice(text: str, env: EnumeratedEnv) -> str | None:
    """The label that a chat model chose: that of the command that is the whole answer, with or without its label before
    it as in the list of actions, or otherwise as ``read_label``.

    An answer in the form of an unlisted command is not a choice. Numbers within listed commands are not labels: "I go
    to fridge 1, so 8" is label 8.
    """
    said = text.strip()
    stated = _LAST_ACTION.search(said.rpartition("\n")[2])  # "Action: go to fridge 1", whose number is not a label
    forms = [said, said.strip("*`").strip(), stated[1].strip("*` ") if stated else ""]
    forms += [form.strip(_MARKUP) for form in forms]
    forms += [form.removesuffix(".") for form in forms]
    commands = env.commands()
    for label, command in commands.items():
        if command in forms or any(_is_line(form, label, command) for form in forms):
            return label
    unlisted = [form for form in forms if _names_a_thing(form, commands.values()) and not _NUMBERED.match(form)]
    return None if unlisted else read_label(_without(text, commands.values()), env.state().labels)


def _is_line(said: str, label: str, command: str) -> bool:
    """Whether a text is the label and the command, whatever separates them: ``a) go to shelf 1``."""
    if not said.endswith((command, f"{command})")):  # saves a pattern for each command
        return False
    line = rf"(?i:action )?[(\[]?{label}[\s.:,()\[\]\u2013\u2014-]+{re.escape(command)}\)?"
    return re.fullmatch(line, said) is not None


def _without(text: str, commands: Collection[str]) -> str:
    """The text without the listed commands with a number in them, which ``read_label`` would read as a label."""
    for command in sorted(commands, key=len, reverse=True):
        if re.search("[0-9]", command):
            text = re.sub(rf"(?<![\w/.-]){re.escape(command)}(?![\w/-]|\.\w)", "", text, flags=re.IGNORECASE)
    return text


def _names_a_thing(said: str, commands: Collection[str]) -> bool:
    """Whether an answer is an unlisted command such as "go to fridge 1", whose numbers are not labels."""
    pairs = [pair for command in commands for pair in pairwise(command.lower().split())]
    numbered = {name for name, number in pairs if number.isdecimal()}
    words = said.lower().rstrip(".").split()
    short = 2 < len(words) <= LONGEST_COMMAND and words[0].isalpha()
    return short and words[-1].isdecimal() and words[-2] in numbered


@runtime_checkable
class TellsRules(Protocol):
    """An environment whose states and instruction suit trained models; chat models are also given its rules."""

    rules: str


def opening(env: EnumeratedEnv) -> Message:
    """The system message of a chat model."""
    return Message(role="system", content=f"{SYSTEM}\n{env.rules}" if isinstance(env, TellsRules) else SYSTEM)


class Reflection(NamedTuple):
    """A teacher's reflection. ``cut``: it ended at the token limit, so that no end token may be trained after it."""

    text: str
    cut: bool = False


class Teacher(Protocol):
    """Reflects on states and, in complete trajectories, acts."""

    @property
    def name(self) -> str:
        """The name of the data's author."""

    async def reflect(
        self, env: EnumeratedEnv, last: Last | None, key: SeedKey, *, exploring: bool
    ) -> Reflection | None:
        """A reflection on the state, or None if it revealed the spoiler every time.

        Args:
            exploring: another player acts, and the last action may have been wrong.
        """

    async def choose(
        self, env: EnumeratedEnv, last: Last | None, reflection: str, key: SeedKey, *, exploring: bool
    ) -> str | None:
        """The label of the teacher's action after its reflection, or None if it is not listed.

        The other arguments are those of the call that requested the reflection.
        """


class ScriptedTeacher:
    """The environment's own teacher: it knows a shortest path and explains it, in wording drawn by the key.

    Args:
        error_rate: share of its own actions that are replaced by another listed one, drawn by the key.
    """

    name = "scripted"

    def __init__(self, error_rate: float = 0.0) -> None:
        self._error_rate = error_rate

    async def reflect(
        self, env: EnumeratedEnv, last: Last | None, key: SeedKey, *, exploring: bool
    ) -> Reflection | None:
        said = env.explain(last, key)
        return None if env.reveals(said) else Reflection(said)

    async def choose(
        self, env: EnumeratedEnv, last: Last | None, reflection: str, key: SeedKey, *, exploring: bool
    ) -> str | None:
        best, draw = oracle_label(env), rng("scripted teacher", key)
        others = [label for label in env.state().labels if label != best]
        return draw.choice(others) if best and others and draw.random() < self._error_rate else best


class ChatTeacher:
    """A chat model over any engine, usually an OpenAI-compatible endpoint. ``name``: the name of the model."""

    def __init__(self, engine: Engine, name: str, cfg: GenerateParams) -> None:
        self.name = name
        self._engine, self._cfg = engine, cfg

    async def reflect(
        self, env: EnumeratedEnv, last: Last | None, key: SeedKey, *, exploring: bool
    ) -> Reflection | None:
        """See ``Teacher``; if the answer reveals the spoiler, the request is repeated with another key."""
        dialogue = analysis_request(env, last, exploring=exploring)
        for attempt in range(TELLING_TRIES):
            answer = await ask(self._engine, dialogue, self._cfg, key.at(2 * attempt))
            said = answer.text.strip()
            if said and not env.reveals(said):
                return Reflection(said, answer.finish == "length")
        return None

    async def choose(
        self, env: EnumeratedEnv, last: Last | None, reflection: str, key: SeedKey, *, exploring: bool
    ) -> str | None:
        """See ``Teacher``; this is the second turn of the dialogue that ``reflect`` started."""
        state = env.state()
        dialogue = [
            *analysis_request(env, last, exploring=exploring),
            Message(role="assistant", content=reflection),
            Message(role="user", content=f"{state.post.strip()}\n\n{CHOOSE}"),
        ]
        return read_choice((await ask(self._engine, dialogue, self._cfg, key.at(1))).text, env)


async def ask(
    engine: Engine, dialogue: Sequence[Message], cfg: GenerateParams | AgentParams, key: SeedKey
) -> Completion:
    """A chat model's answer. Raises: EngineError."""
    (answer,) = await engine.generate(
        Request(dialogue, key, temperature=cfg.temperature, top_p=cfg.top_p, max_tokens=cfg.max_tokens)
    )
    return answer


def analysis_request(env: EnumeratedEnv, last: Last | None, *, exploring: bool) -> list[Message]:
    """The first turn: the state without its actions, and the kind of analysis requested.

    Only this request contains the spoiler, and it is never trained on.
    """
    state: State = env.state()
    if not exploring:
        wanted = ANALYZE
    elif env.decisive:
        wanted = WRONG
    else:
        wanted = ANALYZE_FIRST if last is None else ANALYZE_LATER
        way = env.oracle()
        if way and env.reveals(way[0]):
            wanted = f"{SPOILER.format(command=way[0])} {wanted}"
    return [
        opening(env),
        Message(role="user", content=f"{env.instruction}{state.pre.strip()}\n\n{wanted}"),
    ]

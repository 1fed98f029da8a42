"""ScienceWorld's actions as text: maps a model's wording to a valid action, and generates thoughts for the gold path.

Mapping (docs/agent-r.md, A40; optional, off by default)::

    the valid actions: open cupboard, look at cupboard, close door to kitchen, focus on agent, pick up apple, …
    "open cupboard"            ->  open cupboard            it is valid
    "open the cupboard, now!"  ->  open cupboard            most shared words (2)
    "open door to green house" ->  open door to greenhouse  always allowed
    "dance"                    ->  dance                    no shared word: unchanged

The original silently mapped ``close door to kitchen`` to ``open door to kitchen``, and vague words to a fatal
``focus on``. Here a prediction is left unchanged if it is itself valid, or if its best match would reverse it
(``turn off`` is the opposite of ``activate``) or focus on a thing that was not mentioned. Every mapping is reported in
``Step.info``.
"""

import re
from collections.abc import Iterable

from selfimprove.envs.interface import Move

NOT_UNDERSTOOD = ("No known action", "Unknown action", "Ambiguous request")
"""How the observation after an action begins that was not understood, or that may mean several actions."""
ROOMS = (
    "hallway",
    "greenhouse",
    "kitchen",
    "bathroom",
    "outside",
    "workshop",
    "art studio",
    "foundry",
    "bedroom",
    "living room",
)
_NEVER_FOCUS = frozenset(f"focus on {thing}" for thing in ("agent", "air", "green house", *ROOMS))
_FOCUS_WORDS = re.compile(r"\b(?:focus|on|in|to)\b", re.IGNORECASE)
_OPPOSITES = tuple(
    frozenset(pair)
    for pair in (("open", "close"), ("activate", "deactivate"), ("connect", "disconnect"), ("pick", "put"))
)
_SWITCHES = {"on": "activate", "off": "deactivate"}
# All characters but letters, digits, spaces and hyphens within words ("blue-violet paint" is a thing's name).
_PUNCTUATION = re.compile(r"(?<![A-Za-z0-9])-|-(?![A-Za-z0-9])|[^A-Za-z0-9 -]+")


def candidates(valid: Iterable[str], look: str, inventory: str) -> list[str]:
    """The actions to which a prediction may be mapped, shortest first, then alphabetically.

    These are ``open door to`` every room, and all valid actions except actions on doors other than opening them, and
    ``focus on`` the agent, the air, a room, or a thing with a word that is neither in ``look`` (what the agent sees)
    nor in ``inventory``.
    """
    seen = f"{look} {inventory}".lower()
    kept = {f"open door to {room}" for room in ROOMS}
    for action in valid:
        if "door" in action and "open" not in action:
            continue
        if action.startswith("focus on") and (action in _NEVER_FOCUS or not _visible(action, seen)):
            continue
        kept.add(action)
    return sorted(kept, key=lambda action: (len(action), action))


def map_action(prediction: str, among: Iterable[str], valid: Iterable[str] = ()) -> str:
    """The action in ``among`` that matches ``prediction`` best; ``prediction`` itself if there is no match.

    A prediction in ``among`` or ``valid`` (all valid actions, including those that are not candidates) is unchanged.
    Otherwise the match is the action with the most distinct words in common; ties go to the shorter, then to the
    alphabetically first one. If that action is refused (see the module docstring), the prediction is unchanged, because
    the second best would be a guess. Punctuation is removed. Matching is case-sensitive, as in the original; refusal
    is not.
    """
    wanted = prediction.replace("green house", "greenhouse").strip()
    among, valid = set(among), set(valid)
    if wanted in among | valid:
        return wanted
    if prediction.strip() in valid:
        return prediction.strip()
    words = set(_plain(wanted).split())
    best, most = prediction, 0
    for action in sorted(among, key=lambda action: (len(action), action)):
        shared = len(words & set(_plain(action).split()))
        if shared > most:
            best, most = action, shared
    return prediction if not most or _refused(wanted, best) else _plain(best)


def _visible(focus: str, seen: str) -> bool:
    return all(word in seen for word in _FOCUS_WORDS.sub("", focus).lower().split())


def _plain(action: str) -> str:
    return _PUNCTUATION.sub("", action)


def _refused(prediction: str, action: str) -> bool:
    """Whether the mapping would reverse the prediction, or focus on something that it did not mention."""
    said, words = _plain(prediction).lower().split(), _plain(action).lower().split()
    if words[0] == "focus":
        return "focus" not in said or not set(said) & set(words[2:])
    verb = said[0]
    if verb in ("turn", "switch"):
        verb = next((_SWITCHES[word] for word in said[1:] if word in _SWITCHES), verb)
    return frozenset((verb, words[0])) in _OPPOSITES


# The first pattern that matches the entire action determines the thought; {0}, {1} are its groups.
_THOUGHTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), thought)
    for pattern, thought in (
        (r"open door to (.+)", "The way to the {0} leads through this door, so I open it."),
        (r"go to (.+)", "I have to get to the {0}."),
        (r"look around", "I look around to see what is here."),
        (r"look (?:at|in) (.+)|examine (.+)", "I want to see how it is with the {0}."),
        (r"focus on (.+)", "The task asks me to focus on the right thing, and that is the {0}."),
        (r"pick up (.+)", "I will need the {0}, so I take it along."),
        (r"(?:put down|drop) (.+)", "I don't need to carry the {0} any longer."),
        (r"move (.+) to (.+)", "The {0} belongs in the {1} now."),
        (r"pour (.+) (?:into|in) (.+)", "What is in the {0} has to get into the {1}."),
        (r"use (.+) on (.+)", "I use the {0} to find out about the {1}."),
        (r"connect (.+) to (.+)", "The circuit needs a connection between the {0} and the {1}."),
        (r"disconnect (.+)", "The {0} should be in no circuit."),
        (r"deactivate (.+)", "The {0} has done its work, so I turn it off."),
        (r"activate (.+)", "The {0} has to run, so I turn it on."),
        (r"mix (.+)", "What is in the {0} has to be mixed."),
        (r"read (.+)", "The {0} may tell me what to do."),
        (r"dunk (.+) in (.+)", "I dip the {0} into the {1}."),
        (r"open (.+)", "I open the {0} to get at what is inside."),
        (r"close (.+)", "I close the {0} again."),
        (r"wait1?", "This takes time, so I let some pass."),
    )
)


def gold_move(action: str) -> Move:
    """An action of the gold path with a short thought, determined by the kind of action."""
    for pattern, thought in _THOUGHTS:
        match = pattern.fullmatch(action)
        if match is not None:
            return Move(thought.format(*(group for group in match.groups() if group is not None)), action)
    return Move(f"The next step is to {action}.", action)

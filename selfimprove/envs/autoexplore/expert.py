"""AutoExplore's scripted expert: the path to a target, and for each step a sentence that a searcher could say.

    cd core         The task speaks of events, so I look into core.
    cat hub.py      I read hub.py to see whether it is what I look for.
    id hub.py       hub.py fits the task, so I name it as my answer.

The sentences never reveal the target before its folder shows it: they refer to the question and the next name.
"""

import re
from collections.abc import Collection, Sequence

from selfimprove.core.seeds import rng
from selfimprove.envs.autoexplore.actions import Action
from selfimprove.envs.autoexplore.tree import join

_THOUGHTS: dict[str, tuple[str, ...]] = {
    "cd ..": (
        "What I look for is not here, so I go back up.",
        "This folder does not lead to the answer; I leave it.",
        "Nothing here fits the task, so I return to the folder above.",
    ),
    "cd": (
        "No file here fits the task, so I look into {name}.",
        "{name} may hold what the task asks for, so I go there.",
        "I go into {name} to see what is in it.",
    ),
    "cd, shared": (
        "The task speaks of {word}, so I look into {name}.",
        "{name} sounds like {word}, which the task names; I go there.",
        "Since the task is about {word}, {name} is the folder to search.",
    ),
    "cat": (
        "I read {name} to see whether it is what I look for.",
        "{name} could be the answer, so I look at it before I decide.",
        "Before I name {name}, I check what is in it.",
    ),
    "cat, shared": (
        "The task speaks of {word}, so I read {name}.",
        "{name} sounds like {word}, which the task names; I look at it.",
        "Since the task is about {word}, I check {name} first.",
    ),
    "id": (
        "{name} fits the task, so I name it as my answer.",
        "This is the file that the task asks for: {name}.",
        "I am sure that {name} is the answer, so I identify it.",
    ),
}
_WORD = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{3,}")


def plan(cwd: str, targets: Collection[str], seen: Collection[str], steps: int) -> list[Action]:
    """The actions from a folder to the nearest target (ties: first by name); [] if they are more than ``steps``.

    An unread target is read first, as in the data's optimal paths, if there is a step left for it.
    """
    ways = [_way(cwd, target, seen) for target in sorted(targets)]
    best = min(ways, key=len, default=[])
    if len(best) == steps + 1:
        best = [action for action in best if action.name != "cat"]
    return best if len(best) <= steps else []


def _way(cwd: str, target: str, seen: Collection[str]) -> list[Action]:
    here = cwd.split("/") if cwd else []
    *folders, name = target.split("/")
    shared = 0
    while shared < min(len(here), len(folders)) and here[shared] == folders[shared]:
        shared += 1
    up = [Action("cd", "..")] * (len(here) - shared)
    down = [Action("cd", folder) for folder in folders[shared:]]
    read = [] if join("/".join(folders), name) in seen else [Action("cat", name)]
    return [*up, *down, *read, Action("id", name)]


def explain(question: str, action: Action, key: Sequence[object]) -> str:
    """One sentence on why an action helps; ``key`` determines its wording."""
    kind, word = occasion(question, action.name, action.operand)
    return rng("autoexplore thought", *key, action.text).choice(_THOUGHTS[kind]).format(name=action.operand, word=word)


def occasion(question: str, name: str, operand: str) -> tuple[str, str]:
    """The kind of sentence about a command, a key of ``_THOUGHTS``, and the question's word that its operand shares."""
    if (name, operand) == ("cd", ".."):
        return "cd ..", ""
    word = "" if name == "id" else shared_word(question, operand)
    return f"{name}, shared" if word else name, word


def shared_word(question: str, name: str) -> str:
    """The first word of the question that also occurs in the name (``subscribers`` and ``subscribe``); "" if none."""
    parts = [part.lower() for part in _WORD.findall(name.rpartition(".")[0] or name)]
    for word in _WORD.findall(question):
        low = word.lower()
        if len(low) > 3 and any(low.startswith(part) or part.startswith(low) for part in parts if len(part) > 3):
            return word
    return ""

"""The process in which ALFWorld's games run: a line of JSON in, a line of JSON out. Runs in ``.venvs/alfworld``.

    {"op": "open", "problem": "(define ...", "goal": "put a hot egg in fridge"}
                                       -> {"session": 1, "text": "-= Welcome ...", "commands": ["go to ...", ...], ...}
    {"op": "step", "session": 1, "command": "go to fridge 1"}
                                       -> {"text": "You arrive at ...", "commands": [...], "won": false}
    {"op": "plan", "session": 1}       -> {"plan": ["open fridge 1", ...]}

Each request may name sessions that nobody needs any more (``"left": [1, 2]``). What fails is answered with
``{"error": "..."}``. It needs nothing of selfimprove, reads the package's own domain and
grammar and nothing else, and is never told where games lie, so it cannot write there, as the original does. The
grammars inside of downloaded games are not used: TextWorld runs what stands in a grammar as Python. The process ends
when its standard input does, however busy it is.

Text and commands are TextWorld's, exactly; but it derives every admissible command from the grammar anew, at 50 to 190
ms a step, where filling in the names gives the same at a tenth of that.
"""

import json
import os
import queue
import re
import sys
import threading
from collections import Counter
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

KNOWN = 256  # games whose translations are kept: a reset of one costs milliseconds instead of 0.2 s or more
GOAL = "UNKNOWN GOAL"  # where the grammar has a place for the task's sentence


def serve() -> None:
    """Answer until the standard input ends. Only answers reach the standard output, whatever libraries print."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    # Planning happens in C without Python's lock, so this thread notices the end also in the middle of it.
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    worlds = Worlds()
    while True:
        try:
            answer = worlds.answer(json.loads(requests.get()))
        except (Exception, SystemExit) as error:  # Fast Downward's parser exits; other games can go on
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _read(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


class Worlds:
    """The games in play, by number."""

    def __init__(self) -> None:
        self._open: dict[int, Any] = {}
        self._idle: list[Any] = []  # each has loaded a library of its own, so they are used again
        self._count = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        for number in request["left"]:
            self._idle.append(self._open.pop(number))
        operation = request["op"]
        if operation == "hello":
            return {"alfworld": version("alfworld"), "textworld": version("textworld")}
        if operation == "open":
            return self._begin(request["problem"], request["goal"])
        world = self._open[request["session"]]
        if operation == "step":
            state, _, _ = world.step(request["command"])
            return _told(state)
        if operation == "plan":
            return {"plan": world.plan()}
        raise ValueError(f"no such operation: {operation}")

    def _begin(self, problem: str, goal: str) -> dict[str, Any]:
        world = self._idle.pop() if self._idle else _world_class()()
        told = _told(world.begin(problem))
        self._count += 1
        self._open[self._count] = world
        return told | {"session": self._count, "text": told["text"].replace(GOAL, goal, 1)}


def _told(state: Any) -> dict[str, Any]:
    return {"text": state.feedback, "commands": state["admissible_commands"], "won": bool(state["won"])}


@lru_cache(maxsize=1)
def _world_class() -> type[Any]:
    """TextWorld's environment, which begins any problem and lists commands without deriving them."""
    import textworld
    from textworld.envs.pddl import PddlEnv
    from textworld.envs.pddl import logic as pddl

    spec = find_spec("alfworld")  # found, not imported: importing it makes a folder in the user's home
    assert spec is not None
    assert spec.origin is not None
    data = Path(spec.origin).parent / "data"
    domain, grammar = (data / "alfred.pddl").read_text("utf-8"), (data / "alfred.twl2").read_text("utf-8")
    translate = pddl.fast_downward.pddl2sas
    pddl.fast_downward.pddl2sas = lru_cache(maxsize=2 * KNOWN)(translate)

    class GameInPlay(PddlEnv):  # type: ignore[misc]
        """One game in play."""

        def __init__(self) -> None:
            super().__init__(textworld.EnvInfos())
            self._logic = pddl.GameLogic(domain=domain, grammar=grammar)

        def begin(self, problem: str) -> Any:
            """Start a game."""
            self._game_data = {"pddl_problem": problem}
            self._pddl_state = pddl.PddlState(self.downward_lib, problem, self._logic)
            self._entity_infos = self._get_entity_infos()
            names = named(self._entity_infos)
            for info in self._entity_infos.values():
                info.name = names[info.id]
            return self.reset()

        def plan(self) -> list[str]:
            """The planner's path to the goal from here; [] if there is none, or it is reached."""
            if self.state["won"]:
                return []
            return [" ".join(command.split()) for command in self._pddl_state.replan(self._entity_infos)]

        def _gather_infos(self) -> None:
            state, names = self.state, {key: info.name for key, info in self._entity_infos.items()}
            state["won"], state["lost"] = self._pddl_state.check_goal(), False
            actions = state["_valid_actions"] = list(self._pddl_state.all_applicable_actions())
            state["_valid_commands"] = [filled(action, names) for action in actions]
            state["admissible_commands"] = sorted(set(state["_valid_commands"]))

    return GameInPlay


def filled(action: Any, names: dict[str, str]) -> str:
    """An applicable action as a command: its template with the names of what it is done to."""
    words = {placeholder.name: names[variable.name] for placeholder, variable in action.mapping.items()}
    template = "go to {r}" if action.name == "gotolocation" else action.command_template
    return re.sub(r"{(\w+)}", lambda match: words[match[1]], template)


def named(ids: Any) -> dict[str, str]:
    """Id -> name, ALFWorld's numbering: among what is of one kind, the first id in order has the highest number."""
    kinds = {}
    for key in sorted(ids):
        head, bar, _ = key.partition("_bar_")
        kinds[key] = head + ("basin" if "basin" in key else "") if bar else ""
    left = Counter(kinds.values())
    names = {}
    for key, kind in kinds.items():
        names[key] = f"{kind} {left[kind]}" if kind else f"{key} "
        left[kind] -= 1
    return names


if __name__ == "__main__":
    serve()

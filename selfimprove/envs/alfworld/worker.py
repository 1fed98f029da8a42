"""The process that runs ALFWorld's games: one line of JSON in, one line of JSON out. Runs in ``.venvs/alfworld``.

    {"op": "open", "problem": "(define ...", "goal": "put a hot egg in fridge"}
                                       -> {"session": 1, "text": "-= Welcome ...", "commands": ["go to ...", ...], ...}
    {"op": "step", "session": 1, "command": "go to fridge 1"}
                                       -> {"text": "You arrive at ...", "commands": [...], "won": false}
    {"op": "plan", "session": 1}       -> {"plan": ["open fridge 1", ...]}

A request may list sessions that are no longer used (``"left": [1, 2]``). Failures are answered with
``{"error": "..."}``. The process imports nothing of selfimprove, reads only the package's own domain and grammar, and
does not know where games are stored, so it cannot write there, as the original does. Grammars in downloaded games are
not used, because TextWorld executes a grammar's contents as Python. The process ends when its standard input is closed,
even while it is busy.

Text and commands are exactly TextWorld's; but TextWorld derives every admissible command from the grammar, which takes
50 to 190 ms per step, while filling in the names gives the same commands in a tenth of that.
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

KNOWN = 256  # games with cached translations: resetting one takes milliseconds instead of 0.2 s or more
GOAL = "UNKNOWN GOAL"  # the grammar's placeholder for the task's sentence


def serve() -> None:
    """Answer until the standard input ends. Only answers reach the standard output, whatever libraries print."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    # Planning runs in C without Python's lock, so this thread notices the end even during planning.
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    worlds = Worlds()
    while True:
        try:
            answer = worlds.answer(json.loads(requests.get()))
        except (Exception, SystemExit) as error:  # Fast Downward's parser exits; other games can continue
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _read(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


class Worlds:
    """The games being played, by number."""

    def __init__(self) -> None:
        self._open: dict[int, Any] = {}
        self._idle: list[Any] = []  # reused, because each has loaded its own library
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
    """TextWorld's environment, extended to start any problem and to list commands without deriving them."""
    import textworld
    from textworld.envs.pddl import PddlEnv
    from textworld.envs.pddl import logic as pddl

    spec = find_spec("alfworld")  # not imported: importing it creates a folder in the user's home
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
            """The planner's path from here to the goal; [] if there is none, or it is reached."""
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
    """An applicable action as a command: its template with the names of its objects."""
    words = {placeholder.name: names[variable.name] for placeholder, variable in action.mapping.items()}
    template = "go to {r}" if action.name == "gotolocation" else action.command_template
    return re.sub(r"{(\w+)}", lambda match: words[match[1]], template)


def named(ids: Any) -> dict[str, str]:
    """Id -> name, with ALFWorld's numbering: within a kind, the first id in order has the highest number."""
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

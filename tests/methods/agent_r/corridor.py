"""A small real environment for tests: a dark corridor with a key, a door and a pit.

    Rooms 0 to 4 in a row; the key lies in room 3, the door is in room 1. You are in room 0.

    You are in room 0 of 5.      >  Thought: The key first.    Action: right
    You are in room 1 of 5.      >  …                          Action: take key
    There is no key here.        >  …
    You have the key.            >  …                          Action: left
    …
    You have opened the door.    (reward 1, the end)

The reward is 0.5 with the key and 1 with the door open. A fall into the pit (``jump``) is fatal and has a raw score of
-100. Any other text is invalid and moves one room to the right if its length is odd, to the left if it is even, so even
a model that writes nonsense moves around.
"""

from __future__ import annotations

from typing import NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Move, Step

ROOMS = 5


class State(NamedTuple):
    task_id: int
    room: int = 0
    key: bool = False
    over: bool = False


class Corridor:
    """Implements ``AgentEnv``. In task 5 * k + d the key is in room k and the door in room d."""

    name = "corridor"
    instruction = "Find the key and open the door. Actions: left, right, take key, open door, jump."

    def __init__(self) -> None:
        self.state = State(0)
        self.resets = self.steps = 0

    def task_ids(self) -> list[int]:
        return list(range(ROOMS * ROOMS))

    def reset(self, task_id: int) -> str:
        if task_id not in self.task_ids():
            raise UserError(f"corridor: there is no task {task_id}; tasks are 0 to {ROOMS * ROOMS - 1}.")
        self.state = State(task_id)
        self.resets += 1
        key, door = divmod(task_id, ROOMS)
        return f"The key lies in room {key},\nthe door is in room {door}. You are in room 0."

    def step(self, action: str) -> Step:
        self.steps += 1
        now, valid = self.state, True
        if now.over:
            return self._answer("It is over.", valid=False)
        key, door = divmod(now.task_id, ROOMS)
        if action == "take key":
            found = now.room == key and not now.key
            self.state = now._replace(key=now.key or found)
            return self._answer("You have\tthe key." if found else "There is no key here.", valid=found)
        if action == "open door":
            opened = now.room == door and now.key
            self.state = now._replace(over=opened)
            return self._answer("You have opened the door." if opened else "It stays shut.", valid=opened)
        if action == "jump":
            self.state = now._replace(over=True, room=-1)
            return self._answer("You fall.", disaster=True)
        right = action == "right" or (action != "left" and len(action) % 2 == 1)
        valid = action in ("left", "right")
        self.state = now._replace(room=min(max(now.room + (1 if right else -1), 0), ROOMS - 1))
        return self._answer(f"You are in\nroom {self.state.room} of {ROOMS}.", valid=valid)

    def _answer(self, text: str, *, valid: bool = True, disaster: bool = False) -> Step:
        now = self.state
        raw = -100.0 if now.room < 0 else 100.0 if now.over else 50.0 if now.key else 0.0
        return Step(text, max(raw, 0.0) / 100, now.over, {"raw_score": raw, "valid": valid, "disaster": disaster})

    def snapshot(self) -> State:
        return self.state

    def restore(self, snapshot: State) -> None:
        self.state = snapshot

    def valid_actions(self) -> list[str] | None:
        key, door = divmod(self.state.task_id, ROOMS)
        here = {"take key": self.state.room == key and not self.state.key}
        here["open door"] = self.state.room == door and self.state.key
        return sorted(["jump", "left", "right", *(action for action, possible in here.items() if possible)])

    def expert(self) -> list[Move]:
        if self.state.over:
            return []
        key, door = divmod(self.state.task_id, ROOMS)
        moves, room = [], self.state.room
        for where, action, done in ((key, "take key", self.state.key), (door, "open door", False)):
            if not done:
                moves += [Move("I go on.", "right" if where > room else "left")] * abs(where - room)
                moves.append(Move("Here it is.", action))
                room = where
        return moves

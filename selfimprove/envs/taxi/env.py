"""DangerousTaxi: fetch the passenger, bring them to the destination, never hit a wall (docs/reflect-rl.md, L39, L40).

An episode (start 61 in mode ``full``, played by the expert; only the first and the last observation are shown)::

    You have already completed the following actions:


    --- Current State ---

    +---------+
    |P: | : : |
    |T: | : : |
    | : : : : |
    | | : | : |
    |D| : | : |
    +---------+
    Thought: From here the passenger lies one row north, and the way north is free, so I move north.
    Action: move north
    Thought: The passenger is right here, so they can get in.
    Action: pickup passenger
    Thought: From here the destination lies four rows south, and the way south is free, so I move south.
    Action: move south
    Thought: The destination is three rows south, so I move south.
    Action: move south
    Thought: The destination is two rows south, so I move south.
    Action: move south
    Thought: I move south, because the destination is one row south.
    Action: move south
    Thought: The passenger is aboard and this is the destination, so I drop them off.
    Action: drop off passenger
    You have already completed the following actions:
    move north
    pickup passenger
    move south
    move south
    move south
    move south
    drop off passenger

    --- Current State ---

    +---------+
    | : | : : |
    | : | : : |
    | : : : : |
    | | : | : |
    |O| : | : |
    +---------+

Actions are the labels 0 to 5 or the words of ``ACTIONS``. Each costs 0.05; the first pickup pays 1 in the modes
``pickup`` and ``full``, the delivery pays 1. *Danger*: an action that changes nothing (a wall, nobody to pick up,
nowhere to drop off) costs 0.5 and ends the episode, even if it is the first one. (The original compared the states
after two consecutive actions, so that its first action was never dangerous.) Dropping the passenger at a landmark other
than the destination is legal: they wait there.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import Move, Step
from selfimprove.envs.taxi.grid import ABOARD, ACTIONS, best_actions, moves, picture, place, starts
from selfimprove.envs.taxi.words import thought

Mode = Literal["pickup", "dropoff", "full", "none"]
Ending = Literal["", "success", "danger", "max_turns"]

MAX_TURNS = 15
LABELS = tuple(str(action) for action in range(len(ACTIONS)))
DANGER = -10 / 20  # instead of the step's reward

INSTRUCTION = """\
You drive a taxi on a grid of 5 by 5 cells inside a wall. Between two neighbours of a row, a | is a wall as well, and \
a : is not. Drive to the passenger, pick them up, drive to the destination and drop them off.
T is the taxi, P the passenger, D the destination; O is the taxi on the waiting passenger, X the taxi with the \
passenger aboard. What the taxi stands on cannot be seen.
Every action costs a little. An action that changes nothing, as driving into a wall, is dangerous and ends the game.
Answer each time with a thought and one action:
Thought: why
Action: the action's number or words"""
RULES = INSTRUCTION.partition("\nAnswer each time")[0]
"""The instruction without the answer format."""

ACTION_HEADING = "\nThe actions you can take now is:"  # verbatim from the original, including the grammar
ACTION_LIST = (
    ACTION_HEADING + "\n" + "".join(f"Action {label}: {words}\n" for label, words in zip(LABELS, ACTIONS, strict=True))
)

SUCCESS_BELOW: Mapping[Mode, float] = {"pickup": 0.0, "dropoff": 0.0, "full": -1.0}


def succeeded(mode: Mode, q0: float, delivered: bool) -> bool:
    """Success by the original's criterion: the episode's cost ``q0`` = Q₀ is below 0, or in ``full`` below −1.

    Without a curriculum (``none``), the original's threshold of −1 is unreachable, because the best return is 1; here,
    success is the delivery. In episodes of at most 20 actions, the result equals ``Step.reward``.
    """
    return delivered if mode == "none" else q0 < SUCCESS_BELOW[mode]


def read_action(text: str) -> int | None:
    """The action given by a label (``3``, `` 3. ``, ``3. move west``) or exactly by its words; None for other texts."""
    text = text.strip()
    label = text.partition(".")[0]
    if label in LABELS:
        return LABELS.index(label)
    return ACTIONS.index(text) if text in ACTIONS else None


def state_text(done: Sequence[int], state: int) -> str:
    """The models' input up to the list of actions: the completed actions, one per line, then the map."""
    words = "\n".join(ACTIONS[action] for action in done)
    return f"You have already completed the following actions:\n{words}\n\n--- Current State ---\n\n{picture(state)}"


def history_text(done: Sequence[int], states: Sequence[int], drawn: int | None = None) -> str:
    """As ``state_text``, with the map after every action.

    ``states``: the first, then one after each of ``done``. ``drawn``: the state shown as the initial one, if it is not
    the first: in mode ``dropoff`` the original shows the state before the oracle's pickup.
    """
    steps = "".join(
        f"--- Step: {i} ---\nAction: {ACTIONS[action]}\nObservation:\n{picture(state)}\n\n"
        for i, (action, state) in enumerate(zip(done, states[1:], strict=True))
    )
    initial = picture(states[0] if drawn is None else drawn)
    return (
        f"--- Initial State ---\n{initial}\n\n\n\nHere is the previous path:\n{steps}"
        f"\n\n--- Current State ---\n\n{picture(states[-1])}"
    )


class TaxiSnapshot(NamedTuple):
    """A snapshot. ``states``: the first, then one after each of ``actions``; ``score``: the return so far."""

    task: int
    states: tuple[int, ...]
    actions: tuple[int, ...]
    score: float
    picked_up: bool
    ending: Ending


class Taxi:
    """The environment; copies share only immutable tables.

    ``mode``: ``pickup`` ends with the first pickup; ``dropoff`` starts after the oracle's pickup; ``full`` rewards
    both; ``none`` rewards only the delivery. The episode is cut off after ``max_turns`` actions. ``with_history`` shows
    the map after every action (``history_text``).

    The original's rewards may be negative, but ``Step.reward`` may not: it is the normalised score, 1 on success (the
    pickup in ``pickup``, else the delivery) and 0 otherwise. The original's values are in ``Step.info``:
    ``raw_reward`` of this action, ``cost`` = −``raw_reward``, ``raw_score`` = the sum of raw rewards so far (−Q₀ at the
    end), ``terminated`` and ``truncated`` as in Gym, ``delivered``. ``disaster`` means danger.
    """

    name = "taxi"
    instruction = INSTRUCTION

    def __init__(self, mode: Mode = "full", max_turns: int = MAX_TURNS, with_history: bool = False) -> None:
        """Raises: UserError: no such mode, or ``max_turns`` is below 1."""
        if mode not in get_args(Mode):
            raise UserError(f"taxi: there is no mode {mode!r}; choose one of {', '.join(get_args(Mode))}.")
        if max_turns < 1:
            raise UserError(f"taxi: max_turns must be at least 1, not {max_turns}.")
        self._mode, self._max_turns, self._with_history = mode, max_turns, with_history
        self.reset(0)

    def task_ids(self) -> Sequence[int]:
        """Indices into the 300 starts, which are ordered by Gym's state number."""
        return range(len(starts()))

    def reset(self, task_id: int) -> str:
        """Begin at a start; in mode ``dropoff``, the oracle has already driven to the passenger and picked them up.

        Raises:
            UserError: no such start.
        """
        if task_id not in self.task_ids():
            raise UserError(f"taxi: there is no start {task_id!r}; choose one from 0 to {len(starts()) - 1}.")
        state = starts()[task_id]
        if self._mode == "dropoff":
            for action in best_actions(state, until_aboard=True):
                state = moves()[state][action].state
        self._now = TaxiSnapshot(task_id, (state,), (), 0.0, False, "")
        return self.observation

    @property
    def observation(self) -> str:
        """The models' current input, up to the list of actions (``ACTION_LIST``)."""
        now = self._now
        if self._with_history:
            return history_text(now.actions, now.states, starts()[now.task])
        return state_text(now.actions, now.states[-1])

    def step(self, action: str) -> Step:
        """Act. A text that is not an action changes nothing either, and is therefore as dangerous as a wall.

        After the end of the episode, every action returns the same observation and score, at no cost.
        """
        if self._now.ending:
            return self._answer(0.0, valid=False)
        number = read_action(action)
        if number is None:
            self._now = self._now._replace(score=self._now.score + DANGER, ending="danger")
            return self._answer(DANGER, valid=False)
        reward = self._act(number)
        return self._answer(reward, valid=True)

    def _act(self, action: int) -> float:
        """Perform a legal or dangerous action and return its reward."""
        now = self._now
        state, base, delivered = moves()[now.states[-1]][action]
        reward, picked_up, ending = base / 20, now.picked_up, now.ending
        if self._mode in ("pickup", "full") and not picked_up and place(state).passenger == ABOARD:
            reward, picked_up = 1.0, True
        if state == now.states[-1]:
            reward, ending = DANGER, "danger"
        elif delivered or (self._mode == "pickup" and picked_up):
            ending = "success"
        elif len(now.actions) + 1 >= self._max_turns:
            ending = "max_turns"
        score = now.score + reward
        self._now = TaxiSnapshot(now.task, (*now.states, state), (*now.actions, action), score, picked_up, ending)
        return reward

    def _answer(self, reward: float, valid: bool) -> Step:
        now = self._now
        danger, success = now.ending == "danger", now.ending == "success"
        delivered = success and self._mode != "pickup"
        info: dict[str, Any] = {
            "raw_reward": reward,
            "cost": 0.0 - reward,
            "raw_score": now.score,
            "valid": valid,
            "disaster": danger,
            "delivered": delivered,
            "terminated": danger or delivered,
            "truncated": danger or (success and not delivered) or len(now.actions) >= self._max_turns,
        }
        return Step(self.observation, float(success), bool(now.ending), info)

    def snapshot(self) -> TaxiSnapshot:
        """Only numbers and strings; hashable."""
        return self._now

    def restore(self, snapshot: TaxiSnapshot) -> None:
        self._now = snapshot

    def valid_actions(self) -> list[str]:
        """All six in the order of their labels, because the driver must recognise dangerous ones; [] at the end."""
        return [] if self._now.ending else list(ACTIONS)

    def oracle(self) -> list[int]:
        """A shortest path to success from here, even if longer than max_turns allows; [] at the end."""
        if self._now.ending:
            return []
        return best_actions(self._now.states[-1], until_aboard=self._mode == "pickup")

    def expert(self) -> list[Move]:
        """``oracle`` with a reason for each action; [] if it needs more actions than are left."""
        actions, state, plan = self.oracle(), self._now.states[-1], []
        if len(actions) > self._max_turns - len(self._now.actions):
            return []
        for action in actions:
            plan.append(Move(thought(state, action), ACTIONS[action]))
            state = moves()[state][action].state
        return plan

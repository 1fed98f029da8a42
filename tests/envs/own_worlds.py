"""Small environments as a user would define them."""

from selfimprove.envs.interface import Problem
from selfimprove.envs.own import Answers, TextEnv
from selfimprove.envs.qa.own import Fact, Facts


class Corridor(TextEnv):
    """Doors to the left and the right of a corridor; a wrong door ends the episode."""

    instruction = "Find the door."
    actions = ("left", "right", "open")
    tasks = 3

    def begin(self, task_id: int) -> str:
        self.path: list[int] = [0]
        self.door = task_id - 1
        return "A corridor."

    def act(self, action: str) -> tuple[str, float, bool]:
        here = self.path[-1]
        if action == "open":
            return "A door.", float(here == self.door), True
        self.path.append(max(-1, min(1, here + (1 if action == "right" else -1))))
        return f"Door {self.path[-1]}.", 0.0, False


class Lavish(Corridor):
    def act(self, action: str) -> tuple[str, float, bool]:
        return "Gold.", 2.0, True


class Words(Answers):
    def demonstration(self, problem: Problem) -> str:
        return f"It is {problem.gold}"

    def extract(self, attempt: str) -> str | None:
        return attempt.split()[-1] if attempt.split() else None


class Colours(Facts):
    def facts(self) -> list[Fact]:
        return [Fact(f"Bird{i}", f"Bird{i} is of colour {i}.", f"Which colour has Bird{i}?", str(i)) for i in range(20)]

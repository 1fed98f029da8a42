"""The texts of a RISE dialogue, and how much of it a model sees (docs/rise.md, R2 to R4).

A dialogue is an *opening* (the worked example, then the problem) followed by *pairs*, each an attempt and the feedback
on it. The three protocol strings are the released code's, verbatim. The worked example is our own, and so is ``TOLD``,
for environments that carry attempts out.
"""

from collections import Counter
from collections.abc import Sequence

from selfimprove.core.records import Message
from selfimprove.envs.feedback import FAILURE, SUCCESS

PROBLEM = "Great job! You've successfully answered the question. Now, let's move on to the next one.\n{question}"
TOLD = "{told}\nThe answer is incorrect. Please try again."

EXAMPLE_QUESTION = (
    "You are an assistant for mathematics. Work through the problem one step at a time, and finish your solution "
    "with \\boxed{Your Answer}.\n"
    "A florist has 9 red tulips and twice as many yellow ones. She sells 10 of them in the morning. How many tulips "
    "does she have left?"
)
EXAMPLE_ANSWER = (
    "Step 1: There are 2 * 9 = 18 yellow tulips.\n"
    "Step 2: Red and yellow together make 9 + 18 = 27 tulips.\n"
    "Step 3: After the sale 27 - 10 = 17 tulips are left.\n"
    "The answer is \\boxed{17}."
)

Exchange = tuple[Message, Message]
"""An attempt (assistant) and the feedback on it (user)."""


def opening(question: str, few_shot: bool = True) -> list[Message]:
    """The messages before the first attempt: the worked example if ``few_shot``, then the problem."""
    problem = Message(role="user", content=PROBLEM.format_map({"question": question}))
    if not few_shot:
        return [problem]
    return [Message(role="user", content=EXAMPLE_QUESTION), Message(role="assistant", content=EXAMPLE_ANSWER), problem]


def feedback(reward: float | None, question: str, *, forced_negative: bool = False, told: str | None = None) -> str:
    """The feedback on an attempt: success if the reward is 1, otherwise failure (for wrong and unparsable answers).

    Args:
        forced_negative: evaluation without an oracle: correct attempts are called incorrect too.
        told: the outcome of an attempt that the environment carried out, which replaces the repeated question.
    """
    if reward == 1 and not forced_negative:
        return SUCCESS
    if told is not None:
        return TOLD.format_map({"told": told})
    return FAILURE.format_map({"question": question})


def visible(opening: Sequence[Message], pairs: Sequence[Exchange], window: int | None = None) -> list[Message]:
    """The prompt of the next turn with a window of ``window`` turns, the current one included (None: all turns).

    At turn t (0-based, t = len(pairs)): the opening, then the last min(t, window - 1) pairs. A window of 1 shows no
    earlier attempt; in the released code it showed all of them.

    Raises:
        ValueError: ``window`` is below 1.
    """
    if window is not None and window < 1:
        raise ValueError(f"the context window must be at least 1 turn, not {window}")
    first = 0 if window is None else max(0, len(pairs) - (window - 1))
    return [*opening, *(message for pair in pairs[first:] for message in pair)]


def limit_dialogue(messages: Sequence[Message], opening: int, limit: int) -> list[Message]:
    """Keep at most ``limit`` messages after the worked example by dropping whole pairs, the oldest first.

    ``opening`` is the number of messages before the first attempt (3 with the worked example, otherwise 1). The problem
    message counts towards ``limit`` and is never dropped. Roles alternate for every limit. (In the released code an
    even limit left an assistant message first.)

    Raises:
        ValueError: ``limit`` is below 1, or the opening is not followed by whole pairs.
    """
    if limit < 1:
        raise ValueError(f"the dialogue limit must be at least 1 message, not {limit}")
    rest = list(messages[opening:])
    if len(rest) % 2:
        raise ValueError("the messages after the opening must be complete (attempt, feedback) pairs")
    kept = 2 * ((limit - 1) // 2)
    return [*messages[:opening], *rest[max(0, len(rest) - kept) :]]


def degenerate(text: str, *, repeats: int = 150, longest: int = 300) -> bool:
    """Whether a lower-cased, whitespace-separated token of an attempt occurs more than ``repeats`` times or is longer
    than ``longest`` characters."""
    counts = Counter(text.lower().split())
    return any(count > repeats or len(token) > longest for token, count in counts.items())

"""Replays a revision trajectory in the environment and keeps it only if it still succeeds (docs/agent-r.md, A23).

A spliced conversation combines observations of two episodes, although after the bad steps the environment is not in the
state where the good path continued. With ``validate_splice: replay`` the bad steps, the revision turn (``wait``, which
changes nothing) and the good steps are executed in one episode, with fresh observations.
"""

from collections.abc import Callable, Sequence

from selfimprove.core.records import Message
from selfimprove.envs.interface import World
from selfimprove.methods.agent_r.acting import act, begin
from selfimprove.methods.agent_r.prompts import OPENING
from selfimprove.methods.agent_r.tree import Tree


async def replay(
    tree: Tree,
    trajectory: Sequence[Message],
    world: World,
    good_enough: Callable[[float], bool],
    actions: Sequence[str] = (),
) -> list[Message] | None:
    """The trajectory with the observations of a fresh episode; None if its score there is too low.

    If the episode ends among the good steps, so does the trajectory. If it ends before the first good step, nothing is
    left to train on and the result is None.

    Args:
        tree: the tree of the task; replies given before its root are executed first.
        trajectory: from ``revise.splice``: the tree's prompt, then (reply, observation) pairs.
        good_enough: whether a final score in [0, 1] is above alpha.
        actions: the action that each reply of the trajectory had in the tree; if empty, the replies are parsed.

    Raises:
        EnvError, UserError: as ``World.step``.
    """
    given = [message.content for message in tree.prompt[OPENING::2]]
    fresh, states = await begin(world, tree.task_id, given)
    for here in states[1:]:
        fresh += here.messages
    here, trained = states[-1], 0
    for place, said in enumerate(trajectory[len(tree.prompt) :: 2]):
        if here.done:
            break
        here = await act(world, here, said.content, actions[place] if actions else None)
        fresh += [said, Message(role="user", content=here.observation)]
        trained += bool(said.weight)
    return fresh if trained > 1 and good_enough(here.reward) else None

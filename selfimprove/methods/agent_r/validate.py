"""Replays a revision trajectory in the environment and keeps it only if it still succeeds (docs/agent-r.md, A23).

A spliced conversation joins observations of two episodes: after the bad steps the environment is not where the good
path left off. Here (``validate_splice: replay``) the bad steps, the revision turn (``wait``, which changes
nothing) and the good steps are played in one episode, with fresh observations.
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

    An episode that ends among the good steps ends the trajectory; one that ends before the revision turn's answer
    leaves nothing to train on.

    Args:
        tree: whose task it is; replies given before its root are given again.
        trajectory: of ``revise.splice``: the tree's prompt, then (reply, observation) pairs.
        good_enough: whether a final score in [0, 1] is above alpha.
        actions: what each of the trajectory's replies did in the tree; none: as the replies are read.

    Raises:
        EnvError, UserError: as ``World.step``.
    """
    given = [message.content for message in tree.prompt[OPENING::2]]
    fresh, states = await begin(world, tree.task_id, given)
    for here in states[1:]:
        fresh += [Message(role="assistant", content=here.reply), Message(role="user", content=here.observation)]
    here, trained = states[-1], 0
    for place, said in enumerate(trajectory[len(tree.prompt) :: 2]):
        if here.done:
            break
        here = await act(world, here, said.content, actions[place] if actions else None)
        fresh += [said, Message(role="user", content=here.observation)]
        trained += bool(said.weight)
    return fresh if trained > 1 and good_enough(here.reward) else None

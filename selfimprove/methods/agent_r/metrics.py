"""Metrics of Agent-R's evaluation, its revision evaluation, and a collection of trees (docs/agent-r.md, A31 and A32).

=================  ================================================================================================
score              the main metric: last score of an episode, in [0, 1], times 100
success            share of episodes whose last score is the maximum
steps              number of the policy's actions (not those given to it), including ``wait``
invalid            share of those actions that the environment did not understand or could not execute
repeated           share of those actions that equal the previous one; ``repeated_runs``: runs by length;
                   ``repeated_blocks``: runs of blocks of 1 to 4 actions (A B A B) by block length and repetitions
revised            share of episodes with a revision turn; ``revisions``: number of revision turns per episode
revision_length    actions from the start of the bad segment to its revision turn; ``revision_lengths``: histogram
shortened_prompts  share of turns whose prompt left out earlier messages that did not fit the context;
                   ``cut_completions``: share that reached ``max_tokens`` (both include given bad beginnings)
revision_score …   the same metrics for episodes that continue from a given bad beginning (the paper's Table 3)
=================  ================================================================================================

A bad segment starts with the given beginning, with the episode, or after the previous revision turn. (The paper's
captions name these metrics; the exact formulas are ours.) Success is a normalised score of 1; AgentGym's evaluator
compares with "1 or 100" and fails on arrays. A blocked episode keeps its last score and is not a success.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any

from selfimprove.core.outcomes import Estimate, Outcome, average, ratio
from selfimprove.core.records import Episode, Turn, mean_and_error
from selfimprove.envs.params import TextParams
from selfimprove.envs.registry import named
from selfimprove.methods.agent_r.acting import task_of
from selfimprove.methods.agent_r.play import GIVEN
from selfimprove.methods.agent_r.reply import WAIT
from selfimprove.methods.agent_r.selection import ranked_leaves
from selfimprove.methods.agent_r.tree import Tree
from selfimprove.methods.omissions import cut_completions, shortened_prompts

AVERAGED = ("score", "success", "steps", "revised")
"""Metrics that are also reported by environment and averaged over the environments."""


def own_turns(episode: Episode) -> list[Turn]:
    """The policy's turns, without those of a given beginning."""
    return [turn for turn in episode.turns if turn.model != GIVEN]


def final_score(episode: Episode) -> float:
    """The last score, in [0, 1]; 0 if nothing was scored. A negative score is a disaster and counts as 0."""
    return max(0.0, episode.rewards[-1]) if episode.rewards else 0.0


def is_success(episode: Episode) -> bool:
    """Whether the last score is the maximum."""
    return episode.status != "blocked" and final_score(episode) == 1


def outcome(episode: Episode, prefix: str = "") -> Outcome:
    """One episode's values of the averaged metrics, with ``prefix`` added to their names."""
    turns = own_turns(episode)
    values = {
        "score": 100 * final_score(episode),
        "success": float(is_success(episode)),
        "steps": float(len(turns)),
        "invalid_actions": float(sum(not turn.attempt.valid for turn in turns)),
        "revised": float(any(_is_revision(turn) for turn in turns)),
        "revisions": float(sum(_is_revision(turn) for turn in turns)),
    }
    return Outcome(id=episode.id, values={prefix + name: value for name, value in values.items()})


def outcomes(played: Iterable[Episode], revised: Iterable[Episode] = ()) -> list[Outcome]:
    """Every episode's outcome, for paired tests; those from given bad beginnings are named ``revision_…``."""
    return [*(outcome(episode) for episode in played), *(outcome(episode, "revision_") for episode in revised)]


def evaluate_metrics(played: Sequence[Episode], revised: Sequence[Episode] = ()) -> dict[str, Any]:
    """Every metric as {mean, se, n}, histograms as {length: count}; see the module's docstring.

    With several environments, ``environments`` contains the metrics of each and ``average`` their mean over the
    environments. All other metrics are over all episodes.
    """
    metrics: dict[str, Any] = dict(average(outcomes(played, revised)))
    metrics |= _rates(played)
    if revised:
        metrics |= {f"revision_{name}": metric for name, metric in _rates(revised).items()}
    everything = [*played, *revised]
    lengths = [length for episode in everything for length in revision_lengths(episode)]
    metrics["revision_length"] = mean_and_error(map(float, lengths))
    metrics["revision_lengths"] = _histogram(lengths)
    metrics["blocked"] = mean_and_error(float(episode.status == "blocked") for episode in everything)
    metrics["shortened_prompts"] = shortened_prompts(everything)
    metrics["cut_completions"] = cut_completions(everything)
    names = sorted({episode.env for episode in played})
    if len(names) > 1:
        by_env = {name: _of_environment(played, name) for name in names}
        metrics["environments"] = by_env
        metrics["average"] = {key: over_environments([by_env[name][key] for name in names]) for key in AVERAGED}
    return metrics


def over_environments(metrics: Sequence[Estimate]) -> Estimate:
    """The unweighted mean of independent means, as in the paper's column Avg; n is the total number of episodes."""
    if not metrics:
        return {"mean": 0.0, "se": 0.0, "n": 0}
    k = len(metrics)
    return {
        "mean": math.fsum(metric["mean"] for metric in metrics) / k,
        "se": math.sqrt(math.fsum(metric["se"] ** 2 for metric in metrics)) / k,
        "n": int(sum(metric["n"] for metric in metrics)),
    }


def repeated_runs(actions: Sequence[str]) -> list[int]:
    """Lengths of the runs of two or more equal consecutive actions, in order."""
    return [n for n in (sum(1 for _ in run) for _, run in groupby(actions)) if n > 1]


LONGEST_BLOCK = 4
"""Length in actions of the longest block whose repetition is counted."""


def repeated_blocks(actions: Sequence[str], longest: int = LONGEST_BLOCK) -> dict[int, list[int]]:
    """Loops: for each block length from 1 to ``longest``, the number of repetitions of every run, in order.

    A run is two or more consecutive copies of a block of actions: ``A B A B A B`` is one run of three blocks of length
    2. A block that itself repeats a shorter one (``A A``, ``A B A B``) is not counted, as its run is counted at the
    shorter length. Runs start as early and extend as far as possible; an incomplete copy at the end does not count.
    """
    found: dict[int, list[int]] = {length: [] for length in range(1, longest + 1)}
    for length in found:
        start = 0
        while start + 2 * length <= len(actions):
            block = list(actions[start : start + length])
            copies = 1
            while list(actions[start + copies * length : start + (copies + 1) * length]) == block:
                copies += 1
            if copies > 1 and not _repeats(block):
                found[length].append(copies)
                start += copies * length
            else:
                start += 1
    return found


def _repeats(block: Sequence[str]) -> bool:
    """Whether a block consists of two or more copies of a shorter one."""
    sizes = (size for size in range(1, len(block)) if len(block) % size == 0)
    return any(list(block[:size]) * (len(block) // size) == list(block) for size in sizes)


def revision_lengths(episode: Episode) -> list[int]:
    """For each of the policy's revision turns, the number of actions in its bad segment.

    A revision turn directly after another one corrects nothing and is skipped.
    """
    lengths, segment = [], 0
    for turn in episode.turns:
        if turn.model != GIVEN and _is_revision(turn):
            if segment:
                lengths.append(segment)
            segment = 0
        else:
            segment += 1
    return lengths


def search_metrics(trees: Sequence[Tree], diverged: int = 0) -> dict[str, Any]:
    """Metrics of a collection.

    ``solved``: trees with a node of score 1; ``best``: score of a tree's best leaf; ``leaf_score``: score of a leaf;
    ``cut``: share of leaves due to the depth bound; ``invalid``: share of nodes whose action was not understood or not
    possible; ``duplicates``: share of samples that repeat a sibling; ``diverged``: number of replays whose observations
    differed from the first time, as counted by the world (the trees then mix different worlds); ``shortened_prompts``
    and ``cut_completions``: shares of nodes, see ``methods.omissions``.
    """
    leaves = [[tree.nodes[leaf] for leaf in ranked_leaves(tree)] for tree in trees]
    nodes = [tree.nodes[1:] for tree in trees]  # without the root
    return {
        "trees": len(trees),
        "blocked": sum(tree.status == "blocked" for tree in trees),
        "diverged": diverged,
        "nodes": sum(map(len, nodes)),
        "leaves": sum(map(len, leaves)),
        "dives": sum(tree.dives for tree in trees),
        "solved": mean_and_error(float(tree.status == "solved") for tree in trees),
        "best": mean_and_error(max((leaf.reward for leaf in found), default=0.0) for found in leaves),
        "leaf_score": mean_and_error(leaf.reward for found in leaves for leaf in found),
        "cut": ratio((sum(not leaf.done for leaf in found), len(found)) for found in leaves),
        "disasters": sum(node.disaster for tree in trees for node in tree.nodes),
        "invalid": ratio((sum(not node.valid for node in grown), len(grown)) for grown in nodes),
        "duplicates": ratio(
            (tree.duplicates, tree.duplicates + len(grown)) for tree, grown in zip(trees, nodes, strict=True)
        ),
        "shortened_prompts": ratio((sum(node.omitted > 0 for node in grown), len(grown)) for grown in nodes),
        "cut_completions": ratio((sum(node.finish == "length" for node in grown), len(grown)) for grown in nodes),
    }


def eval_row(episode: Episode, model_name: str) -> dict[str, Any]:
    """One task in the original's result schema, with ``env_score`` on the environment's own scale.

    ``step_num`` is the number of the policy's steps; ``state`` contains the messages up to the last observation.

    Raises:
        UserError: the episode's id is not in Agent-R's format.
    """
    state = [{"role": message.role, "content": message.content} for message in episode.prompt]
    for turn in episode.turns:
        state.append({"role": "assistant", "content": turn.attempt.text})
        state.append({"role": "user", "content": turn.observation})
    score, best = final_score(episode), named(TextParams).get(episode.env, TextParams).best
    return {
        "task_id": str(task_of(episode.id)[0]),  # text, as in the original
        "env_score": score if best == 1 else round(score * best, 6),  # 0.29 * 100 is 28.999999999999996
        "model_name": model_name,
        "step_num": len(own_turns(episode)),
        "state": state,
    }


def _rates(episodes: Sequence[Episode]) -> dict[str, Any]:
    """Shares of invalid and repeated actions, and histograms of repetitions."""
    actions = [[_action(turn) for turn in own_turns(episode)] for episode in episodes]
    return {
        "invalid": ratio(
            (sum(not turn.attempt.valid for turn in own_turns(episode)), len(own_turns(episode)))
            for episode in episodes
        ),
        "repeated": ratio((sum(a == b for a, b in pairwise(said)), len(said)) for said in actions),
        "repeated_runs": _histogram(length for said in actions for length in repeated_runs(said)),
        "repeated_blocks": {
            str(length): _histogram(copies for said in actions for copies in repeated_blocks(said)[length])
            for length in range(1, LONGEST_BLOCK + 1)
        },
    }


def _of_environment(episodes: Sequence[Episode], name: str) -> dict[str, Estimate]:
    mine = [episode for episode in episodes if episode.env == name]
    metrics = average(outcomes(mine))
    return {**{key: metrics[key] for key in AVERAGED}, "invalid": _rates(mine)["invalid"]}


def _action(turn: Turn) -> str:
    return turn.attempt.text if turn.attempt.answer is None else turn.attempt.answer


def _is_revision(turn: Turn) -> bool:
    return _action(turn) == WAIT


def _histogram(lengths: Iterable[int]) -> dict[str, int]:
    return {str(length): count for length, count in sorted(Counter(lengths).items())}

"""Converts search trees to training conversations: select, judge, splice, validate, mix (docs/agent-r.md, A16 to A26).

``data_type: good`` keeps only good trajectories. ``centric`` combines the revision trajectories of all qualifying pairs
with good trajectories in the proportions given by ``mix``. A bad path is cut at the judge's transition point
(``revise: true``) or kept whole (``false``, direct revision). Trees of several environments may be converted together.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import ratio
from selfimprove.core.records import Example, Message, mean_and_error
from selfimprove.core.seeds import rng
from selfimprove.engines.base import EngineError
from selfimprove.engines.episodes import play_all
from selfimprove.engines.progress import StageProgress
from selfimprove.envs.interface import EnvError, World
from selfimprove.methods.agent_r.formats import good_row, pair_row
from selfimprove.methods.agent_r.judge import Judge, Transition, transition_point
from selfimprove.methods.agent_r.judge_prompt import VERDICTS, Judgement
from selfimprove.methods.agent_r.mixing import GENERAL_OFF, mixed
from selfimprove.methods.agent_r.params import ConvertParams
from selfimprove.methods.agent_r.revise import branch_point, choose_thought, splice, spliced_actions, whole
from selfimprove.methods.agent_r.selection import Counts, LeafPair, Selection, is_good, nothing_kept, select_all
from selfimprove.methods.agent_r.tree import Tree
from selfimprove.methods.agent_r.validate import replay


@dataclass(frozen=True)
class Converted:
    """The training data and their sources.

    ``examples``: all examples, shuffled, including earlier iterations' if they accumulate; ``own``: those of this
    conversion, after mixing; ``rows``: one log line per own trajectory, in the original's schema; ``warnings``: for the
    user; ``failed``: (source, cause) of the revision trajectories that the judge's engine or the environment failed.
    """

    examples: list[Example]
    own: list[Example]
    stats: dict[str, Any]
    rows: list[dict[str, Any]]
    warnings: list[str]
    failed: list[tuple[str, str]]


@dataclass(frozen=True)
class Revision:
    """The revision trajectory of one pair. If it was dropped, ``messages`` is empty and ``why`` gives the reason."""

    tree: Tree
    pair: LeafPair
    transition: Transition
    messages: list[Message]
    why: str = ""

    @property
    def source(self) -> str:
        """Names the tree and the two leaves."""
        return f"{self.tree.id}:{self.pair.bad}>{self.pair.good}"


async def convert(
    trees: Sequence[Tree],
    judge: Judge | None,
    world: World | Mapping[str, World] | None,
    cfg: ConvertParams,
    seed: int,
    earlier: Sequence[Example] = (),
    *,
    warm_start: Sequence[Example] = (),
    progress: StageProgress | None = None,
) -> Converted:
    """The whole conversion. The result does not depend on concurrency or on the order in which judgements arrive.

    Args:
        trees: from one or several environments and files.
        judge: finds the transition points; None if no judge is needed (``good``, direct revision).
        world: for ``validate_splice: replay``, one world or a mapping from environment name to world.
        earlier: the parent iterations' examples, used if ``cfg.accumulate``.
        warm_start: the base's training examples, for ``cfg.mix.warm_start``.
        progress: advanced once for each pair.

    Raises:
        UserError: the thresholds keep nothing (with the numbers of trees, leaves and pairs), or as ``mixed``.
    """
    selections, counts = select_all(trees, cfg, seed)
    good = [(tree, leaf) for tree, selection in zip(trees, selections, strict=True) for leaf in selection.good]
    asked = _Asked(judge)
    revisions: list[Revision] = []
    if cfg.data_type == "centric":
        revisions = await _revise_all(trees, selections, asked, world, cfg, seed, progress)
    kept = [revision for revision in revisions if revision.messages]
    kinds = mixed(
        [_example(revision.messages, revision.source) for revision in kept],
        [_example(whole(tree, tree.path(leaf)), f"{tree.id}:{leaf}") for tree, leaf in good],
        cfg.mix,
        seed,
        warm_start,
    )
    own = [
        example.model_copy(update={"id": f"{kind}_{i}"})
        for kind, group in kinds.items()
        for i, example in enumerate(group)
    ]
    used = [*(earlier if cfg.accumulate else ()), *own]
    if not used:
        raise _nothing(counts, cfg, revisions)
    examples = list(used)
    rng("convert", seed).shuffle(examples)
    stats = {
        **asdict(counts),
        "examples": len(examples),
        "earlier_examples": len(used) - len(own),
        **{f"{kind}_examples": len(group) for kind, group in kinds.items()},
        **_by_environment(trees, revisions, good),
        **(_revision_figures(revisions, asked, cfg) if cfg.data_type == "centric" else {}),
    }
    failed = [(one.source, one.why) for one in revisions if one.why.startswith(("judge", "environment"))]
    return Converted(examples, own, stats, _rows(good, kept, cfg), [] if cfg.mix.general else [GENERAL_OFF], failed)


def _rows(good: Sequence[tuple[Tree, int]], kept: Sequence[Revision], cfg: ConvertParams) -> list[dict[str, Any]]:
    """One log line per own trajectory, in the original's schema."""
    if cfg.data_type == "good":
        return [good_row(tree, leaf, revise=cfg.revise) for tree, leaf in good]
    return [
        pair_row(one.tree, one.pair, one.transition.path, one.transition.judgements, one.messages, revise=cfg.revise)
        for one in kept
    ]


class _Asked:
    """Calls the judge once per node: a judgement depends only on the path to the node, which many pairs share."""

    def __init__(self, judge: Judge | None) -> None:
        self.judge = judge
        self.heard: dict[tuple[int, int], asyncio.Future[Judgement]] = {}

    async def __call__(self, place: int, tree: Tree, index: int) -> Judgement:
        """The judgement of a node of the ``place``-th tree (two files may contain trees with the same id)."""
        if self.judge is None:
            raise ValueError("convert: revision with transition points needs a judge")
        known = self.heard.get((place, index))
        if known is not None:
            return await asyncio.shield(known)
        future = self.heard[place, index] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(await self.judge(tree, index))
        except Exception as error:
            future.set_exception(error)
            future.exception()  # mark it as retrieved: no other task may be waiting for it
            raise
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def judgements(self) -> list[Judgement]:
        """All distinct judgements, by tree and node."""
        done = [self.heard[key] for key in sorted(self.heard)]
        return [future.result() for future in done if not future.cancelled() and future.exception() is None]


async def _revise_all(
    trees: Sequence[Tree],
    selections: Sequence[Selection],
    asked: _Asked,
    world: World | Mapping[str, World] | None,
    cfg: ConvertParams,
    seed: int,
    progress: StageProgress | None,
) -> list[Revision]:
    """The revision trajectory of every pair, in order."""
    pairs = [(i, pair) for i, selection in enumerate(selections) for pair in selection.pairs]

    async def one(job: tuple[int, LeafPair]) -> Revision:
        return await _revise(trees[job[0]], job[0], job[1], asked, world, cfg, seed)

    if progress:
        progress.reach(0, len(pairs))
    return list(await play_all(pairs, one, concurrency=cfg.concurrency, progress=progress))


async def _revise(
    tree: Tree,
    place: int,
    pair: LeafPair,
    asked: _Asked,
    world: World | Mapping[str, World] | None,
    cfg: ConvertParams,
    seed: int,
) -> Revision:
    good, bad = tree.path(pair.good), tree.path(pair.bad)
    transition = Transition(bad, [], False)
    try:
        if cfg.revise:
            transition = await transition_point(bad, branch_point(good, bad), lambda index: asked(place, tree, index))
    except EngineError as error:
        return Revision(tree, pair, transition, [], f"judge: {error}")
    thought = choose_thought(seed, tree.seed, tree.id, pair.good, pair.bad)
    messages = splice(tree, good, transition.path, thought)
    if cfg.validate_splice == "none":
        return Revision(tree, pair, transition, messages)
    try:
        actions = spliced_actions(tree, good, transition.path)
        played = await replay(tree, messages, _world_of(world, tree.env), lambda score: is_good(score, cfg), actions)
    except EnvError as error:
        return Revision(tree, pair, transition, [], f"environment: {error}")
    return Revision(tree, pair, transition, played or [], "" if played else "replay")


def _world_of(world: World | Mapping[str, World] | None, env: str) -> World:
    found = world.get(env) if isinstance(world, Mapping) else world
    if found is None:
        raise UserError(f"convert.validate_splice is replay, but environment {env} is not available for it; set none.")
    return found


def _example(messages: Sequence[Message], source: str) -> Example:
    """The messages up to the last reply. The last observation is not trained on and would only cost tokens."""
    last = max(i for i, message in enumerate(messages) if message.role == "assistant")
    return Example(id="", messages=list(messages[: last + 1]), source=source)


def _nothing(counts: Counts, cfg: ConvertParams, revisions: Sequence[Revision]) -> UserError:
    dropped = Counter(revision.why.partition(":")[0] for revision in revisions if revision.why)
    if dropped and sum(dropped.values()) == len(revisions):
        causes = ", ".join(f"{n} by the {why}" for why, n in sorted(dropped.items()))
        return UserError(
            f"convert: nothing to train on: all {len(revisions)} revision trajectories were dropped ({causes}), of "
            f"{counts.trees} trees and {counts.leaves} leaves; raise convert.mix.good or fix the cause."
        )
    kept, mix = len(revisions) - sum(dropped.values()), cfg.mix
    if kept or (counts.good_leaves and (cfg.data_type == "good" or mix.good or not mix.revision)):
        found = f"{counts.good_leaves} good trajectories have weight {mix.good:g} (convert.mix.good)"
        if kept:
            found = f"{kept} revision trajectories have weight {mix.revision:g} (convert.mix.revision), and {found}"
        return UserError(
            f"convert: nothing to train on, because convert.mix excludes all data: {found}; raise "
            f"{'one of them' if kept else 'it'} (1 includes everything)."
        )
    return nothing_kept(counts, cfg)


def _by_environment(
    trees: Sequence[Tree], revisions: Sequence[Revision], good: Sequence[tuple[Tree, int]]
) -> dict[str, Any]:
    """Trees, good leaves and revision trajectories by environment; empty if there is only one environment."""
    names = sorted({tree.env for tree in trees})
    if len(names) < 2:
        return {}
    return {
        "environments": {
            name: {
                "trees": sum(tree.env == name for tree in trees),
                "good_leaves": sum(tree.env == name for tree, _ in good),
                "revisions": sum(one.tree.env == name and bool(one.messages) for one in revisions),
            }
            for name in names
        }
    }


def _revision_figures(revisions: Sequence[Revision], asked: _Asked, cfg: ConvertParams) -> dict[str, Any]:
    """Statistics of the bad segments, the judge and the replay.

    ``revision_length``: number of actions from the first that differs from the good path to the revision turn.
    ``transition_found``: share of judged pairs with a step judged bad.
    """
    kept = [one for one in revisions if one.messages]
    walked = [one for one in revisions if not one.why.startswith("judge")]
    lengths = [
        len(one.transition.path) - branch_point(one.tree.path(one.pair.good), one.transition.path) for one in kept
    ]
    metrics: dict[str, Any] = {
        "revision_length": mean_and_error(map(float, lengths)),
        "revision_lengths": {str(length): n for length, n in sorted(Counter(lengths).items())},
    }
    if cfg.revise:
        heard = asked.judgements()
        verdicts = Counter(judgement.verdict for judgement in heard)
        metrics |= {
            "judged": len(heard),
            "verdicts": {verdict: verdicts[verdict] for verdict in VERDICTS},
            "unparsable": ratio((int(not judgement.parsed), 1) for judgement in heard),
            "shortened_judgements": ratio((int(judgement.omitted > 0), 1) for judgement in heard),
            "transition_found": ratio((int(one.transition.found), 1) for one in walked),
            "dropped_by_judge": len(revisions) - len(walked),
        }
    if cfg.validate_splice == "replay":
        metrics["replay_kept"] = ratio((int(bool(one.messages)), 1) for one in walked)
        metrics["dropped_by_environment"] = sum(one.why.startswith("environment") for one in walked)
    return metrics

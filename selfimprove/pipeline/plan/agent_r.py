"""Counts Agent-R's requests and training tokens for ``make plan``."""

from selfimprove.engines.config import ScriptedEngineConfig
from selfimprove.methods.agent_r.params import AgentRParams, ConvertParams, SearchParams
from selfimprove.methods.rows import BASE
from selfimprove.pipeline.plan.work import Calls, Work, ask, grow, iterated

OPENING, OBSERVATION = 1536, 512
NOTES = (
    f"Assumed lengths: instruction and first observation at most {OPENING} tokens, an observation {OBSERVATION}.",
    "A dive is assumed to end in n_gen leaves; half of a tree's leaves are good, each paired with each of the others.",
    "Every conversation is assumed to have max_length tokens.",
)


def works(agent_r: AgentRParams) -> list[Work]:
    """The stages that use a model or write an iteration's data, in dvc.yaml's order."""
    tasks = agent_r.tasks
    demonstrated = tasks.demonstrations * tasks.layouts + tasks.revision_demonstrations + tasks.judge_examples
    collected, controls = {BASE: 0}, {BASE: 0}

    def iteration(key: str) -> tuple[list[Work], int]:
        row = agent_r.iterations[key]
        trees = _trees(agent_r, row.generate)
        own, direct, good = (
            _examples(trees, row.generate, row.convert.model_copy(update=kind))
            for kind in ({}, {"data_type": "centric"}, {"data_type": "good"})
        )
        collected[key] = collected.get(row.init, 0) + own
        controls[key] = controls.get(row.init, 0) + direct + good
        used = collected[key] if row.convert.accumulate else own
        # ``own`` is also in the log of the conversion.
        data = (used + own + collected[key] + controls[key]) * agent_r.rows[key].train.max_length
        found = [
            Work(f"agent_r-generate@{key}", _search(agent_r, row.generate)),
            Work(f"agent_r-convert@{key}", _judgements(agent_r, row.generate, row.convert), data=data),
        ]
        return found, used

    found = iterated("agent_r", agent_r, demonstrated, iteration, _evaluation(agent_r))
    found.insert(2, Work("agent_r-beginnings", _beginnings(agent_r)))  # played by the base before its evaluation
    return found


def _trees(agent_r: AgentRParams, cfg: SearchParams) -> int:
    return min(cfg.tasks, cfg.limit or cfg.tasks, agent_r.tasks.train)


def _search(agent_r: AgentRParams, cfg: SearchParams) -> tuple[Calls, ...]:
    """A dive expands at most ``max_depth + 1`` nodes, each with one request for ``n_gen`` samples."""
    if isinstance(agent_r.engines[cfg.engine], ScriptedEngineConfig):
        return ()
    dives = _trees(agent_r, cfg) * cfg.dives
    return (
        grow(
            agent_r.engines, cfg.engine, dives, cfg.max_depth + 1, OPENING, OBSERVATION, cfg.max_tokens,
            at_once=min(cfg.concurrency, _trees(agent_r, cfg)), samples=cfg.n_gen,
        ),
    )  # fmt: skip


def _judgements(agent_r: AgentRParams, search: SearchParams, cfg: ConvertParams) -> tuple[Calls, ...]:
    """The actor judges each node of a bad path once; at most these are the nodes of a dive's path and its leaves."""
    if not (cfg.judge == "actor" and cfg.revise and cfg.data_type == "centric"):
        return ()
    nodes = _trees(agent_r, search) * search.dives * (search.max_depth + search.n_gen)
    longest = OPENING + search.max_depth * (search.max_tokens + OBSERVATION)
    return (ask(agent_r.engines, "actor", nodes, longest, cfg.judge_max_tokens, at_once=cfg.concurrency),)


def _examples(trees: int, search: SearchParams, cfg: ConvertParams) -> int:
    """Number of revision trajectories (from pairs of leaves), good trajectories and mixed-in examples."""
    leaves = search.dives * search.n_gen
    half = (leaves + 1) // 2
    pairs = min(half * (leaves - half), cfg.max_pairs_per_tree or half * (leaves - half))
    revisions = pairs * cfg.mix.revision if cfg.data_type == "centric" else 0
    agent = trees * (revisions + half * cfg.mix.good)
    return round(agent * (1 + cfg.mix.general + cfg.mix.warm_start))


def _beginnings(agent_r: AgentRParams) -> tuple[Calls, ...]:
    """The base plays the split to collect its failures, unless a file of beginnings is given."""
    cfg = agent_r.evaluate
    return _games(agent_r, _tasks(agent_r)) if cfg.revision and not cfg.beginnings else ()


def _evaluation(agent_r: AgentRParams) -> tuple[Calls, ...]:
    """Episodes from the start of each task and from the beginnings."""
    cfg, tasks = agent_r.evaluate, _tasks(agent_r)
    return _games(agent_r, tasks + (min(tasks, cfg.revision_tasks or tasks) if cfg.revision else 0))


def _tasks(agent_r: AgentRParams) -> int:
    cfg = agent_r.evaluate
    tasks: int = getattr(agent_r.tasks, cfg.split)
    return min(tasks, cfg.limit or tasks)


def _games(agent_r: AgentRParams, games: int) -> tuple[Calls, ...]:
    cfg = agent_r.evaluate
    return (
        grow(
            agent_r.engines, "actor", games, cfg.max_turns, OPENING, OBSERVATION, cfg.max_tokens,
            at_once=cfg.concurrency,
        ),
    )  # fmt: skip

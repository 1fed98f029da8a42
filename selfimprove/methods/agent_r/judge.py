"""Finds the transition point, the first wrong step of a bad path, with a judge (docs/agent-r.md, A17 to A20).

``ActorJudge`` asks the actor model itself about one action at a time. ``ScriptedJudge`` uses the environment's expert,
which knows how many actions remain to the goal. An action that reduces this number is good. One that increases it,
makes the goal unreachable or is refused by the environment is bad. One that leaves it unchanged is uncertain ::

    plan 5 -> 4   get 2 oak log                    Good
    plan 4 -> 4   inventory                        Uncertain
    plan 4 -> 4   craft 9 stick using 1 stone      Bad, refused
    plan 4 -> 7   craft 1 boat using 5 oak planks  Bad, the planks were needed

A small model learns to judge from such verdicts in its warm start (``judge_examples``).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from selfimprove.core.records import Example, Message
from selfimprove.core.seeds import SeedKey, key_bits, rng
from selfimprove.engines.base import Engine, Request
from selfimprove.envs.interface import AgentEnv, name_of
from selfimprove.methods.agent_r.judge_prompt import (
    VERDICTS,
    Did,
    Judgement,
    Verdict,
    answer,
    judge_prompt,
    judgement_of,
)
from selfimprove.methods.agent_r.params import ConvertParams, JudgeStyle
from selfimprove.methods.agent_r.prompts import OPENING
from selfimprove.methods.agent_r.reply import WAIT, WAITED, clean_observation, parse_action
from selfimprove.methods.agent_r.tree import Tree

Judge = Callable[[Tree, int], Awaitable[Judgement]]
"""(tree, node) -> the judgement of that node's action, which depends only on the path to the node."""

SLIP = 0.5
"""Probability that a step of a judged walk leaves the expert's path."""
LONGEST = 30
"""Maximum number of steps of a judged walk."""

_REFUSED = "The environment refused it."
_REASONS: dict[Verdict, str] = {
    "good": "It leaves fewer steps to the goal.",
    "bad": "It leads away from the goal.",
    "uncertain": "It neither helps nor harms.",
}


@dataclass(frozen=True)
class Transition:
    """A bad path up to its first bad step. If ``found`` is false, no step was judged bad and the path is complete.

    ``judgements``: of every step walked, in order, including the steps shared with the good path.
    """

    path: list[int]
    judgements: list[Judgement]
    found: bool


async def transition_point(
    bad_path: Sequence[int], branch: int, judge: Callable[[int], Awaitable[Judgement]]
) -> Transition:
    """Walk a bad path from its first action and stop after its first bad step, which is kept.

    Good and uncertain steps are passed over. The first ``branch`` steps are shared with the good path. Their verdicts
    are kept but do not end the walk, because the "error" would be a step of the good path (the original emits such
    samples). If no step is bad, the whole path is returned.

    Args:
        bad_path: node indices from the first action on.
        branch: number of steps shared with the good path.
        judge: node index -> judgement.
    """
    judgements = []
    for place, index in enumerate(bad_path):
        judgements.append(await judge(index))
        if judgements[-1].verdict == "bad" and place >= branch:
            return Transition(list(bad_path[: place + 1]), judgements, True)
    return Transition(list(bad_path), judgements, False)


def history_of(tree: Tree, index: int) -> tuple[str, list[Did], Did]:
    """(task description, earlier steps, the node's own step). Earlier steps include those given before the root."""
    prior = tree.prompt[OPENING:]
    steps = [
        Did(parse_action(reply.content), observation.content)
        for reply, observation in zip(prior[::2], prior[1::2], strict=True)
    ]
    steps += [Did(tree.nodes[i].action, tree.nodes[i].observation) for i in tree.path(index)]
    return tree.prompt[OPENING - 1].content, steps[:-1], steps[-1]


@dataclass(frozen=True)
class ActorJudge:
    """The actor model judges its own paths. The tree and the node determine its random seed."""

    actor: Engine
    cfg: ConvertParams
    seed: int

    async def __call__(self, tree: Tree, index: int) -> Judgement:
        """Ask the actor; whole steps, oldest first, are dropped from a log that does not fit its context.

        Raises:
            EngineError, UserError: as ``Engine.generate``.
        """
        task, history, current = history_of(tree, index)
        tokens, style = self.cfg.judge_max_tokens, self.cfg.judge_style
        dropped = 0
        messages = judge_prompt(tree.env, task, history, current, style)
        while dropped < len(history) and not self.actor.fits(messages, tokens):
            dropped += 1
            messages = judge_prompt(tree.env, task, history, current, style, dropped=dropped)
        (completion,) = await self.actor.generate(
            Request(
                messages=messages,
                seed=SeedKey(key_bits("judge", self.seed, tree.seed), tree.id, index),
                temperature=self.cfg.judge_temperature,
                max_tokens=tokens,
            )
        )
        return judgement_of(completion.text).model_copy(update={"omitted": dropped})


@dataclass(frozen=True)
class Standing:
    """A state: its snapshot, the expert's remaining actions (None: no path), whether the episode is over, the score."""

    snapshot: Any
    left: int | None
    over: bool
    reward: float = 0.0


def standing(env: AgentEnv, *, reward: float = 0.0, over: bool = False) -> Standing:
    """The current state of ``env``; an episode that ended with reward 1 has 0 remaining actions."""
    snapshot = env.snapshot()
    if over:
        return Standing(snapshot, 0 if reward == 1 else None, True, reward)
    left = len(env.expert()) or None
    env.restore(snapshot)
    return Standing(snapshot, left, False, reward)


def starting(env: AgentEnv) -> Standing:
    """The state after ``reset``, with the points that ScienceWorld gives for it in some games."""
    return standing(env, reward=getattr(env, "begun_with", 0.0))


def judge_step(env: AgentEnv, before: Standing, action: str) -> tuple[Standing, Did, Judgement]:
    """Act in ``before``: the next state, the step as shown in the log, and its judgement. ``wait`` changes nothing.

    An action after the end of an episode counts as refused.
    """
    if action == WAIT:
        return before, Did(action, WAITED), _judgement("uncertain")
    if before.over:
        return before, Did(action, ""), _judgement("bad", _REFUSED)
    env.restore(before.snapshot)
    step = env.step(action)
    did = Did(action, clean_observation(step.observation))
    disaster = bool(step.info.get("disaster", False))
    after = standing(env, reward=0.0 if disaster else step.reward, over=step.done or disaster)
    if not step.info.get("valid", True):
        return after, did, _judgement("bad", _REFUSED)
    return after, did, _judgement(step_verdict(before, after))


def step_verdict(before: Standing, after: Standing) -> Verdict:
    """Good: higher score or fewer actions left. Bad: more, no path, or a failed episode. Uncertain: as many left."""
    if after.reward > before.reward:
        return "good"
    if after.left is None:
        return "bad" if before.left is not None or after.over else "uncertain"
    if before.left is None or after.left < before.left:
        return "good"
    return "uncertain" if after.left == before.left else "bad"


@dataclass
class ScriptedJudge:
    """A judge without a model. ``envs`` maps names to embedded environments that have an expert.

    Each path is replayed from its nearest cached state; the states of the last ``keep`` trees are cached.
    """

    envs: Mapping[str, AgentEnv]
    keep: int = 512
    _known: dict[int, tuple[Tree, dict[int, tuple[Standing, Judgement | None]]]] = field(default_factory=dict)

    async def __call__(self, tree: Tree, index: int) -> Judgement:
        """The expert's verdict on a node's action, with a reason.

        Raises:
            UserError: the environment has no such task.
        """
        env, known = self.envs[tree.env], self._of(tree)
        if 0 not in known:
            known[0] = (self._start(env, tree), None)
        at = 0
        for child in tree.path(index):
            if child not in known:
                after, _, verdict = judge_step(env, known[at][0], tree.nodes[child].action)
                known[child] = (after, verdict)
            at = child
        judgement = known[at][1]
        assert judgement is not None  # the root has no action to judge
        return judgement

    def _of(self, tree: Tree) -> dict[int, tuple[Standing, Judgement | None]]:
        if id(tree) not in self._known:
            while len(self._known) >= self.keep:
                del self._known[next(iter(self._known))]
            self._known[id(tree)] = (tree, {})  # the reference prevents reuse of the tree's id
        return self._known[id(tree)][1]

    @staticmethod
    def _start(env: AgentEnv, tree: Tree) -> Standing:
        env.reset(tree.task_id)
        at = starting(env)
        for reply in tree.prompt[OPENING::2]:
            at, _, _ = judge_step(env, at, parse_action(reply.content))
        return at


def judge_examples(
    env: AgentEnv, task_ids: Sequence[int], count: int, *, seed: int, style: JudgeStyle = "short"
) -> list[Example]:
    """``count`` judgements as training examples, in equal parts for the three verdicts as far as possible.

    The expert judges every step of walks through the tasks that follow its own path but leave it half the time. The
    prompt is the one the actor will get as a judge; the answer (weight 1) is a short reason and the verdict. Walks are
    repeated with new noise until there are enough examples of each verdict, at most 20 times, so fewer are returned if
    a verdict is rare. The order is drawn by the seed.
    """
    wanted = {verdict: count // 3 + (i < count % 3) for i, verdict in enumerate(VERDICTS)}
    found: dict[Verdict, dict[tuple[str, str], Example]] = {verdict: {} for verdict in wanted}
    for walk in range(20):
        for task_id in task_ids:
            if all(len(found[verdict]) >= wanted[verdict] for verdict in wanted):
                break
            for prompt, judgement in _walk(env, task_id, rng("judge_examples", seed, env.name, task_id, walk), style):
                group = found[judgement.verdict]
                if len(group) < wanted[judgement.verdict]:
                    messages = [*prompt, Message(role="assistant", content=judgement.text, weight=1.0)]
                    example = Example(id="", messages=messages, source=f"{env.name}-{task_id}")
                    group.setdefault((prompt[0].content, judgement.text), example)
    examples = [example for group in found.values() for example in group.values()]
    rng("judge_examples", seed, env.name).shuffle(examples)
    return [example.model_copy(update={"id": f"judgement_{i}"}) for i, example in enumerate(examples)]


def _walk(env: AgentEnv, task_id: int, dice: Random, style: JudgeStyle) -> list[tuple[list[Message], Judgement]]:
    """One walk through a task: the prompts and judgements of its steps."""
    task = env.reset(task_id)
    at, history, judged = starting(env), list[Did](), []
    while not at.over and len(history) < LONGEST:
        action = _next_action(env, at, history, dice)
        if action is None:
            break
        at, did, judgement = judge_step(env, at, action)
        judged.append((judge_prompt(name_of(env, task_id), task, history, did, style), judgement))
        history.append(did)
    return judged


def _next_action(env: AgentEnv, at: Standing, history: Sequence[Did], dice: Random) -> str | None:
    """The expert's action or, half the time, a slip: any valid action, a later one of the plan, or a repetition."""
    env.restore(at.snapshot)
    plan = [move.action for move in env.expert()]
    env.restore(at.snapshot)
    slips = [] if dice.random() >= SLIP and plan else [plan[1:], env.valid_actions() or [], [d.action for d in history]]
    slips = [actions for actions in slips if actions]
    if slips:
        return dice.choice(dice.choice(slips))
    return plan[0] if plan else None


def _judgement(verdict: Verdict, reason: str | None = None) -> Judgement:
    return Judgement(verdict=verdict, text=answer(reason or _REASONS[verdict], verdict))

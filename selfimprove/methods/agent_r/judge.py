"""Finds the transition point, the first wrong step of a bad path, with a judge (docs/agent-r.md, A17 to A20).

``ActorJudge``: the actor model itself, asked about one action at a time. ``ScriptedJudge``: the environment's expert,
who knows how many actions are left to the goal. An action after which fewer are left is good, one that makes the path
longer or impossible, or that the environment refused, is bad, and one that changes nothing is uncertain ::

    plan 5 -> 4   get 2 oak log                    Good
    plan 4 -> 4   inventory                        Uncertain
    plan 4 -> 4   craft 9 stick using 1 stone      Bad, refused
    plan 4 -> 7   craft 1 boat using 5 oak planks  Bad, the planks were needed

From such verdicts a small model learns to judge in its warm start (``judge_examples``).
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
    Style,
    Verdict,
    answer,
    judge_prompt,
    judgement_of,
)
from selfimprove.methods.agent_r.params import ConvertParams
from selfimprove.methods.agent_r.prompts import OPENING
from selfimprove.methods.agent_r.reply import WAIT, WAITED, clean_observation, parse_action
from selfimprove.methods.agent_r.tree import Tree

Judge = Callable[[Tree, int], Awaitable[Judgement]]
"""(tree, node) -> the judgement of that node's action, which depends on the path to the node alone."""

SLIP = 0.5
"""How often a judged walk leaves the expert's path."""
LONGEST = 30
"""Steps of a judged walk, at most."""

_REFUSED = "The environment refused it."
_REASONS: dict[Verdict, str] = {
    "good": "It leaves fewer steps to the goal.",
    "bad": "It leads away from the goal.",
    "uncertain": "It neither helps nor harms.",
}


@dataclass(frozen=True)
class Transition:
    """A bad path up to its first bad step. ``found`` False: no step was judged bad, and the path is whole.

    ``judgements``: of every step that was walked, in order, those of the initial part included.
    """

    path: list[int]
    judgements: list[Judgement]
    found: bool


async def transition_point(
    bad_path: Sequence[int], branch: int, judge: Callable[[int], Awaitable[Judgement]]
) -> Transition:
    """Walk a bad path from its first action; stop after its first bad step, which is kept.

    Good and uncertain steps are passed. The first ``branch`` steps are shared with the good path: a verdict about them
    is kept but cannot end the walk, since the "error" would be a step of the good path (the original emits that
    sample). Never bad: the whole path.

    Args:
        bad_path: node indices from the first action on.
        branch: how many of them the good path shares.
        judge: node index -> judgement.
    """
    judgements = []
    for place, index in enumerate(bad_path):
        judgements.append(await judge(index))
        if judgements[-1].verdict == "bad" and place >= branch:
            return Transition(list(bad_path[: place + 1]), judgements, True)
    return Transition(list(bad_path), judgements, False)


def history_of(tree: Tree, index: int) -> tuple[str, list[Did], Did]:
    """(task description, earlier steps, the node's own step). Steps given before the root count as earlier ones."""
    prior = tree.prompt[OPENING:]
    steps = [
        Did(parse_action(reply.content), observation.content)
        for reply, observation in zip(prior[::2], prior[1::2], strict=True)
    ]
    steps += [Did(tree.nodes[i].action, tree.nodes[i].observation) for i in tree.path(index)]
    return tree.prompt[OPENING - 1].content, steps[:-1], steps[-1]


@dataclass(frozen=True)
class ActorJudge:
    """The actor model judges its own paths. Its noise is named by the tree and the node."""

    actor: Engine
    cfg: ConvertParams
    seed: int

    async def __call__(self, tree: Tree, index: int) -> Judgement:
        """Ask; a log that does not fit the model's context loses its oldest steps, whole.

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
    """A state: its snapshot, the expert's remaining actions (None: no path), whether the episode is over, its score."""

    snapshot: Any
    left: int | None
    over: bool
    reward: float = 0.0


def standing(env: AgentEnv, *, reward: float = 0.0, over: bool = False) -> Standing:
    """The current state of ``env``; an episode that ended with reward 1 has 0 actions left."""
    snapshot = env.snapshot()
    if over:
        return Standing(snapshot, 0 if reward == 1 else None, True, reward)
    left = len(env.expert()) or None
    env.restore(snapshot)
    return Standing(snapshot, left, False, reward)


def judge_step(env: AgentEnv, before: Standing, action: str) -> tuple[Standing, Did, Judgement]:
    """Act in ``before``: the next state, the step as the log shows it, and its judgement. ``wait`` changes nothing.

    An action after the end of an episode is refused.
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
    """Good: a higher score, or fewer actions left; bad: more, no path, or a lost episode; uncertain: as many."""
    if after.reward > before.reward:
        return "good"
    if after.left is None:
        return "bad" if before.left is not None or after.over else "uncertain"
    if before.left is None or after.left < before.left:
        return "good"
    return "uncertain" if after.left == before.left else "bad"


@dataclass
class ScriptedJudge:
    """A judge without a model. ``envs``: an embedded environment by name, with an expert.

    It replays each path from the nearest state that it has cached; the states of the last ``keep`` trees are cached.
    """

    envs: Mapping[str, AgentEnv]
    keep: int = 512
    _known: dict[int, tuple[Tree, dict[int, tuple[Standing, Judgement | None]]]] = field(default_factory=dict)

    async def __call__(self, tree: Tree, index: int) -> Judgement:
        """The expert's verdict and reason about a node's action.

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
            self._known[id(tree)] = (tree, {})  # holding the tree keeps its id from being given to another
        return self._known[id(tree)][1]

    @staticmethod
    def _start(env: AgentEnv, tree: Tree) -> Standing:
        env.reset(tree.task_id)
        at = standing(env)
        for reply in tree.prompt[OPENING::2]:
            at, _, _ = judge_step(env, at, parse_action(reply.content))
        return at


def judge_examples(
    env: AgentEnv, task_ids: Sequence[int], count: int, *, seed: int, style: Style = "short"
) -> list[Example]:
    """``count`` judgements as training examples, the three verdicts in equal parts as far as they occur.

    On walks through the tasks, which follow the expert and leave its path half the time, every step is judged by the
    expert: the prompt is what the actor will be asked, the answer (weight 1) a short reason and the verdict. Walks are
    repeated with other noise until there are enough of each verdict, at most 20 times; fewer examples come back if a
    verdict never occurs often enough. The order is drawn by the seed.
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


def _walk(env: AgentEnv, task_id: int, dice: Random, style: Style) -> list[tuple[list[Message], Judgement]]:
    """One walk through a task: the prompts and judgements of its steps."""
    task = env.reset(task_id)
    at, history, judged = standing(env), list[Did](), []
    while not at.over and len(history) < LONGEST:
        action = _next_action(env, at, history, dice)
        if action is None:
            break
        at, did, judgement = judge_step(env, at, action)
        judged.append((judge_prompt(name_of(env, task_id), task, history, did, style), judgement))
        history.append(did)
    return judged


def _next_action(env: AgentEnv, at: Standing, history: Sequence[Did], dice: Random) -> str | None:
    """The expert's action or, half the time, a slip: any possible one, one of the plan too early, or the last again."""
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

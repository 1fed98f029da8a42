"""What a policy plays: questions with tools, an interactive environment, or problems with one correct answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfimprove.engines.base import Engine
from selfimprove.envs.interface import World
from selfimprove.envs.params import AnswerParams
from selfimprove.envs.qa.base import Question, Score, Split
from selfimprove.envs.qa.datasets import score
from selfimprove.envs.qa.tools.dispatch import Tools
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.envs.replay import diverged, replay_counts
from selfimprove.methods.spin.acting import WorldPartner, gather_acted, task_of
from selfimprove.methods.spin.answering import gather_answers, scorer
from selfimprove.methods.spin.metrics import tool_figures
from selfimprove.methods.spin.params import PlayParams, QuestionsParams, SpinParams
from selfimprove.methods.spin.play import Partner, SpinEpisode, ToolPartner, play_with
from selfimprove.methods.spin.prompts import Format, few_shot_text
from selfimprove.methods.spin.tasks import Material, gather, open_tools


def material(spin: SpinParams, *, seed: int, download: Path, mirror: Path | None) -> Material:
    """Splits, experts and paragraphs.

    Raises:
        UserError: they are unavailable, or too few.
    """
    if isinstance(spin.env, QuestionsParams):
        return gather(spin.tasks, spin.tools, seed=seed, download=download, mirror=mirror, play_tools=spin.play_tools)
    if isinstance(spin.env, AnswerParams):
        return gather_answers(spin.tasks, spin.env.make(), seed=seed, download=download, mirror=mirror)
    return gather_acted(spin.tasks, spin.env.make(), seed=seed)


@dataclass(frozen=True)
class Player:
    """Plays episodes with tools, or in ``world`` unless it is None; a context manager that closes both on exit."""

    form: Format
    few_shot: str
    prefix: str
    tools: Tools
    world: World | None = None
    score: Callable[[str, Question], Score] = score

    @classmethod
    def of(cls, spin: SpinParams, tools: ToolsParams, split: Split, folder: Path, corpus: Path) -> Player:
        """A player with the params' settings for ``split``. ``folder``: the data stage's; ``corpus``: for search.

        Raises:
            UserError: as ``open_tools``, or the environment lacks a requirement.
        """
        task, prefix = spin.asked(split)
        few_shot, env = few_shot_text(spin.prompt.few_shot, task), spin.env
        none = Tools({}, concurrency=1, timeout=1, longest=1)
        if isinstance(env, QuestionsParams):
            return cls(spin.prompt.format, few_shot, prefix, open_tools(tools, spin.prompt.format, folder, corpus))
        if isinstance(env, AnswerParams):
            return cls(spin.prompt.format, few_shot, prefix, none, score=scorer(env.make()))
        return cls(spin.prompt.format, few_shot, prefix, none, world=env.world())

    async def play(
        self, game: tuple[int, Question], policy: Engine, cfg: PlayParams, seed: int, iteration: str, run: int = 0
    ) -> SpinEpisode:
        """One episode of ``game``, which is a question with its place in the split."""
        index, question = game
        partner: Partner = ToolPartner(self.tools, question, self.score)
        if self.world is not None:
            partner = WorldPartner(self.world, task_of(question))
        return await play_with(
            partner, question, index, policy, cfg, seed, form=self.form, few_shot=self.few_shot, prefix=self.prefix,
            iteration=iteration, run=run,
        )  # fmt: skip

    def figures(self) -> dict[str, Any]:
        """The tools' counters."""
        return tool_figures(self.tools.stats, self.tools.faults)

    def timing(self) -> dict[str, float]:
        """Replay counters of a world; empty without one."""
        return replay_counts(self.world) if self.world is not None else {}

    def diverged(self) -> int:
        """Number of replays of a world whose observations differed from the first time."""
        return diverged(self.world) if self.world is not None else 0

    async def __aenter__(self) -> Player:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.tools.close()
        if self.world is not None:
            await self.world.close()

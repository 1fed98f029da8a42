"""Params of AutoExplore."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from selfimprove.core.publish import write_json
from selfimprove.envs.interface import AgentEnv, EnumeratedEnv
from selfimprove.envs.labels import LABELS
from selfimprove.envs.params import AskedTeacher, ListedParams

if TYPE_CHECKING:
    from selfimprove.envs.autoexplore.env import AutoExplore
    from selfimprove.envs.autoexplore.repos import Repo
    from selfimprove.envs.autoexplore.tasks import Task


class AutoExploreParams(ListedParams):
    """AutoExplore: find the file of a repository that answers a question."""

    name: Literal["autoexplore"] = "autoexplore"
    repos: str | None = Field(
        default=None,
        description="a repository, or a folder of repositories; null: Python packages installed on this machine",
    )
    packages: int = Field(default=12, ge=1, description="number of installed packages")
    min_files: int = Field(default=5, ge=1, description="minimum number of explorable files in a package")
    max_files: int = Field(default=300, ge=1, description="maximum number of explorable files in a package")
    files_per_repo: int = Field(
        default=100, ge=1, description="maximum number of files per repository that questions are about"
    )
    per_file: int = Field(default=2, ge=1, description="maximum number of questions per file")
    max_level: int = Field(default=2, ge=0, description="maximum folder depth")
    leaveout_prob: float = Field(
        default=0.5, ge=0, le=1, description="probability of leaving out entries in training; evaluation uses 0"
    )
    easy: bool = Field(default=False, description='the task is "Find <path>"')
    first_step: bool = Field(default=False, description="a bandit: only the first command is scored")
    union_targets: bool = Field(default=False, description="files identified by teachers are also correct")
    keyword_costs: dict[str, float] = Field(
        default={}, description="additional costs by the first word of a result, such as {Error: 2, Warning: 1}"
    )
    merge_first_two: bool = Field(default=False, description="merge the two shallowest levels")
    merge_after_first_k: int = Field(default=3, ge=1, description="merge all levels beyond this number")

    decisive: ClassVar[str] = "cat"
    takes_task_file: ClassVar[bool] = True

    def make(self, tasks: Path | None = None, *, training: bool = False) -> EnumeratedEnv:
        """See ``ListedParams``. Tasks are read from the folder ``tasks``, or generated from templates.

        Raises:
            UserError: there is nothing to explore, there are no tasks, or a task's repository or target is missing.
        """
        from selfimprove.envs.autoexplore.listed import EnumeratedAutoExplore, level_names

        game, played = self._game(tasks, self.leaveout_prob if training else 0.0)
        levels = level_names(played, self.merge_first_two, self.merge_after_first_k)
        return EnumeratedAutoExplore(game, LABELS[self.labels], levels, self.curriculum_index)

    def acted(self) -> AgentEnv:
        """See ``EnvParams``: tasks from templates, no entries left out."""
        from selfimprove.envs.autoexplore.env import ACTED

        game, _ = self._game(None, 0.0)
        game.instruction = ACTED
        return game

    def most_tasks(self, per_file: int | None = None) -> int:
        return self.packages * min(self.files_per_repo, self.max_files) * (per_file or self.per_file)

    async def prepare(self, folder: Path, file: Path | None = None, asked: AskedTeacher | None = None) -> list[str]:
        """See ``ListedParams``: writes repositories, tasks, and counts of teacher's answers and dropped tasks."""
        from selfimprove.envs.autoexplore.inventory import REPOS_FILE, inventory
        from selfimprove.envs.autoexplore.listed import TASKS_FILE
        from selfimprove.envs.autoexplore.llm_tasks import make_llm_tasks
        from selfimprove.envs.autoexplore.playable import playable_tasks, write_tasks

        repos, made, said = self.repositories(), None, []
        write_json(folder / REPOS_FILE, [row.model_dump(mode="json") for row in inventory(repos)])
        if asked is not None:
            made = await make_llm_tasks(
                asked.engine, repos, asked.seed, asked.form,
                model=asked.model, max_files=self.files_per_repo, max_level=self.max_level, progress=asked.progress,
            )  # fmt: skip
            write_json(folder / "asked.json", dict(sorted(made.counts.items())))
            if made.counts["failed"]:
                said.append(
                    f"the teacher failed on {made.counts['failed']} of {made.counts['files']} files, which have no "
                    f"tasks; the first error: {' '.join(str(made.error).split())}"
                )
        found = playable_tasks(self, file, made.tasks if made else None)
        write_tasks(folder / TASKS_FILE, found.tasks)
        if found.dropped:
            write_json(folder / "dropped.json", found.dropped)
            reasons = ", ".join(f"{count} {reason}" for reason, count in found.dropped.items())
            said.append(
                f"{sum(found.dropped.values())} of {found.read} tasks of {file or 'the teacher'} cannot be played and "
                f"were dropped: {reasons}."
            )
        return said

    def _game(self, tasks: Path | None, leaveout_prob: float) -> tuple[AutoExplore, list[Task]]:
        """The environment, and its tasks."""
        from selfimprove.envs.autoexplore.env import AutoExplore
        from selfimprove.envs.autoexplore.inventory import REPOS_FILE, check_same
        from selfimprove.envs.autoexplore.listed import TASKS_FILE
        from selfimprove.envs.autoexplore.tasks import read_tasks

        repos = self.repositories()
        if tasks is not None and self.repos is None:
            check_same(repos, tasks / REPOS_FILE)
        played = read_tasks(tasks / TASKS_FILE) if tasks is not None else self.template_tasks(repos)
        game = AutoExplore(
            played,
            repos,
            max_turns=self.max_turns,
            leaveout_prob=leaveout_prob,
            shuffle_action=self.shuffle_action,
            easy=self.easy,
            first_step=self.first_step,
            union_targets=self.union_targets,
            keyword_costs=self.keyword_costs,
            seed=self.seed,
            labels=LABELS[self.labels],
        )
        return game, played

    def repositories(self) -> Mapping[str, Repo]:
        """The folder's repositories, or Python packages of this machine; listed once per process."""
        from selfimprove.envs.autoexplore.listed import find_repositories

        return find_repositories(self.repos, self.packages, self.seed, self.min_files, self.max_files)

    def template_tasks(self, repos: Mapping[str, Repo]) -> list[Task]:
        """Tasks from docstrings, headings, columns and settings whose targets are reachable with the labels."""
        from selfimprove.envs.autoexplore.questions import make_tasks
        from selfimprove.envs.autoexplore.tasks import reachable

        made = make_tasks(repos, self.seed, self.per_file, self.files_per_repo, self.max_level)
        most = len(LABELS[self.labels])
        return [task for task in made if reachable(repos[task.root], task.filename, most)]

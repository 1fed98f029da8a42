"""The ``env`` section of environments whose actions are listed by label: which one, and how it is set up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from selfimprove.core.params import LARGEST_SEED, Section
from selfimprove.envs.alfworld.kitchen_things import Kind
from selfimprove.envs.labels import LabelSet

EnvName = Literal["taxi", "autoexplore", "alfworld"]
OWN_OPTIONS = {
    "taxi": ("mode", "with_history"),
    "autoexplore": (
        "repos", "packages", "min_files", "max_files", "files_per_repo", "per_file", "max_level", "leaveout_prob",
        "easy", "first_step", "union_targets", "keyword_costs", "merge_first_two", "merge_after_first_k",
    ),
    "alfworld": ("kinds", "thing", "place", "backend"),
    "textworld": ("games", "step_seconds", "blacklist"),
}  # fmt: skip
"""Options of one environment (textworld: of alfworld's backend of that name); the others are everybody's."""


class EnvParams(Section):
    """Where the episodes are played, and how actions are listed (docs/reflect-rl.md, L29 to L44)."""

    name: EnvName = "taxi"
    horizon: int = Field(default=15, ge=1, description="actions of an episode, at most")
    labels: LabelSet = Field(
        default="full", description="full: 0..199, a-z, A-Z; single: 0..9, a-z, A-Z, for tokenizers of single digits"
    )
    shuffle_action: bool = Field(default=False, description="draw labels anew at each state; taxi ignores it")
    curriculum_index: int = Field(default=-1, ge=-1, description="only this level; -1: all")
    seed: int = Field(
        default=0,
        ge=0,
        le=LARGEST_SEED,
        description="of repositories, questions, kitchens, labels and left-out entries",
    )
    mode: Literal["pickup", "dropoff", "full", "none"] = Field(default="full", description="taxi: without a level")
    with_history: bool = Field(default=False, description="taxi: show the map after every action")
    repos: str | None = Field(
        default=None, description="autoexplore: a repository or a folder of some; null: packages of this machine"
    )
    packages: int = Field(default=12, ge=1, description="autoexplore: how many packages of this machine")
    min_files: int = Field(default=5, ge=1, description="autoexplore: a package has at least so many files to explore")
    max_files: int = Field(default=300, ge=1, description="autoexplore: and at most so many")
    files_per_repo: int = Field(default=100, ge=1, description="autoexplore: questions are about so many files at most")
    per_file: int = Field(default=2, ge=1, description="autoexplore: questions about a file, at most")
    max_level: int = Field(default=2, ge=0, description="autoexplore: folders deep, at most")
    leaveout_prob: float = Field(default=0.5, ge=0, le=1, description="autoexplore: in training; evaluation has 0")
    easy: bool = Field(default=False, description='autoexplore: the task is "Find <path>"')
    first_step: bool = Field(default=False, description="autoexplore: a bandit, only the first command counts")
    union_targets: bool = Field(default=False, description="autoexplore: what teachers identified is right as well")
    keyword_costs: dict[str, float] = Field(
        default={}, description="autoexplore: further costs by a result's first word, as {Error: 2, Warning: 1}"
    )
    merge_first_two: bool = Field(default=False, description="autoexplore: the two shallowest levels are one")
    merge_after_first_k: int = Field(default=3, ge=1, description="autoexplore: all levels after these are one")
    kinds: list[Kind] = Field(default=["pick_and_place"], min_length=1, description="alfworld: which goals")
    thing: str | None = Field(default="tomato", description="alfworld: the goal's thing; null: any")
    place: str | None = Field(default="microwave", description="alfworld: the goal's place; null: any")
    backend: Literal["kitchen", "textworld"] = Field(
        default="kitchen", description="alfworld: built in, or ALFWorld itself (make env-alfworld)"
    )
    games: str | None = Field(default=None, description="textworld: the downloaded games' folder; null: made here")
    step_seconds: float = Field(default=120.0, gt=0, description="textworld: a step that takes longer ends its process")
    blacklist: str | None = Field(default=None, description="textworld: a file that remembers games that crashed")

    @model_validator(mode="after")
    def _only_its_own(self) -> EnvParams:
        """An option of another environment, or of another backend, would do nothing."""
        fields = type(self).model_fields
        for owner, keys in OWN_OPTIONS.items():
            if owner == self.name or (owner == "textworld" and self.backend == "textworld"):
                continue
            for key in keys:
                if getattr(self, key) != fields[key].get_default(call_default_factory=True):
                    here = "backend" if owner == "textworld" and self.name == "alfworld" else "name"
                    raise ValueError(f"{key} is an option of {owner}, and {here} is {getattr(self, here)}; remove it")
        return self

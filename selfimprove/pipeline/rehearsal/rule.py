"""Derives a rehearsal's params from a profile's: sizes, models, devices, services and data change, and nothing else.

``rehearsed`` is a pure function that returns the new params and one ``Replacement`` for every changed key. A test
compares both sets of params key by key for every GPU profile.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from selfimprove.core.overlay import entries, mappings, places
from selfimprove.methods.rows import NONE
from selfimprove.models.base import SHIPPED
from selfimprove.pipeline.forks import uses_gpu, uses_vllm
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.recorded import ABSENT, value_at

Params = dict[str, Any]
Kind = Literal["size", "device", "model", "service", "data", "left out"]

CAPS: Mapping[str, float] = {
    "rise.tasks.demonstrations": 4,
    "rise.tasks.train": 6,
    "rise.tasks.dev": 1,
    "rise.tasks.test": 2,
    "rise.evaluate.max_tokens": 16,
    "rise.iterations.*.generate.tasks": 3,
    "rise.iterations.*.generate.offset": 3,
    "rise.iterations.*.generate.max_tokens": 24,
    "rise.iterations.*.generate.num_of_samples.*": 4,
    "agent_r.tasks.demonstrations": 4,
    "agent_r.tasks.layouts": 1,
    "agent_r.tasks.revision_demonstrations": 2,
    "agent_r.tasks.judge_examples": 3,
    "agent_r.tasks.train": 6,
    "agent_r.tasks.dev": 1,
    "agent_r.tasks.test": 2,
    "agent_r.evaluate.max_turns": 3,
    "agent_r.evaluate.max_tokens": 24,
    "agent_r.iterations.*.generate.tasks": 3,
    "agent_r.iterations.*.generate.offset": 3,
    "agent_r.iterations.*.generate.max_depth": 6,
    "agent_r.iterations.*.generate.dives": 2,
    "agent_r.iterations.*.generate.n_gen": 3,
    "agent_r.iterations.*.generate.max_tokens": 24,
    "agent_r.iterations.*.convert.judge_max_tokens": 24,
    "reflect_rl.env.max_turns": 6,
    "reflect_rl.env.packages": 2,
    "reflect_rl.env.files_per_repo": 8,
    "reflect_rl.tasks.asking.max_tokens": 64,
    "reflect_rl.generate.negatives": 1,
    "reflect_rl.generate.max_tokens": 40,
    "reflect_rl.evaluate.eval_reps": 1,
    "reflect_rl.evaluate.max_tokens": 8,
    "reflect_rl.iterations.*.rl.max_steps": 3,
    "reflect_rl.iterations.*.rl.episodes": 2,
    "reflect_rl.iterations.*.rl.max_tokens": 8,
    "reflect_rl.iterations.*.rl.save_steps": 1,
    "spin.tasks.train": 6,
    "spin.tasks.dev": 1,
    "spin.tasks.test": 4,
    "spin.evaluate.max_turns": 3,
    "spin.evaluate.max_tokens": 24,
    "spin.iterations.*.generate.start": 0,
    "spin.iterations.*.generate.max_turns": 3,
    "spin.iterations.*.generate.max_tokens": 24,
    "*.engines.*.context": 2048,
    "*.engines.*.max_sequences": 16,
    "*.engines.*.slots": 16,
    "*.engines.*.prefill_rows": 4,
}
"""Key (``*``: any one part) -> maximum value in a rehearsal. An absent or null key stays as it is."""

LIMITS: Mapping[str, int] = {
    "agent_r.evaluate.revision_tasks": 2,
    "agent_r.iterations.*.convert.max_pairs_per_tree": 1,
    "reflect_rl.tasks.train": 3,
    "reflect_rl.tasks.dev": 1,
    "reflect_rl.tasks.test": 2,
    "reflect_rl.generate.tasks": 2,
    "reflect_rl.generate.negative_tasks": 2,
    "spin.evaluate.end": 2,
    "spin.evaluate.retries": 1,
    "spin.iterations.*.generate.end": 4,
    "spin.iterations.*.generate.retries": 1,
}
"""The same for keys whose absence or null means "all"; these are set."""

TRAINING_CAPS: Mapping[str, float] = {
    "epochs": 1.0,
    "batch_size": 2,
    "micro_batch_tokens": 1024,
    "row_tokens": 1024,
    "max_length": 1024,
    "max_prompt_length": 512,
    "warmup_steps": 1,
    "save_steps": 2,
    "logging_steps": 1,
}
"""The same for every fine-tuning section (one with a launcher); a batch has at least an example for each process."""

TRAINING_TOKENS = 600
"""Number of tokens after which a fine-tuning stops at the end of the step."""


@dataclass(frozen=True)
class Here:
    """Resources of a rehearsal on this machine.

    Attributes:
        gpus: number of GPUs; 0 for a rehearsal on the CPU.
        models: method -> folder of the model that replaces the profile's; other methods keep theirs.
        teacher: base URL of the local OpenAI-compatible server.
        chats: folder of chats in the format of plain SPIN's ``reformat``.
        snippets: file of search snippets.
        quick: random models; generate tasks instead of fetching them from their declared source; one iteration, no
            controls.
    """

    gpus: int
    models: Mapping[str, str]
    teacher: str
    chats: str
    snippets: str
    quick: bool = False

    @property
    def small_models(self) -> bool:
        """Whether small models are trained, which find no training data by themselves: without GPUs, or with quick."""
        return not self.gpus or self.quick


@dataclass(frozen=True)
class Replacement:
    """One key of the params that the rehearsal changes. ``old`` or ``new`` is None if the key is absent or null."""

    key: str
    old: Any
    new: Any
    kind: Kind


def uses_gpu_packages(section: Mapping[str, Any]) -> bool:
    """Whether a method's section uses a package that only the environments for GPUs contain: vLLM or bitsandbytes."""
    return uses_vllm(section) or any(node.get("quantize", "none") != "none" for _, node in mappings(section))


def rehearsable(params: Mapping[str, Any]) -> list[str]:
    """The methods worth a rehearsal: those that require a GPU or start from a model that is not this repository's."""
    return [
        method
        for method in METHODS
        if uses_gpu(params[method]) or params["base"][method]["model"] not in (None, SHIPPED)
    ]


def rehearsed(params: Mapping[str, Any], methods: list[str], here: Here) -> tuple[Params, list[Replacement]]:
    """The params of the rehearsal and the changed keys, in the order of the changes; ``params`` is not modified.

    Args:
        params: composed params of a profile, as plain mappings.
        methods: the methods to rehearse; other methods' sections are not changed.
    """
    edit = _Edit(deepcopy(dict(params)))
    if edit.get("tracking.report_to") == "wandb":
        edit.set("tracking.report_to", "tensorboard", "service")
    for method in methods:
        _cut_iterations(edit, method, 1 if here.quick else 2)
        _replace_model(edit, method, here.models.get(method))
        _replace_services(edit, method, here)
        if here.quick:
            _embed_tasks(edit, method)
            _keep_one_row(edit, method)
        if here.small_models:
            _let_expert_search(edit, method)
        _fit_sizes(edit, method, here.gpus or 2)
        for path, node in list(mappings(edit.params[method], (method,))):
            _fit_device(edit, path, node, here.gpus)
    if not here.gpus:
        several = any(node.get("processes", 1) > 1 for m in methods for _, node in mappings(edit.params[m]))
        edit.set("run.threads", 1 if several else 2, "device")
    return edit.params, edit.made


class _Edit:
    """Params under modification, with a record of the changes."""

    def __init__(self, params: Params) -> None:
        self.params = params
        self.made: list[Replacement] = []

    def set(self, key: str, value: Any, kind: Kind) -> None:
        """Set a key; an equal value is not recorded as a change."""
        node, last = self._node(key)
        old = self.get(key)
        if old != value or (isinstance(node, dict) and last not in node):
            self.made.append(Replacement(key, old, value, kind))
            node[last] = deepcopy(value)

    def remove(self, key: str, kind: Kind) -> None:
        node, last = self._node(key)
        self.made.append(Replacement(key, node.pop(last), None, kind))

    def clear(self, key: str, kind: Kind) -> None:
        """Set a key, if present, to null instead of removing it, because dvc.yaml may name it."""
        if self.get(key) is not None:
            self.set(key, None, kind)

    def get(self, key: str) -> Any:
        """The value at a dotted key; None if there is none."""
        found = value_at(self.params, key)
        return None if found is ABSENT else found

    def _node(self, key: str) -> tuple[Any, Any]:
        place, _, last = key.rpartition(".")
        node = self.get(place)
        return node, int(last) if isinstance(node, list) else last


def _cut_iterations(edit: _Edit, method: str, longest: int) -> None:
    """Remove iterations beyond the first ``longest`` of their chain; their controls then match the last one kept."""
    iterations = edit.params[method]["iterations"]
    inits = {name: one["init"] for name, one in iterations.items()}

    def chain(name: str) -> list[str]:
        return [*chain(inits[name]), name] if name in inits else []

    kept = {name: chain(name)[:longest][-1] for name in inits}
    for name in inits:
        if kept[name] != name:
            edit.remove(f"{method}.iterations.{name}", "size")
            edit.remove(f"{method}.rows.{name}", "size")
    rows = "models" if method == "reflect_rl" else "rows"
    for name, row in edit.params[method][rows].items():
        for key in ("match", "source"):
            if row.get(key) in kept:
                edit.set(f"{method}.{rows}.{name}.{key}", kept[row[key]], "size")


def _replace_model(edit: _Edit, method: str, folder: str | None) -> None:
    if folder is not None:
        edit.set(f"base.{method}.model", folder, "model")
        for key in ("revision", "adapter_of"):
            edit.clear(f"base.{method}.{key}", "model")


def _replace_services(edit: _Edit, method: str, here: Here) -> None:
    """Replace what costs money or is unavailable here: chat endpoints, live search, data without a declared source."""
    for name, engine in edit.params[method]["engines"].items():
        if engine["engine"] == "openai":
            edit.set(f"{method}.engines.{name}.base_url", here.teacher, "service")
            edit.clear(f"{method}.engines.{name}.api_key_file", "service")
    if method != "spin":
        return
    for tools in ("tools", "play_tools"):
        for name, behind in ((edit.get(f"spin.{tools}") or {}).get("use") or {}).items():
            if behind == "serpapi":
                edit.set(f"spin.{tools}.use.{name}", "replay", "data")
                edit.set(f"spin.{tools}.snippets", here.snippets, "data")
    if edit.get("spin.tasks.source") == "chat":
        edit.set("spin.tasks.file", here.chats, "data")


def _embed_tasks(edit: _Edit, method: str) -> None:
    """Use generated tasks, for a rehearsal without network or mirror."""
    if method == "rise" and edit.get("rise.tasks.source") != "embedded":
        edit.set("rise.tasks.source", "embedded", "data")
        edit.set("rise.env.name", "gsm8k", "data")
        edit.clear("rise.tasks.files", "data")
    if method == "spin" and edit.get("spin.tasks.source") == "hotpotqa":
        edit.set("spin.tasks.source", "encyclopedia", "data")
        for key in ("spin.tasks.other", "spin.tasks.expert_file"):
            edit.clear(key, "data")


def _keep_one_row(edit: _Edit, method: str) -> None:
    """Remove controls and, for Reflect-RL, all but the last run and the supervised models that it needs."""
    section = edit.params[method]
    for rows in ("rows", "models"):
        for name, row in list(section.get(rows, {}).items()):
            if row.get("match", NONE) != NONE:
                edit.remove(f"{method}.{rows}.{name}", "size")
    if method != "reflect_rl":
        return
    for name in list(section["iterations"])[:-1]:
        edit.remove(f"reflect_rl.iterations.{name}", "size")
    (last,) = section["iterations"].values()
    needed = {*section["iterations"], last["init"], last["reflector"]}
    for rows in ("models", "rows"):
        for name in list(section[rows]):
            if name not in needed:
                edit.remove(f"reflect_rl.{rows}.{name}", "size")


def _let_expert_search(edit: _Edit, method: str) -> None:
    """Let the environment's expert generate training data, which a small model itself does not find.

    RISE: if the first iteration has no teacher, the expert takes its last turn, so that a control that learns from
    correct answers has data. Agent-R: the expert searches the first iteration's trees; the second iteration, whose
    trees the model itself searches, also trains on them. SPIN: no episode earns a reward, so controls that compare
    rewards, which would have no data, are removed.
    """
    first = next(iter(edit.params[method]["iterations"]))
    if method == "rise":
        models = edit.params["rise"]["iterations"][first]["generate"]["models"]
        if set(models) == {"student"}:
            edit.set("rise.engines.rehearsal_expert", {"engine": "scripted", "error_rate": 0.0}, "model")
            edit.set(f"rise.iterations.{first}.generate.models", [*models[:-1], "rehearsal_expert"], "model")
    if method == "agent_r":
        edit.set("agent_r.engines.rehearsal_expert", {"engine": "scripted", "error_rate": 0.4}, "model")
        edit.set(f"agent_r.iterations.{first}.generate.engine", "rehearsal_expert", "model")
        for name in edit.params["agent_r"]["iterations"]:
            edit.set(f"agent_r.iterations.{name}.convert.accumulate", True, "model")
    if method == "spin":
        for name, row in list(edit.params["spin"]["rows"].items()):
            if row["data"] == "outcome":
                edit.remove(f"spin.rows.{name}", "left out")


def _fit_sizes(edit: _Edit, method: str, processes: int) -> None:
    for table, absent_means_all in ((CAPS, False), (LIMITS, True)):
        for pattern, cap in table.items():
            for key in list(_matches(edit.params, pattern, method, create=absent_means_all)):
                old = edit.get(key)
                if old is not None or absent_means_all:
                    edit.set(key, cap if old is None or old == "auto" else min(old, cap), "size")
    for path, node in list(mappings(edit.params[method], (method,))):
        if "launcher" not in node or path[-1] == "rl":
            continue
        place = ".".join(path)
        share = min(node["launcher"].get("processes", 1), processes)
        for key, cap in {**TRAINING_CAPS, "batch_size": max(TRAINING_CAPS["batch_size"], share)}.items():
            if node.get(key) is not None:
                edit.set(f"{place}.{key}", min(node[key], cap), "size")
        if node.get("epochs") != 0:
            edit.set(
                f"{place}.max_train_tokens",
                min(node.get("max_train_tokens") or TRAINING_TOKENS, TRAINING_TOKENS),
                "size",
            )


def _matches(params: Params, pattern: str, method: str, *, create: bool) -> Iterator[str]:
    """Yield keys of ``method`` that match a pattern; with ``create``, the last part may be absent from its mapping."""
    *parts, last = pattern.split(".")
    for path, node in places({method: params[method]}, parts):
        names = [name for name, _ in entries(node) if last in ("*", name)]
        for name in names or ([last] if create and isinstance(node, dict) else []):
            yield ".".join((*path, name))


def _fit_device(edit: _Edit, path: tuple[str, ...], node: Mapping[str, Any], gpus: int) -> None:
    """Fit the settings to this machine: fewer processes and, on a CPU, no GPU data types or kernels."""
    place = ".".join(path)
    most = gpus or 2
    if "processes" in node:
        edit.set(f"{place}.processes", min(node["processes"], most), "device")
        edit.set(f"{place}.nodes", 1, "device") if node.get("nodes", 1) > 1 else None
        edit.clear(f"{place}.rendezvous", "device")
    if isinstance(node.get("replicas"), int):
        edit.set(f"{place}.replicas", min(node["replicas"], most), "device")
    if node.get("tensor_parallel", 1) > max(1, gpus):
        edit.set(f"{place}.tensor_parallel", max(1, gpus), "device")
    if gpus:
        return
    for key, here, there in (
        ("device", "cpu", ("cuda",)),
        ("dtype", "float32", ("bfloat16", "float16")),
        ("attention", "sdpa", ("flash_attention_2",)),
        ("tf32", False, (True,)),
    ):
        if node.get(key) in there:
            edit.set(f"{place}.{key}", here, "device")
    if node.get("backend") == "xtuner":
        edit.set(f"{place}.launcher.processes", 1, "device")

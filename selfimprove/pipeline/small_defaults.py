"""Warns if a method's base is the user's own model and rows still use the training settings of the small default model.

The default profile trains a model of 0.8 million parameters with learning rates of about 1e-3 on sequences of 352 to
1,024 tokens. With these settings a large model loses its pretrained abilities within a few steps.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.yaml import read_yaml
from selfimprove.engines.cpu.batching import stored_parameters
from selfimprove.pipeline.sections import METHOD_SCHEMAS

DEFAULT = Path(__file__).resolve().parents[2] / "profiles/default.yaml"
LARGE = 5_000_000
"""Number of parameters from which the default's settings are unsuitable."""
LENGTHS = ("max_length", "row_tokens")


def small_settings(values: Mapping[str, Any], method: str) -> str | None:
    """One sentence naming the keys of ``method`` that still have values for the small default model; None without any.

    A section is included if its learning rate equals the default profile's at the same place; unchanged lengths are
    then named too.

    Args:
        values: all of params.yaml.
    """
    model = values["base"][method].get("model")
    size = 0 if model is None else stored_parameters(Path(model))  # 0 of a hub model: it is not here
    if model is None or 0 < size < LARGE:
        return None
    own, default = (METHOD_SCHEMAS[method].spelled_out(all_[method]) for all_ in (values, read_yaml(DEFAULT)))
    kept = list(_kept(own, default, method))
    if not kept:
        return None
    shown = f" ({size / 1e6:.0f} million parameters)" if size else ""
    return (
        f"WARNING: base.{method}.model is {model}{shown}, but these keys still have the values for the default's model "
        f"of 0.8 million parameters, which degrade a larger pretrained model: {', '.join(kept)}. Set them; "
        f"profiles/{method.replace('_', '-')}-smollm2.yaml shows values for a pretrained model."
    )


def _kept(section: Any, default: Any, place: str) -> Iterator[str]:
    """Yield ``key.path value`` for each setting that a training section shares with the default's at the same place."""
    if not isinstance(section, Mapping) or not isinstance(default, Mapping):
        return
    if "lr" in section and section["lr"] == default.get("lr") and section.get("epochs") != 0:
        yield f"{place}.lr {section['lr']:g}"
        same = [key for key in LENGTHS if key in section and section[key] == default.get(key)]
        yield from (f"{place}.{key} {section[key]}" for key in same)
    for key, inner in section.items():
        yield from _kept(inner, default.get(key), f"{place}.{key}")

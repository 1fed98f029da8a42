"""``python -m selfimprove.pipeline.check``: validate every section of params.yaml, without running anything."""

from __future__ import annotations

import sys

from selfimprove.base_model import BaseSection
from selfimprove.errors import UserError
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.spin.params import SpinParams
from selfimprove.params_base import Section
from selfimprove.pipeline.params import RunParams, load_section, read_yaml
from selfimprove.pipeline.stage import PARAMS_FILE
from selfimprove.tokenizer import TokenizerSection

SCHEMAS: dict[str, type[Section]] = {
    "run": RunParams,
    "tokenizer": TokenizerSection,
    "base": BaseSection,
    "rise": RiseParams,
    "agent_r": AgentRParams,
    "reflect_rl": ReflectRLParams,
    "spin": SpinParams,
}


def main() -> None:
    """Exit with 2 and one sentence if a section does not fit."""
    try:
        values = read_yaml(PARAMS_FILE)
        for name, schema in SCHEMAS.items():
            load_section(values, name, schema, str(PARAMS_FILE))
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    print(f"{PARAMS_FILE}: {len(SCHEMAS)} sections are valid.")


if __name__ == "__main__":
    main()

"""docs/params.md agrees with the schemas and explains every key; docs/agent-r.md names the controls' data."""

import re
from typing import get_args

from selfimprove.methods.agent_r.params import AgentRRow
from selfimprove.pipeline.meanings import MEANINGS
from selfimprove.pipeline.params_doc import meaning, names_of, page, schemas
from tests.support.repo_copy import ROOT


def test_the_params_page_is_up_to_date() -> None:
    assert (ROOT / "docs/params.md").read_text(encoding="utf-8") == page(), "run `make docs`"


def test_every_key_has_a_meaning_and_every_meaning_is_used() -> None:
    used = set()
    for schema, (place, *_) in schemas().items():
        for key, field in schema.model_fields.items():
            assert meaning(schema, key), f"{place}.{key}: describe it in its Field, or in pipeline/meanings.py"
            if field.description is None:
                used.add(next(name for name in names_of(schema, key) if name in MEANINGS))
    assert used == set(MEANINGS)


def test_every_section_has_its_own_title_and_names_all_places_that_take_its_keys() -> None:
    titles = re.findall(r"^## .*$", page(), re.MULTILINE)
    assert len(titles) == len(set(titles))
    assert {"## `tracking`", "## `agent_r.env` (`textcraft`)", "## `spin.rows.*` (pair row)"} < set(titles)
    section = page().partition("## `rise.train`\n")[2].partition("\n## ")[0]
    assert "The same keys: `agent_r.train`, " in section


def test_types_are_written_without_their_bounds() -> None:
    text = page()
    assert "| `steps` | dict[int, float] |" in text
    assert "FieldInfo" not in text
    assert "Annotated" not in text


def test_the_page_of_agent_r_names_every_data_set_of_its_controls() -> None:
    text = (ROOT / "docs/agent-r.md").read_text(encoding="utf-8")
    controls = text.partition("**A29 ")[2].partition("**A30 ")[0]
    named = re.findall(r"^\| `(\w+)`", controls.partition("|---|")[2], re.MULTILINE)
    assert named == list(get_args(AgentRRow.model_fields["data"].annotation))

"""docs/params.md says what the schemas say."""

from selfimprove.pipeline.params_doc import page
from tests.repo_copy import ROOT


def test_the_params_page_is_up_to_date() -> None:
    assert (ROOT / "docs/params.md").read_text(encoding="utf-8") == page(), "run `make docs`"

"""The pages of failures agree with the catalogue."""

from pathlib import Path

from tools import failures_page
from tools.facts import WAYS, pages_without_walks
from torchmill.config.facts import Facts

ROOT = Path(__file__).parents[2]
CATALOGUE = (ROOT / "build_configs" / "causes.toml").read_text("utf-8")


def test_the_generated_pages_are_up_to_date(shipped: Facts) -> None:
    reference = ROOT / "docs" / "reference"
    written = {
        str(path.relative_to(reference)): path.read_text("utf-8")
        for folder in ("compatibility", "failures")
        for path in (reference / folder).iterdir()
    }
    written.pop(WAYS)  # which the tests of its walks compare
    assert written == pages_without_walks(shipped), "stale: run `invoke facts --table`"


def test_every_cause_is_on_one_page(shipped: Facts) -> None:
    names = [
        name for section in failures_page.read_sections(CATALOGUE).values() for name in section
    ]
    assert names == [cause.name for cause in shipped.causes]


def test_each_section_is_a_page(shipped: Facts) -> None:
    (page, index) = failures_page.failure_pages(
        f'# {"-" * 20}\n# Tools & more\n# {"-" * 20}\n\n[[cause]]\nname = "memory"\n',
        shipped.causes,
    ).items()
    assert page[0] == "tools-more.md"
    assert "\n## memory\n" in page[1]
    assert "[memory](tools-more.md#memory)" in index[1]

"""The page of failures says what the catalogue says."""

from pathlib import Path

from torchwright import facts
from torchwright.diagnosis import catalogue

ROOT = Path(__file__).parents[1]


def test_the_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    assert text == catalogue.page(text, facts.load(ROOT / "build_configs").causes)


def test_the_list_is_replaced_and_the_rest_kept() -> None:
    causes = facts.load(ROOT / "build_configs").causes
    page = catalogue.page(f"# Title\n\n{catalogue.BEGIN}stale", causes[:1])
    assert page.startswith(f"# Title\n\n{catalogue.BEGIN}\n### {causes[0].name}\n")
    assert "stale" not in page

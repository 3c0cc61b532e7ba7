"""The page of failures says what the catalogue says."""

from pathlib import Path

from torchmill import facts
from torchmill.diagnosis import page

ROOT = Path(__file__).parents[1]


def test_the_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    assert text == page.renewed(text, facts.load(ROOT / "build_configs").causes)


def test_the_list_is_replaced_and_the_rest_kept() -> None:
    causes = facts.load(ROOT / "build_configs").causes
    text = page.renewed(f"# Title\n\n{page.BEGIN}stale", causes[:1])
    assert text.startswith(f"# Title\n\n{page.BEGIN}\n### {causes[0].name}\n")
    assert "stale" not in text

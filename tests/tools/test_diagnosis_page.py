"""The page of failures says what the catalogue says."""

from pathlib import Path

from tools import failures_page
from torchmill.config import facts_reader

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    text = (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")
    assert text == failures_page.renew_page(text, facts_reader.read_facts(ROOT / "build_configs").causes)


def test_the_list_is_replaced_and_the_rest_kept() -> None:
    causes = facts_reader.read_facts(ROOT / "build_configs").causes
    text = failures_page.renew_page(f"# Title\n\n{failures_page.BEGIN}stale", causes[:1])
    assert text.startswith(f"# Title\n\n{failures_page.BEGIN}\n### {causes[0].name}\n")
    assert "stale" not in text

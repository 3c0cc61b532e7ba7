"""The catalogue of failures as a page for people: docs/diagnose.md."""

from collections.abc import Iterable

from torchmill.config.model import FailureCause

BEGIN = "<!-- from build_configs/causes.toml by `invoke facts --table` -->\n"


def renew_page(text: str, causes: Iterable[FailureCause]) -> str:
    """Return the page `text` with its list of causes written anew; the list is what follows BEGIN."""
    return text.partition(BEGIN)[0] + BEGIN + "".join(map(_entry, causes))


def _entry(cause: FailureCause) -> str:
    notes = {"machine": " Goes before all others.", "general": " Counts where no other is told."}
    releases = f" Only of torch {cause.release}." if cause.release else ""
    return (
        f"\n### {cause.name}\n\n`{cause.examples[0].replace('`', chr(39))}`\n\n"
        f"{_sentence(cause.cause)}{releases}{notes.get(cause.precedence, '')}\n\n"
        f"Cure: {cause.cure}.\n\nSource: {cause.source}.\n"
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."

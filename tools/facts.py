"""What `invoke facts` does: summarize build_configs/, compare it with an index, draft releases."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools import (
    compatibility_page,
    failures_page,
    official_code,
    official_code_page,
    upstream_check,
    upstream_draft,
    ways_page,
)
from tools.unused_rules import refuse_unused_rules
from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package, find_release
from torchmill.core import console
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import ConfigError
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.fetch import package_index


@dataclass(frozen=True, slots=True)
class FactsOptions:
    """What is asked for; nothing means a summary."""

    check: bool
    releases: tuple[str, ...]  # that the check is restricted to; (): all
    new: bool
    code: bool  # read the device code in the wheels on the index
    write: bool  # the drafts, and what was read
    reference: Path | None  # docs/reference, if its generated pages are to be written


def run_facts(orders: FactsOptions, facts: Facts, layout: Layout) -> str:
    """Do what is asked for and return what there is to say.

    Raises ConfigError for orders that make no sense, for a file of facts that is left out because
    it has mistakes, and as the parts do.
    """
    facts_reader.require_whole(facts)
    said = []
    if orders.write and not (orders.new or orders.code):
        text = "--write writes what --new drafts, or --code reads: give one of them, too"
        raise ConfigError(text, code="contradictory-options")
    if orders.reference:
        said.append(write_pages(orders.reference, facts))
    if orders.new:
        found = draft_releases(facts, layout)
        own = os.environ.get(
            "TORCHMILL_OWN_CONFIGS"
        )  # of an installed suite, a project's own folder
        releases = Path(own or facts.patches.parent) / "releases"
        for version, text in found.items() if orders.write else ():
            write_atomically(releases / f"{version}.toml", text)
        said.extend(found.values() or ["every release on the index has its file"])
    if orders.code:
        said.append(read_code(facts, layout, write=orders.write))
    if orders.check or orders.releases:
        said.append(check_against_index(facts, orders.releases, layout))
    return "\n".join(said) or summarize_facts(facts)


def write_pages(reference: Path, facts: Facts) -> str:
    """Write the generated pages below `reference`; return what to say."""
    written = generated_pages(facts)
    for folder in ("compatibility", "failures"):
        for old in (reference / folder).glob("*.md"):
            old.unlink()
    for name, text in written.items():
        (reference / name).write_text(text, encoding="utf-8")
    return f"wrote {len(written)} pages in {reference}"


def generated_pages(facts: Facts) -> dict[str, str]:
    """Return every page that is made of the facts, by its path below docs/reference/."""
    catalogue = (facts.patches.parent / "causes.toml").read_text("utf-8")
    pages = {
        "compatibility": {
            **compatibility_page.compatibility_pages(facts),
            **official_code_page.code_pages(facts),
            "ways.md": ways_page.ways_page(facts),
        },
        "failures": failures_page.failure_pages(catalogue, facts.causes),
    }
    return {
        f"{folder}/{name}": text for folder, texts in pages.items() for name, text in texts.items()
    }


def summarize_facts(facts: Facts) -> str:
    """Return what the facts hold, in numbers; raises ConfigError for rules without effect."""
    refuse_unused_rules(facts)
    lines = [
        f"{package.name}: {len(facts.releases[package.name])} releases, {len(package.rules)} rules"
        for package in facts.packages.values()
    ]
    capabilities = f"{len(facts.capabilities)} compute capabilities"
    lines.append(
        f"{len(facts.toolkits)} CUDA toolkits, {capabilities}, {len(facts.causes)} causes of failures"
    )
    return "\n".join(lines)


def check_against_index(facts: Facts, versions: Collection[str], layout: Layout) -> str:
    """Compare the facts with the index that pip uses: of some releases of the base package, or all.

    Raises ConfigError where a difference has no explanation, UnknownReleaseError and NetworkError.
    """
    chosen = {find_release(facts, base_package(facts).name, name).version for name in versions}
    with console.show_progress() as bars:
        report = upstream_check.compare_with_index(
            facts, chosen, package_index.configured_index(), layout.cache / "upstream", bars
        )
    text = "\n".join(report.lines())
    if report.unexplained:
        raise ConfigError(
            f"build_configs and the index differ:\n{text}\nCorrect the release file, or say in its table "
            "'explained' why the index is odd",
            code="facts-differ",
        )
    return text


def read_code(facts: Facts, layout: Layout, *, write: bool) -> str:
    """Read the device code in the wheels on the index, and what they require; return what to say.

    What was read before is taken from the cache. Raises NetworkError.
    """
    where, cache = package_index.configured_index(), layout.cache / "upstream"
    with console.show_progress() as bars:
        observed = upstream_check.observe_index(facts, (), where, cache, bars)
        wheels, libraries = official_code.read_packages(facts, observed, where, cache, bars)
    lines = [f"{package}: {len(found)} readings" for package, found in wheels.items()]
    lines.append(f"{len(libraries)} of NVIDIA's packages")
    if write:
        folder = facts.patches.parent
        written = [
            official_code.write_wheel_code(folder, package, found)
            for package, found in wheels.items()
        ]
        written.append(official_code.write_package_code(folder, facts, libraries))
        lines += [f"wrote {path}" for path in written]
    return "\n".join(lines)


def draft_releases(facts: Facts, layout: Layout) -> Mapping[str, str]:
    """Return the drafted file of each release that appeared, by its version; raises NetworkError."""
    with console.show_progress() as bars:
        observed = upstream_check.observe_index(
            facts, (), package_index.configured_index(), layout.cache / "upstream", bars
        )
    return {
        version: upstream_draft.draft_release(facts, observed, version)
        for version in upstream_draft.new_releases(facts, observed)
    }


def look_after_facts(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    check: bool = False,
    release: list[str] | None = None,
    new: bool = False,
    code: bool = False,
    write: bool = False,
    table: bool = False,
) -> str:
    """Say what build_configs/ holds, compare it with PyPI, draft releases."""
    reference = CHECKOUT / "docs" / "reference" if table else None
    return run_facts(
        FactsOptions(check, tuple(release or ()), new, code, write, reference), facts, layout
    )

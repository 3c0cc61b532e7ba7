"""`invoke facts`: summarize build_configs/, compare it with an index, draft releases."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools import (
    code_files,
    compatibility_page,
    extensions_page,
    fact_schemas,
    failures_page,
    json_schema,
    official_code,
    official_code_page,
    output_schemas,
    package_wheels,
    upstream_check,
    upstream_draft,
    ways_page,
)
from tools.toolkit_gaps import describe_gaps, refuse_different_drivers
from tools.unused_rules import refuse_unused_rules
from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package, find_release
from torchmill.core import console
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import ConfigError
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.fetch import package_index

_CACHE_FOLDER = "upstream"  # in the user's cache: results about wheels of an index

WAYS = "compatibility/ways.md"


@dataclass(frozen=True, slots=True)
class FactsOptions:
    """The options of the task; without any, it prints a summary."""

    check: bool
    releases: tuple[str, ...]  # to which the check is restricted; (): all
    new: bool
    code: bool  # read the device code in the wheels on the index
    wheels: bool  # compare the recorded wheels of packages with the index
    write: bool  # write the drafts, and what was read
    # docs/reference, if its generated pages are to be written, and the schemas of the facts
    reference: Path | None


def run_facts(options: FactsOptions, facts: Facts, layout: Layout) -> str:
    """Do what the options say, and return the text to print.

    Raises ConfigError for contradictory options, and for a file of facts that is left out because
    it has mistakes; otherwise what the parts raise.
    """
    facts_reader.require_complete(facts)
    if options.write and not (options.new or options.code or options.wheels):
        raise ConfigError(
            "--write writes what --new drafts, or --code or --wheels read: give one of them, too",
            code="contradictory-options",
        )
    texts = []
    if options.reference:
        texts.append(write_pages(options.reference, facts))
        texts.append(write_schemas(options.reference))
    if options.new:
        drafts = draft_releases(facts, layout)
        if options.write:
            _write_drafts(drafts, facts)
        texts.extend(drafts.values() or ["every release on the index has its file"])
    if options.code:
        texts.append(read_code(facts, layout, write=options.write))
    if options.wheels:
        texts.append(read_wheels(facts, layout, write=options.write))
    if options.check or options.releases:
        texts.append(check_against_index(facts, options.releases, layout))
    return "\n".join(texts) or summarize_facts(facts)


def _write_drafts(drafts: Mapping[str, str], facts: Facts) -> None:
    """Write the drafted files of releases, by version."""
    # the folder of a project's own facts, which an installed suite merges with the shipped ones
    own_folder = os.environ.get("TORCHMILL_OWN_CONFIGS")
    folder = Path(own_folder or facts.folder) / "releases"
    for version, text in drafts.items():
        write_atomically(folder / f"{version}.toml", text)


def write_pages(reference: Path, facts: Facts) -> str:
    """Write the generated pages below `reference`, and return the text to print."""
    pages = generated_pages(facts)
    for folder in ("compatibility", "failures"):
        for old_page in (reference / folder).glob("*.md"):
            old_page.unlink()
    for name, text in pages.items():
        (reference / name).write_text(text, encoding="utf-8")
    return f"wrote {len(pages)} pages in {reference}"


def write_schemas(reference: Path) -> str:
    """Write the schemas of facts, and of JSON outputs below `reference`; return a text to print."""
    facts_folder = CHECKOUT / "build_configs" / fact_schemas.FOLDER
    outputs_folder = reference / output_schemas.FOLDER
    lines = [
        json_schema.write_schemas(facts_folder, fact_schemas.fact_schemas()),
        json_schema.write_schemas(outputs_folder, output_schemas.output_schemas()),
    ]
    return "\n".join(lines)


def generated_pages(facts: Facts) -> dict[str, str]:
    """Return every page that is made of the facts, by its path below docs/reference/."""
    walks = ways_page.walk_every_pair(facts)
    return pages_without_walks(facts) | {WAYS: ways_page.ways_page(facts, walks)}


def pages_without_walks(facts: Facts) -> dict[str, str]:
    """Return the generated pages but for `WAYS`, whose walks take most of the time."""
    catalogue = (facts.folder / "causes.toml").read_text("utf-8")
    compatibility = {
        **compatibility_page.compatibility_pages(facts),
        **official_code_page.code_pages(facts),
        "extensions.md": extensions_page.extensions_page(facts),
    }
    failures = failures_page.failure_pages(catalogue, facts.causes)
    pages = {f"compatibility/{name}": text for name, text in compatibility.items()}
    return pages | {f"failures/{name}": text for name, text in failures.items()}


def summarize_facts(facts: Facts) -> str:
    """Return the numbers of the facts, and notes on what they leave open about CUDA toolkits.

    Raises ConfigError for rules without effect, and for drivers that contradict each other.
    """
    refuse_unused_rules(facts)
    refuse_different_drivers(facts)
    lines = []
    for package in facts.packages.values():
        releases = len(facts.releases[package.name])
        lines.append(f"{package.name}: {releases} releases, {len(package.rules)} rules")
    lines.append(
        f"{len(facts.toolkits)} CUDA toolkits, {len(facts.gpus.capabilities)} compute capabilities, "
        f"{len(facts.causes)} causes of failures"
    )
    lines += describe_gaps(facts)
    return "\n".join(lines)


def check_against_index(facts: Facts, versions: Collection[str], layout: Layout) -> str:
    """Compare the facts with the index that pip uses, and return the report.

    `versions` are those releases of the base package to compare; none stands for all. Raises
    ConfigError if a difference has no explanation, UnknownReleaseError and NetworkError.
    """
    base = base_package(facts).name
    chosen = {find_release(facts, base, version).version for version in versions}
    index = package_index.configured_index()
    with console.show_progress() as bars:
        report = upstream_check.compare_with_index(
            facts, chosen, index, layout.cache / _CACHE_FOLDER, bars
        )
    text = "\n".join(report.lines())
    if report.unexplained:
        raise ConfigError(
            f"build_configs and the index differ:\n{text}\nCorrect the release file, or say in its "
            "table 'explained' why the index is odd",
            code="facts-differ",
        )
    return text


def read_code(facts: Facts, layout: Layout, *, write: bool) -> str:
    """Read the device code in the wheels on the index, and return the text to print.

    Results of earlier runs are in the cache. Raises NetworkError.
    """
    index = package_index.configured_index()
    cache = layout.cache / _CACHE_FOLDER
    with console.show_progress() as bars:
        observed = upstream_check.observe_index(facts, (), index, cache, bars)
        codes, libraries = official_code.read_packages(facts, observed, index, cache, bars)
    lines = [f"{package}: {len(wheels)} readings" for package, wheels in codes.items()]
    lines.append(f"{len(libraries)} of NVIDIA's packages")
    if write:
        folder = facts.folder
        for package, wheels in codes.items():
            path = code_files.write_wheel_code(folder, package, wheels)
            lines.append(f"wrote {path}")
        path = code_files.write_package_code(folder, facts, libraries)
        lines.append(f"wrote {path}")
    return "\n".join(lines)


def read_wheels(facts: Facts, layout: Layout, *, write: bool) -> str:
    """Compare the recorded wheels of packages with the index, and return the text to print.

    What earlier runs read in the wheels is in the cache. Raises NetworkError.
    """
    index = package_index.configured_index()
    with console.show_progress() as bars:
        lines = package_wheels.record_wheels(
            facts, index, layout.cache / _CACHE_FOLDER, bars, write=write
        )
    return "\n".join(lines)


def draft_releases(facts: Facts, layout: Layout) -> Mapping[str, str]:
    """Return the drafted file of each new release on the index, by version. Raises NetworkError."""
    index = package_index.configured_index()
    with console.show_progress() as bars:
        observed = upstream_check.observe_index(
            facts, (), index, layout.cache / _CACHE_FOLDER, bars
        )
    versions = upstream_draft.new_releases(facts, observed)
    return {version: upstream_draft.draft_release(facts, observed, version) for version in versions}


def look_after_facts(
    facts: Facts,
    layout: Layout,
    *,
    check: bool = False,
    release: list[str] | None = None,
    new: bool = False,
    code: bool = False,
    wheels: bool = False,
    write: bool = False,
    table: bool = False,
) -> str:
    """Say what build_configs/ holds, compare it with PyPI, draft releases."""
    reference = CHECKOUT / "docs" / "reference" if table else None
    options = FactsOptions(check, tuple(release or ()), new, code, wheels, write, reference)
    return run_facts(options, facts, layout)

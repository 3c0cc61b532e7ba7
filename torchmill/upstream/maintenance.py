"""What `invoke facts` does: look after build_configs/ itself."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill import compatibility, console, matrix, stale
from torchmill.diagnosis import page
from torchmill.errors import ConfigError
from torchmill.layout import Layout
from torchmill.model import Facts
from torchmill.upstream import check, draft, index


@dataclass(frozen=True, slots=True)
class Orders:
    """What is asked for; nothing means a summary."""

    check: bool
    releases: tuple[str, ...]  # that the check is restricted to; (): all
    new: bool
    write: bool  # the drafts
    table: Path | None  # where the table goes; the page of failures lies beside it


def carry_out(orders: Orders, facts: Facts, layout: Layout) -> str:
    """Do what is asked for and return what there is to say.

    Raises ConfigError for orders that make no sense, and as the parts do.
    """
    said = []
    if orders.write and not orders.new:
        raise ConfigError("--write writes what --new drafts: give both")
    if orders.table:
        orders.table.write_text(compatibility.page(facts), encoding="utf-8")
        failures = orders.table.with_name("diagnose.md")
        failures.write_text(
            page.renewed(failures.read_text(encoding="utf-8"), facts.causes), encoding="utf-8"
        )
        said.append(f"{orders.table.name} and {failures.name} are written")
    if orders.new:
        found = drafts(facts, layout)
        for version, text in found.items() if orders.write else ():
            (facts.patches.parent / "releases" / f"{version}.toml").write_text(text, encoding="utf-8")
        said.extend(found.values() or ["every release on the index has its file"])
    if orders.check or orders.releases:
        said.append(checked(facts, orders.releases, layout))
    return "\n".join(said) or summary(facts)


def summary(facts: Facts) -> str:
    """Return what the facts hold, in numbers; raises ConfigError for rules without effect."""
    stale.check(facts)
    lines = [
        f"{package.name}: {len(facts.releases[package.name])} releases, {len(package.rules)} rules"
        for package in facts.packages.values()
    ]
    capabilities = f"{len(facts.capabilities)} compute capabilities"
    lines.append(
        f"{len(facts.toolkits)} CUDA toolkits, {capabilities}, {len(facts.causes)} causes of failures"
    )
    return "\n".join(lines)


def checked(facts: Facts, versions: Collection[str], layout: Layout) -> str:
    """Compare the facts with the index that pip uses: of some releases of the base package, or all.

    Raises ConfigError where a difference has no explanation, UnknownReleaseError and NetworkError.
    """
    chosen = {matrix.find_release(facts, matrix.base_package(facts).name, name).version for name in versions}
    with console.progress() as bars:
        report = check.check(facts, chosen, index.configured(), layout.cache / "upstream", bars)
    text = "\n".join(report.lines())
    if report.unexplained:
        raise ConfigError(
            f"build_configs and the index differ:\n{text}\nCorrect the release file, or say in its table "
            "'explained' why the index is odd"
        )
    return text


def drafts(facts: Facts, layout: Layout) -> Mapping[str, str]:
    """Return the drafted file of each release that appeared, by its version; raises NetworkError."""
    with console.progress() as bars:
        observed = check.observe(facts, (), index.configured(), layout.cache / "upstream", bars)
    return {
        version: draft.of_release(facts, observed, version) for version in draft.appeared(facts, observed)
    }

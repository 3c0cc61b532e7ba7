"""Read build_configs/ into the model; every problem is collected and told at once."""

import os
from collections.abc import Iterator
from pathlib import Path

from torchmill.errors import ConfigError
from torchmill.facts import causes as causes_
from torchmill.facts import conda as conda_
from torchmill.facts import costs, indexes, machines, provision
from torchmill.facts import images as images_
from torchmill.facts import packages as packages_
from torchmill.facts import releases as releases_
from torchmill.facts import units as units_
from torchmill.model import Facts, Package


def chosen(root: Path) -> Facts:
    """Read the facts of a checkout, or those that TORCHMILL_CONFIGS names instead.

    Raises ConfigError as `load` does.
    """
    return load(Path(os.environ.get("TORCHMILL_CONFIGS", root / "build_configs")))


def load(folder: Path) -> Facts:
    """Read the facts in `folder`.

    Raises ConfigError with one line for each problem found.
    """
    problems: list[str] = []
    arches = machines.arches(folder / "arches.toml", problems)
    toolkits = machines.toolkits(folder / "toolkits.toml", problems)
    files = sorted((folder / "packages").glob("*.toml"))
    packages = {package.name: package for package in (packages_.package(path, problems) for path in files)}
    if not packages:
        problems.append(f"{folder}: there is no packages/*.toml in it")
    releases = releases_.releases(folder / "releases", packages, problems)
    spelling, names = machines.arch_names(folder / "arch_names.toml", problems)
    runs, peaks, assumed = costs.runs(folder / "runs.toml", problems)
    facts = Facts(
        packages,
        releases,
        toolkits,
        arches,
        folder / "patches",
        capabilities=machines.capabilities(folder / "gpus.toml", problems),
        arch_names=names,
        arch_spelling=spelling,
        causes=causes_.causes(folder / "causes.toml", problems),
        runs=runs,
        peaks=peaks,
        assumed=assumed,
        linking=costs.linking(folder / "linking.toml", problems),
        units=units_.units(folder / "units.toml", problems),
        toolkit_sources=provision.sources(folder / "toolkit_sources.toml", problems),
        toolkit_parts=provision.parts(folder / "toolkit_parts.toml", problems),
        elsewhere=indexes.wheels(folder / "indexes.toml", problems),
        images=images_.images(folder / "images.toml", problems),
        conda=conda_.conda(folder / "conda.toml", problems),
    )
    _cross_check(facts, problems)
    if problems:
        raise ConfigError("build_configs has problems:\n" + "\n".join(f"  {line}" for line in problems))
    return facts


def _cross_check(facts: Facts, problems: list[str]) -> None:
    """Note what no single file can know: names that lead nowhere."""
    for releases in facts.releases.values():
        for release in releases:
            problems.extend(
                f"{release.package} {release.version}: unknown arch '{arch}'; arches.toml has "
                f"{', '.join(facts.arches)}"
                for arch in release.arches
                if arch not in facts.arches
            )
    problems.extend(
        f"units.toml: '{unit.pattern}': unknown package '{unit.package}'; packages/ has "
        f"{', '.join(facts.packages)}"
        for unit in facts.units
        if unit.package and unit.package not in facts.packages
    )
    for package in facts.packages.values():
        problems.extend(_misnamed(facts, package))
        for rule in package.rules:
            problems.extend(
                f"{rule.name}: patch '{patch}' is not in patches/{package.name}/"
                for patch in rule.patches
                if not (facts.patches / package.name / patch).is_file()
            )


def _misnamed(facts: Facts, package: Package) -> Iterator[str]:
    """Yield what a package says of another that is not so."""
    if package.after is not None and package.after not in facts.packages:
        yield f"{package.name}.toml: 'after' is '{package.after}'; packages/ has {', '.join(facts.packages)}"
    for other in facts.packages.values():
        if other.session == package.session and other.name < package.name:
            yield f"{package.name}.toml: 'session' is '{package.session}', which is that of {other.name}"

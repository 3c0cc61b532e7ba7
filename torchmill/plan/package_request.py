"""Packages that a user asks for by their names on PyPI, as in `invoke build flash-attn`.

A name says neither the Python nor the toolkit nor the torch. A *given torch* decides on them: the
one that is installed in the user's environment, or else the wheel on PyPI. Torch itself is compiled
only if it is among the names.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.build import CPU
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.release_lookup import all_pythons, base_package, find_release, paired_release
from torchmill.core.errors import ConfigError, ImpossibleBuildError, UnknownReleaseError
from torchmill.host.host import Host
from torchmill.plan import cell_lookup
from torchmill.plan.base_package import named_torch, recorded_pypi_variant
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.cell_choice import BuildQuestion, choose_cells, split_texts, usual_python
from torchmill.plan.options import tag_of_torch
from torchmill.plan.trial import find_trial
from torchmill.plan.wheel_name import python_tag


@dataclass(frozen=True, slots=True)
class GivenTorch:
    """A torch that packages are built against, and that is not built itself."""

    option: str  # the value of `--torch`: the path of a wheel or a folder, or PYPI
    release: Release
    python: str  # "3.12", "3.13t"
    variant: str  # "cu130"; "" if nothing tells it

    def __str__(self) -> str:
        """Return the release, where it is, its toolkit and Python, for a sentence."""
        place = "of PyPI" if self.option == PYPI else f"in {self.option}"
        toolkit = f"{self.variant}, " if self.variant else ""
        return f"{self.release} {place} ({toolkit}Python {self.python})"


def by_canonical_name(packages: Iterable[Package]) -> dict[str, Package]:
    """Return packages by their names, and by those of their projects, in PyPI's normal form."""
    packages_by_name: dict[str, Package] = {}
    for package in packages:
        packages_by_name[canonicalize_name(package.name)] = package
        if package.source.pypi:
            packages_by_name[canonicalize_name(package.source.pypi)] = package
    return packages_by_name


def named_packages(facts: Facts, names: Iterable[str]) -> dict[str, Package]:
    """Return the packages that names mean, by these names, in any spelling that PyPI allows.

    Names of no package, such as those of cells, are left out.
    """
    packages = by_canonical_name(facts.packages.values())
    packages_by_name: dict[str, Package] = {}
    for name in names:
        canonical_name = canonicalize_name(name)
        if canonical_name in packages:
            packages_by_name[name] = packages[canonical_name]
    return packages_by_name


def split_torch(torch: str | None, tag: str) -> tuple[str | None, str]:
    """Return the values of `--torch` and `--tag` for a torch that may be named by its release.

    A torch that is None or named otherwise stays as it is, and so does the tag. "" is no tag.
    Raises ConfigError if the tag is that of another release than the torch.
    """
    torch_tag = tag_of_torch(torch or "")
    if not torch_tag:
        return torch, tag
    # `--tag` takes the version as well: "2.13.0" is v2.13.0.
    if tag and (tag_of_torch(tag) or tag) != torch_tag:
        raise ConfigError(
            f"--torch {torch} names another release than --tag {tag}: leave one of them out",
            code="torch-of-another-release",
        )
    return PYPI, torch_tag


def torch_of_path(facts: Facts, options: Options) -> GivenTorch:
    """Return the torch that `--torch` names by a path: a wheel, or an environment that has it.

    Raises UnknownReleaseError for a release without facts; ConfigError if its version or Python
    cannot be told, or if an environment has torch more than once.
    """
    base = base_package(facts).name
    try:
        torch = named_torch(base, options)
        release = find_release(facts, base, Version(torch.version).base_version)
    except ValueError:  # of packaging, also for a number of more digits than Python reads
        raise _unreadable_torch_error(options) from None
    for python in all_pythons(facts):
        if any(tag.startswith(f"{python_tag(python)}-") for tag in torch.tags):
            return GivenTorch(options.torch or "", release, python, torch.variant)
    raise _unreadable_torch_error(options)


def _unreadable_torch_error(options: Options) -> ConfigError:
    """Return the error for a torch of `--torch` whose release or Python cannot be told."""
    return ConfigError(
        f"cannot tell the release or the Python of the torch in {options.torch}: name another with "
        "--torch, a wheel of it, an environment that has it, or PyPI",
        code="no-such-wheel",
    )


def torch_on_pypi(
    facts: Facts, packages: Sequence[Package], arch: str, python: str, selected: Release | None
) -> GivenTorch:
    """Return the torch on PyPI that packages are built against.

    That is the selected release, whether packages go with it or not. Without one, only releases for
    the Python and the arch count with which every package has a release that goes: the newest
    against which every package is known to have been built, else the newest. Raises
    UnknownReleaseError if there is none.
    """
    if selected is not None:
        return _pypi_torch(facts, selected, arch, python)
    fitting: list[GivenTorch] = []
    for release in reversed(facts.releases[base_package(facts).name]):
        goes_with_all = all(paired_release(facts, package.name, release) for package in packages)
        if goes_with_all and python in release.pythons and arch in release.arches:
            fitting.append(_pypi_torch(facts, release, arch, python))
    for torch in fitting:
        if all(_was_built_against(facts, package, torch, arch) for package in packages):
            return torch
    if not fitting:
        listed = " and ".join(package.name for package in packages)
        raise UnknownReleaseError(
            f"no release of torch for Python {python} on {arch} is known to go with {listed}: "
            "`invoke matrix --package NAME` shows which release goes with what",
            code="no-partner-release",
        )
    return fitting[0]


def _pypi_torch(facts: Facts, release: Release, arch: str, python: str) -> GivenTorch:
    """Return the torch of a release on PyPI, with the variant that is recorded for its wheel."""
    return GivenTorch(PYPI, release, python, recorded_pypi_variant(facts, release, arch))


def _was_built_against(facts: Facts, package: Package, torch: GivenTorch, arch: str) -> bool:
    """Tell whether somebody is known to have built a package against a torch."""
    (name,) = cell_names([package], [torch.python], [usual_variant(torch)])
    try:
        cell = cell_lookup.find_cell(facts, name, arch, torch.release)
    except (ImpossibleBuildError, UnknownReleaseError):
        return False
    return find_trial(facts, cell).witness is not None


def cell_names(
    packages: Iterable[Package], pythons: Iterable[str], variants: Sequence[str]
) -> list[str]:
    """Return the names of the cells that build packages for each Python and variant."""
    names: list[str] = []
    for package in packages:
        for python in pythons:
            for variant in variants:
                name = f"{package.session}-{python}-{variant}"
                names.append(cell_lookup.usual_spelling(name))
    return names


@dataclass(frozen=True, slots=True)
class PackageBuilds:
    """The builds that a user asked for by the names of packages."""

    names: Sequence[str]  # of their cells
    release: Release | None  # of torch; None: any
    torch: GivenTorch | None = None  # None: torch is built, too


def choose_package_builds(
    facts: Facts,
    packages: Sequence[Package],
    question: BuildQuestion,
    *,
    host: Host,
    arch: str,
    torch: GivenTorch | None,
    selected: Release | None,
) -> PackageBuilds:
    """Return the builds of packages, each for the Pythons and variants of a question.

    If torch is among the packages, it is built, too, all for the machine of the host. Else they are
    built against `torch`, or the torch on PyPI if that is None, for machines of `arch`, which may
    be another one than the host's. Raises as `torch_on_pypi` and `choose_cells` do.
    """
    base = base_package(facts)
    pythons = split_texts(question.pythons)
    variants = split_texts(question.variants)
    dependents = [package for package in packages if package != base]
    if base in packages:
        cells = choose_cells(facts, question._replace(names=()), host, selected)
        names: list[str] = []
        for cell in cells:
            names.append(cell.build.identifier(host.arch))
            names += cell_names(dependents, [cell.build.python], [cell.build.variant])
        return PackageBuilds(names, cells[0].release)
    if torch is None:
        python = pythons[0] if pythons else usual_python(host)
        torch = torch_on_pypi(facts, dependents, arch, python, selected)
    names = cell_names(dependents, pythons or [torch.python], variants or [usual_variant(torch)])
    if arch != host.arch:
        names = [f"{name}-{arch}" for name in names]
    return PackageBuilds(names, torch.release, torch)


def usual_variant(torch: GivenTorch) -> str:
    """Return the variant that packages are built for if the user names none: the torch's."""
    return torch.variant or CPU

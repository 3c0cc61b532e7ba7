"""Read the files of releases: a table for each package, those of dependents after their base."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from torchmill.config.facts import BrokenFile
from torchmill.config.package import Package
from torchmill.config.package_reader import PackageFile
from torchmill.config.release import Cuda, Release
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.config.versions import is_version
from torchmill.core.stat_cache import StatCache


class ReleaseReader:
    """Reads files of releases into `releases`, those of each package in the order of the files."""

    def __init__(
        self,
        files: Iterable[PackageFile],
        arches: Collection[str],
        tried_keys: Collection[str],
        cache: StatCache | None,
    ) -> None:
        self.releases: dict[str, list[Release]] = {file.package.name: [] for file in files}
        # The base package first, because its table has values for its dependents. A dependent
        # whose file forgets `after` looks like the base, so packages with mistakes come last.
        self._packages = sorted(
            files, key=lambda file: (file.package.after is not None, bool(file.problems))
        )
        self._arches = arches
        self._tried_keys = tried_keys  # of the table `tried`: "cu118", "cu118-aarch64"
        self._cache = cache

    def read_files(self, folder: Path) -> list[BrokenFile]:
        """Take the releases of all files in a folder; return those that have mistakes instead."""
        broken: list[BrokenFile] = []
        for path in sorted(folder.glob("*.toml")):
            problems: list[str] = []
            releases = self._read_file(path, problems)
            if problems:
                names = (path.stem, f"v{path.stem}", *(release.tag for release in releases))
                broken.append(BrokenFile(f"releases/{path.name}", names, tuple(problems)))
                continue
            for release in releases:
                self.releases[release.package].append(release)
        return broken

    def _read_file(self, path: Path, problems: list[str]) -> list[Release]:
        table = read_toml(path, problems, cache=self._cache)
        releases: list[Release] = []
        for file in self._packages:
            name = file.package.name
            if not name:
                # The package's file cannot be read, so its releases cannot be checked.
                table.data.pop(file.stem, None)
                continue
            if name in table.data:
                base = releases[0] if releases else None  # the base package is read first
                releases.append(_read_release(table.table(name), file.package, base))
            table.requested.append(name)
        table.check_unknown_keys()
        for release in releases:
            problems.extend(self.unknown_machines(release))
        return releases

    def unknown_machines(self, release: Release) -> Iterator[str]:
        """Yield a line for each arch or variant of a release that no file describes."""
        for arch in release.arches:
            if arch not in self._arches:
                choices = ", ".join(self._arches)
                yield f"{release}: unknown arch '{arch}'; arches.toml has {choices}"
        for key in release.tried:
            if key not in self._tried_keys:
                yield (
                    f"{release}: 'tried' names '{key}', expected a variant, "
                    "as in 'cu118' or 'cu118-aarch64'"
                )


def _read_release(table: TomlTable, package: Package, base: Release | None) -> Release:
    """Return a release; a dependent one has Pythons, arches and toolkits of `base` by default.

    `base` is the release of the base package in the same file; None for that one itself.
    """
    version = table.version("version")
    return table.read(
        Release,
        package=package.name,
        version=version,
        tag=package.tag.format(version=version),
        pythons=table.pythons("pythons", base.pythons if base else None),
        arches=table.texts("arches", base.arches if base else None),
        torch=base.version if base else None,
        built_from=_read_built_from(table),
        # Only releases that a package's own file declares (editions) have these.
        sha256=None,
        stable_abi=None,
        **_read_toolkits(table.table("cuda"), base),
    )


def _read_toolkits(cuda: TomlTable, base: Release | None) -> dict[str, Any]:
    """Return the fields of a release about CUDA; without a table they are those of its base."""
    if base is not None and not cuda.data:
        return {
            "cuda": base.cuda,
            "cuda_official": base.cuda_official,
            "cuda_pypi": base.cuda_pypi,
        }
    fields = {
        "cuda": cuda.specifier("range"),
        "cuda_official": cuda.map("official", _read_cuda),
        "cuda_pypi": cuda.optional("pypi"),
    }
    cuda.check_unknown_keys()
    return fields


def _read_cuda(official: TomlTable, version: str) -> Cuda:
    """Read the facts about official wheels with one toolkit: NVIDIA's libraries and the arch lists.

    The version of a library that has no key is the one that the wheels require.
    """
    table = official.table(version)
    if not is_version(version):
        table.problem(f"'{version}' is not a version of CUDA, such as '12.4'")
    lists = {
        "x86_64": table.optional("capabilities"),
        "aarch64": table.optional("capabilities_aarch64"),
    }
    requires = table.texts("requires", ())
    requirements: list[Requirement] = []
    for text in requires:
        try:
            requirements.append(Requirement(text))
        except InvalidRequirement:
            table.problem(f"'requires' has '{text}', which is not a requirement (PEP 508)")
    capabilities = {arch: listed for arch, listed in lists.items() if listed}
    cuda = table.read(Cuda, capabilities=capabilities, requires=requires)
    return replace(
        cuda,
        cusparselt=cuda.cusparselt or _pinned_version(requirements, "cusparselt"),
        nvshmem=cuda.nvshmem or _pinned_version(requirements, "nvshmem"),
    )


def _pinned_version(requirements: Iterable[Requirement], library: str) -> str | None:
    """Return the version in the requirement "nvidia-LIBRARY-cu12==VERSION"; None if there is none."""
    for requirement in requirements:
        if f"-{library}-" not in requirement.name:
            continue
        for specifier in requirement.specifier:
            if specifier.operator == "==":
                return specifier.version
    return None


def _read_built_from(table: TomlTable) -> dict[str, tuple[str, ...]]:
    """Read a commit, of all wheels, or a table of commits with the wheels that each is in."""
    if isinstance(table.data.get("built_from"), str):
        return {table.text("built_from"): ()}
    return table.map("built_from", TomlTable.texts)

"""Read the files of releases: each has a table for the base package, and one for each dependent.

The base package is torch. Its dependents, such as torchvision, are built against it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchmill.config.facts import BrokenFile
from torchmill.config.package import Package
from torchmill.config.package_reader import PackageFile
from torchmill.config.release import (
    CudaSupport,
    OfficialCuda,
    Release,
    ReleaseProof,
    UpstreamWheels,
    WheelTraits,
)
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.config.versions import is_version
from torchmill.core.stat_cache import StatCache

WHEEL_KEYS = {"tag": "wheel_tag"}  # field of WheelTraits -> its key, if that is another


class ReleaseReader:
    """Reads files of releases into `releases`, those of each package in the order of the files."""

    def __init__(
        self,
        files: Sequence[PackageFile],
        arches: Collection[str],
        tried_keys: Collection[str],
        cache: StatCache | None,
    ) -> None:
        # A file that cannot be read names no package.
        readable = [file for file in files if file.package.name]
        self.releases: dict[str, list[Release]] = {file.package.name: [] for file in readable}
        # The base package first, because its table has values for its dependents. A dependent
        # whose file forgets `after` looks like the base, so packages with mistakes come last.
        readable.sort(key=lambda file: (file.package.after is not None, bool(file.problems)))
        self._packages = [file.package for file in readable]
        # Releases of these packages cannot be checked, so their tables are passed over.
        self._unchecked = [file.stem for file in files if not file.package.name]
        if all(package.after is not None for package in self._packages):
            # The base package is among the files that cannot be read.
            self._unchecked += [package.name for package in self._packages]
        self._arches = arches
        self._tried_keys = tried_keys  # of the table `tried`: "cu118", "cu118-aarch64"
        self._cache = cache

    def read_files(self, folder: Path) -> list[BrokenFile]:
        """Add the releases of all files in a folder to `releases`.

        Returns the files that have mistakes. Of these, no release is added.
        """
        broken: list[BrokenFile] = []
        for path in sorted(folder.glob("*.toml")):
            problems: list[str] = []
            releases = self._read_file(path, problems)
            if problems:
                # Whoever names a release of this file is told why it is missing. The file has the
                # version of the base package as its name, and torch's tags are such as "v2.1.0".
                names = (path.stem, f"v{path.stem}", *(release.tag for release in releases))
                broken.append(BrokenFile(f"releases/{path.name}", names, tuple(problems)))
                continue
            for release in releases:
                self.releases[release.package].append(release)
        return broken

    def _read_file(self, path: Path, problems: list[str]) -> list[Release]:
        """Return the releases in a file, and add its mistakes to `problems`."""
        table = read_toml(path, problems, cache=self._cache)
        for name in self._unchecked:
            table.data.pop(name, None)
        releases: list[Release] = []
        base: Release | None = None
        for position, package in enumerate(self._packages):
            is_described = package.name in table.data
            package_table = table.table(package.name)  # makes the name a known key of the file
            if not is_described:
                continue
            is_base = position == 0
            if base is None and not is_base:
                table.note_problem(
                    f"it has [{package.name}], but not [{self._packages[0].name}], against which "
                    "that is built"
                )
                continue
            release = _read_release(package_table, package, base)
            releases.append(release)
            if is_base:
                base = release
        table.check_unknown_keys()
        for release in releases:
            problems.extend(self.unknown_targets(release))
        return releases

    def unknown_targets(self, release: Release) -> Iterator[str]:
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

    `base` is the release of the base package in the same file; None when reading the base package's
    own release.
    """
    version = table.version("version")
    # For users, the fields of these groups are keys of the release's table. A digest of an archive
    # and a stable ABI have only editions: releases that the package's own file declares, each for
    # a range of torch.
    return table.read(
        Release,
        package=package.name,
        version=version,
        tag=package.source.tag.format(version=version),
        torch=base.version if base else None,
        pythons=table.pythons("pythons", base.pythons if base else None),
        arches=table.texts("arches", base.arches if base else None),
        cuda=_read_toolkits(table.table("cuda"), base),
        proof=table.read_fields(ReleaseProof, {}, sha256=None),
        wheel=table.read_fields(WheelTraits, WHEEL_KEYS, stable_abi=None),
        upstream=table.read_fields(UpstreamWheels, {}, built_from=_read_built_from(table)),
    )


def _read_toolkits(cuda: TomlTable, base: Release | None) -> CudaSupport:
    """Return the toolkits of a release; without a table they are those of its base.

    A release without a base, and without a table, is built for the CPU only.
    """
    if base is not None and not cuda.data:
        return base.cuda
    return cuda.read(CudaSupport, official=cuda.map("official", _read_cuda))


def _read_cuda(toolkits: TomlTable, version: str) -> OfficialCuda:
    """Read the facts about official wheels with one toolkit: NVIDIA's libraries and the arch lists.

    `toolkits` has a table for each toolkit, and `version` is the toolkit to read. Without the key
    `cusparselt` (or `nvshmem`), the version of that library is the one pinned in `requires`.
    """
    table = toolkits.table(version)
    if not is_version(version):
        table.note_problem(f"'{version}' is not a version of CUDA, such as '12.4'")
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
            table.note_problem(f"'requires' has '{text}', which is not a requirement (PEP 508)")
    capabilities = {arch: listed for arch, listed in lists.items() if listed}
    cuda = table.read(OfficialCuda, capabilities=capabilities, requires=requires)
    return replace(
        cuda,
        cusparselt=cuda.cusparselt or _pinned_version(requirements, "cusparselt"),
        nvshmem=cuda.nvshmem or _pinned_version(requirements, "nvshmem"),
    )


def _pinned_version(requirements: Iterable[Requirement], library: str) -> str | None:
    """Return the version in the requirement "nvidia-LIBRARY-cu12==VERSION"; None if there is none."""
    for requirement in requirements:
        if f"-{library}-" not in canonicalize_name(requirement.name):
            continue
        for specifier in requirement.specifier:
            if specifier.operator == "==":
                return specifier.version
    return None


def _read_built_from(table: TomlTable) -> dict[str, tuple[str, ...]]:
    """Return the commits from which wheels on PyPI were built, each with the tags of its wheels.

    These are a platform tag, alone or after a Python: {"49444c3…": ("win_amd64",), "e7ec7e2…":
    ("3.9 macosx_11_0_arm64",)}. A single commit instead of a table is that of all wheels:
    {"49444c3…": ()}.
    """
    if isinstance(table.data.get("built_from"), str):
        return {table.text("built_from"): ()}
    return table.map("built_from", TomlTable.texts)

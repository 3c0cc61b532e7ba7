"""The builds that this machine has made, by the manifests of its wheels."""

from pathlib import Path
from typing import Any

from packaging.version import Version

from torchmill.config.build import CPU
from torchmill.config.costs import MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.versions import cuda_label
from torchmill.core.strict_json import parse_json
from torchmill.host.native import native_arch


def read_own_runs(facts: Facts, dist: Path) -> tuple[MeasuredRun, ...]:
    """Return the builds of the wheels in `dist`; a manifest that cannot be read is left out.

    Wheels for another architecture are left out, too: they were built in an emulator or by cross
    compilers, whose times say nothing about this machine.
    """
    arch = native_arch()
    foreign = tuple(f"_{name}.whl.json" for name in facts.arches if name != arch)
    runs: list[MeasuredRun] = []
    for path in sorted(dist.glob("*.whl.json")):
        if path.name.endswith(foreign):
            continue
        run = _read_run(facts, path, arch)
        if run is not None:
            runs.append(run)
    return tuple(runs)


def _read_run(facts: Facts, path: Path, arch: str) -> MeasuredRun | None:
    """Return the build that a manifest records.

    None if the manifest cannot be read, or is of a release without facts.
    """
    try:
        manifest = parse_json(path.read_text(encoding="utf-8"))
        # A manifest of an older format may lack any of these: such a build is left out.
        return MeasuredRun(
            package=manifest["package"],
            release=_release_version(facts, manifest["package"], manifest["tag"]),
            torch=_torch_release(manifest.get("torch")),
            variant=_variant(facts, manifest.get("toolkit")),
            machine="this machine",
            arch=arch,
            scope="compile",
            source=path.name.removesuffix(".json"),
            jobs=int(manifest["jobs"]),
            cpu_seconds=float(manifest["cpu_seconds"]),
            wall_seconds=float(sum(manifest["seconds"].values())),
            wheel=int(manifest["size"]),
            tree=_disk_bytes(manifest, "tree", "outputs"),
            environment=_disk_bytes(manifest, "environment"),
            capabilities=manifest["switches"].get("TORCH_CUDA_ARCH_LIST", ""),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _torch_release(requirement: str | None) -> str | None:
    """Return the release of torch, "2.11.0", that a wheel was built against; None for torch itself.

    `requirement` names its exact version: "torch==2.11.0+cu130".
    """
    if requirement is None:
        return None
    _, _, version = requirement.partition("==")
    return Version(version).base_version


def _variant(facts: Facts, toolkit_version: str | None) -> str:
    """Return the variant of a build with a toolkit, "cu118"; "cpu" for a build without one."""
    if not toolkit_version:
        return CPU
    toolkit = facts.toolkit(toolkit_version)
    if toolkit is None:  # other facts described it when the wheel was built
        return cuda_label(toolkit_version)
    return toolkit.variant


def _release_version(facts: Facts, package: str, tag: str) -> str:
    """Return the version of the release with a tag; raise LookupError if the facts have none."""
    for release in facts.releases[package]:
        if release.tag == tag:
            return release.version
    raise LookupError(tag)


def _disk_bytes(manifest: dict[str, Any], *parts: str) -> int | None:
    """Return the bytes that parts of a build took; None if an older manifest has no sizes.

    Raises LookupError if it has some sizes, but not these: then it is damaged.
    """
    disk = manifest.get("disk")
    if not disk:
        return None
    return sum(int(disk[part]) for part in parts)

"""The builds that this machine has made, read from the manifests beside their wheels."""

import json
from pathlib import Path
from typing import Any

from torchmill.host import native_arch
from torchmill.model import Facts, Run


def runs(facts: Facts, dist: Path) -> tuple[Run, ...]:
    """Read what the wheels in `dist` cost; a manifest that cannot be read is no run.

    Wheels for another arch were built in a container, emulated: they say nothing of this machine.
    """
    others = tuple(f"_{arch}.whl.json" for arch in facts.arches if arch != native_arch())
    paths = (path for path in sorted(dist.glob("*.whl.json")) if not path.name.endswith(others))
    found = (_run(facts, path) for path in paths)
    return tuple(run for run in found if run is not None)


def _run(facts: Facts, manifest: Path) -> Run | None:
    try:
        said = json.loads(manifest.read_text(encoding="utf-8"))
        release = next(
            one.version for one in facts.releases.get(said["package"], ()) if one.tag == said["tag"]
        )
        return Run(
            package=said["package"],
            release=release,
            variant="",
            machine="this machine",
            scope="compile",
            source=manifest.name.removesuffix(".json"),
            jobs=int(said["jobs"]),
            cpu=float(said["cpu_seconds"]),
            wall=float(sum(said["seconds"].values())),
            wheel=int(said["size"]),
            tree=_written(said, "tree", "outputs"),
            environment=_written(said, "environment"),
            capabilities=said["switches"].get("TORCH_CUDA_ARCH_LIST", ""),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None


def _written(said: dict[str, Any], *parts: str) -> int | None:
    """Return the bytes that parts of a build took; older manifests do not say."""
    disk = said.get("disk")
    return sum(int(disk[part]) for part in parts) if disk else None

"""Make a toolkit that lacks parts whole: of its own files, and NVIDIA's packages of its version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchmill.errors import HostError
from torchmill.host.cuda import Found
from torchmill.host.kept import TOOLKIT, Kept
from torchmill.host.parts import called, is_spread
from torchmill.host.programs import Run, version_in
from torchmill.model import Part, ToolkitSource
from torchmill.toolkit.choosing import supply
from torchmill.toolkit.provision import Shop, bring
from torchmill.toolkit.wanted import Wanted


def base(version: str, here: Sequence[Found]) -> Found:
    """Return the toolkit of a version that builds take. Raises HostError where none can be completed."""
    used: dict[str, Found] = {}
    for one in here:
        used.setdefault(one.version, one)
    found = used.get(version)
    if found is None:
        there = ", ".join(f"CUDA {one.version} in {one.home}" for one in used.values()) or "none at all"
        raise HostError(
            f"--complete {version}: no toolkit of that version is here to be completed (there is {there}): "
            f"bring a whole one: `invoke toolkit --cuda {version}`"
        )
    if is_spread(found.home):
        raise HostError(
            f"--complete {version}: it lies in {found.home} among the files of the system, where nothing "
            f"tells which are its own: bring a whole one: `invoke toolkit --cuda {version}`"
        )
    return found


def complete(found: Found, lacks: Sequence[Part], arch: str, shop: Shop) -> Kept:
    """Return a whole toolkit made of one that lacks parts, which builds then take in its place.

    Raises HostError for a compiler that does not run here, as another machine's, and for parts that cannot be
    had and that no build can go without; otherwise as `bring`.
    """
    _assure_running(found, shop.run)
    packages, left = supply(found.version, arch, lacks, shop.sources)
    stopping = [part for part in left if not part.without]
    if stopping or not packages:
        raise HostError(
            f"CUDA {found.version} in {found.home} lacks {called(stopping or left)}, which no package on "
            f"PyPI is known to hold for that version and {arch}: bring a whole one: "
            f"`invoke toolkit --cuda {found.version}`"
        )
    source = ToolkitSource("pypi", TOOLKIT, (found.version,), packages, (arch,), (), None, "")
    wanted = Wanted(TOOLKIT, found.version, None, arch, completes=str(found.home.resolve()))
    return bring(wanted, replace(shop, sources=(source,)))


def _assure_running(found: Found, run: Run) -> None:
    """Raise HostError for a toolkit whose compiler does not run here as its version."""
    said = run([str(found.home / "bin/nvcc"), "--version"])
    if version_in("nvcc", said) != found.version:
        shown = said.strip().replace("\n", " ") or "nothing"
        raise HostError(
            f"the nvcc in {found.home}/bin does not run here as CUDA {found.version} (it says: {shown}): it "
            f"is of another machine, or broken; bring a whole one: `invoke toolkit --cuda {found.version}`"
        )

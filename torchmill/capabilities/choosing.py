"""Choose the list of compute capabilities of a build: the user's, judged, or the official one, adapted."""

from collections.abc import Iterable

from packaging.version import Version

from torchmill.capabilities.judging import judge
from torchmill.capabilities.reading import read
from torchmill.capabilities.targets import Target, canonical, number
from torchmill.errors import ConfigError, ImpossibleBuildError
from torchmill.matrix import Cell, newest
from torchmill.model import Facts, Gpu, Host, Release, Toolkit


def chosen(facts: Facts, cell: Cell, host: Host, asked: str | None) -> str | None:
    """Return the value of TORCH_CUDA_ARCH_LIST for a cell, None for a build without CUDA.

    Raises ConfigError for a list that cannot be read, ImpossibleBuildError for one that the toolkit or
    the release does not take.
    """
    if asked is None:
        return official(facts, cell)
    toolkit = facts.toolkit(cell.build.cuda)
    if toolkit is None:
        raise ConfigError(
            f"--arch-list '{asked}': {cell.build.identifier(host.arch)} is built without CUDA; leave the "
            "option out, or take a CUDA build (`nox -l` lists them)"
        )
    return canonical(judged(facts, asked, toolkit, cell.release, host.gpus))


def judged(
    facts: Facts, asked: str, toolkit: Toolkit | None, release: Release | None, gpus: Iterable[Gpu]
) -> list[Target]:
    """Return what a list asks for; without a toolkit, or a release, it need only fit some.

    Raises ConfigError and ImpossibleBuildError as `chosen` does, with everything that stands against it.
    """
    targets, unreadable = read(facts, asked, (release or newest(facts)).torch_version, gpus)
    against = [*unreadable, *judge(facts, targets, toolkit, release)]
    if against:
        head = f"arch list '{asked}' cannot be used"
        head += f" for {release}" if release else ""
        head += f" with CUDA {toolkit.version}" if toolkit else ""
        message = "\n".join((f"{head}:", *(f"  {line}" for line in dict.fromkeys(against))))
        raise ConfigError(message) if unreadable else ImpossibleBuildError(message)
    return targets


def official(facts: Facts, cell: Cell) -> str | None:
    """Return the list of the official build with the nearest toolkit, as far as the cell's own makes it.

    The nearest is the newest that is not newer; where all are newer, the oldest. PTX of a capability that
    is left out goes to the next one, so that GPUs which the list does not name are still served. A toolkit
    for Jetson boards makes code for these: no official build serves them.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    listed = _nearest(cell, toolkit) if toolkit else None
    if toolkit is None or listed is None:
        return None
    targets, _ = read(facts, listed, cell.release.torch_version)
    kept = [one for one in targets if one.name in toolkit.capabilities]
    lost = [number(one.capability) for one in targets if one.ptx and one not in kept]
    if kept and lost:
        later = [one for one in kept if number(one.capability) > lost[-1]]
        heir = (later or kept[-1:])[0]
        kept.append(Target(heir.capability, heir.suffix, ptx=True))
    return canonical(kept) or None


def _nearest(cell: Cell, toolkit: Toolkit) -> str | None:
    if toolkit.jetson and cell.build.arch == "aarch64":
        return ";".join(toolkit.jetson)
    lists = {
        Version(cuda): said.capabilities.get(cell.build.arch, said.capabilities.get("x86_64", ""))
        for cuda, said in cell.release.cuda_official.items()
    }
    known = sorted(cuda for cuda, listed in lists.items() if listed)
    older = [cuda for cuda in known if cuda <= Version(toolkit.version)]
    return lists[(older[-1:] or known[:1])[0]] if known else None

"""Check disk and memory against the estimate of a build."""

from collections.abc import Iterable, Iterator, Mapping

from torchmill.config.facts_model import CostRange
from torchmill.config.model import Host, Package
from torchmill.core.units import format_bytes
from torchmill.plan import estimate
from torchmill.plan.doctor.finding import CheckContext, Finding, Verdict

_MOVE = "set TORCHMILL_HOME to another disk"


def check_room(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on disk and memory, from the estimate where there is one."""
    expected = estimate.estimate_build(context.facts, context.plan)
    parts = estimate.storage_needs(context.facts, context.plan, context.host.runs)
    if expected is None or parts is None:
        yield from package_room(context.host, context.package)
        return
    yield from disk_findings(context.host, parts)
    if context.facts.assumed is not None:
        yield from _files(context.host, context.facts.assumed.files)
    yield _memory(context.host, expected.compile.high)


def package_room(host: Host, package: Package) -> Iterator[Finding]:
    """Yield the findings on disk and memory by what any build of a package may need."""
    yield from disk_findings(host, {"tree": CostRange(package.disk, package.disk)})
    yield _memory(host, package.memory_per_job)


def disk_findings(host: Host, parts: Mapping[str, CostRange]) -> Iterator[Finding]:
    """Yield the findings on the disks of a build, for its parts' needs in bytes.

    What is there already needs no more room. Of a machine whose disks were not looked at, one takes all.
    """
    if not host.rooms:
        yield disk_finding(host.disk, _sum(parts.values()))
    for room in host.rooms:
        here = [_rest(parts[part], there) for part, there in room.there.items() if part in parts]
        subject = "disk" if len(host.rooms) == 1 else f"disk of {room.folder}"
        yield disk_finding(room.free, _sum(here), subject)


def disk_finding(free: int | None, needed: CostRange, subject: str = "disk") -> Finding:
    """Return the finding on free bytes, for a need in bytes."""
    low, high = format_bytes(needed.low), format_bytes(needed.high)
    wanted = f"about {high}" if low == high else f"{low} to {high}"
    if free is None:
        return Finding(subject, "not described", wanted, "unknown")
    found = f"{format_bytes(free)} free"
    if free >= needed.high:
        return Finding(subject, found, wanted, "ok")
    lacking = format_bytes(needed.high - free)
    cure = f"`invoke clean --free '{lacking}'` makes room of what builds left; else {_MOVE}"
    if free >= needed.low:
        return Finding(subject, found, wanted, "warning", cure, "the disk may be full before the build ends")
    return Finding(subject, found, wanted, "failure", cure, "the build does not fit")


def _files(host: Host, each: CostRange) -> Iterator[Finding]:
    """Yield a finding where a disk may run out of inodes; a file of the source makes `each` so many."""
    for room in host.rooms:
        low, high = round(each.low * room.source), round(each.high * room.source)
        if room.inodes is not None and room.inodes < high:
            verdict: Verdict = "failure" if room.inodes < low else "warning"
            because = "a disk without inodes is full, whatever room it has"
            found, wanted = f"{room.inodes} inodes free", f"{low} to {high}"
            cure = f"remove files (`df -i {room.folder}` shows them), or {_MOVE}"
            yield Finding(f"files on {room.folder}", found, wanted, verdict, cure, because)


def _rest(need: CostRange, there: int) -> CostRange:
    return CostRange(max(need.low - there, 0), max(need.high - there, 0))


def _sum(every: Iterable[CostRange]) -> CostRange:
    found = list(every)
    return CostRange(sum(one.low for one in found), sum(one.high for one in found))


def _memory(host: Host, needed: float) -> Finding:
    found, wanted = format_bytes(host.memory), f"{format_bytes(needed)} for the largest compile"
    if host.memory >= needed:
        return Finding("memory", found, wanted, "ok")
    because = "it is compiled alone, and the system may kill it even so"
    return Finding("memory", found, wanted, "warning", "add memory or swap", because)

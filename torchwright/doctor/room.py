"""Disk and memory, against what the build is expected to need."""

from collections.abc import Iterator

from torchwright import estimate
from torchwright.doctor.finding import Finding, Question
from torchwright.model import Host, Package, Range
from torchwright.quantity import format_bytes


def check(question: Question) -> Iterator[Finding]:
    """Yield the findings on disk and memory, from the estimate where there is one."""
    expected = estimate.of(question.facts, question.plan)
    if expected is None:
        yield from of_package(question.host, question.package)
        return
    tree, wheel = expected.tree, expected.wheel
    yield disk(question.host, Range(tree.low + wheel.low, tree.high + wheel.high))
    yield _memory(question.host, expected.compile.high)


def of_package(host: Host, package: Package) -> Iterator[Finding]:
    """Yield the findings on disk and memory by what any build of a package may need."""
    yield disk(host, Range(package.disk, package.disk))
    yield _memory(host, package.memory_per_job)


def disk(host: Host, needed: Range) -> Finding:
    """Return the finding on free disk, for a need in bytes."""
    low, high = format_bytes(needed.low), format_bytes(needed.high)
    wanted = f"about {high}" if low == high else f"{low} to {high}"
    if host.disk is None:
        return Finding("disk", "not described", wanted, "unknown")
    found = f"{format_bytes(host.disk)} free"
    if host.disk >= needed.high:
        return Finding("disk", found, wanted, "ok")
    cure = "make room, or set TORCHWRIGHT_HOME to another disk"
    if host.disk >= needed.low:
        return Finding("disk", found, wanted, "warning", cure, "the disk may be full before the build ends")
    return Finding("disk", found, wanted, "failure", cure, "the build does not fit")


def _memory(host: Host, needed: float) -> Finding:
    found, wanted = format_bytes(host.memory), f"{format_bytes(needed)} for the largest compile"
    if host.memory >= needed:
        return Finding("memory", found, wanted, "ok")
    because = "it is compiled alone, and the system may kill it even so"
    return Finding("memory", found, wanted, "warning", "add memory or swap", because)

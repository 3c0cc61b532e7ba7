"""Check whether the disks, the memory and the limits of a machine are enough for a build.

A part of a build is everything that it keeps in one folder, such as its tree or its environment.
"""

from collections.abc import Iterator, Mapping

from torchmill.config.costs import CostRange
from torchmill.config.package import Package
from torchmill.core.units import format_bytes, format_duration
from torchmill.host.host import DiskSpace, Host
from torchmill.plan import estimate, storage
from torchmill.plan.doctor.finding import CheckContext, Finding, Verdict, with_cures
from torchmill.plan.job_count import OTHER_OPEN_FILES, PROCESSES_PER_COMPILER

_MOVE = "set TORCHMILL_HOME to another disk"
_NOTHING = CostRange(0, 0)
_FEWER_COMPILERS = "fewer compilers run at a time than there are cores"
# What docker gives a container: https://docs.docker.com/reference/cli/docker/container/run/
_SHARED_MEMORY_OF_DOCKER = 64 << 20


def check_resources(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on disks, files and memory.

    The needs come from the estimate for the build. Without an estimate, they are the ones that the
    facts give for every build of the package.
    """
    facts = context.facts
    host = context.host
    needs = storage.storage_needs(facts, context.plan, host.runs)
    yield from check_disks(host, needs or _usual_needs(context.package))
    if facts.costs.assumptions is not None:
        yield from _check_inodes(host, files_per_source_file=facts.costs.assumptions.files)
    expected = estimate.estimate_build(facts, context.plan)
    memory = expected.compile.high if expected else context.package.setup.memory_per_job
    yield _memory_finding(host, memory)


def check_package_resources(host: Host, package: Package) -> Iterator[Finding]:
    """Yield the findings on disks and memory for any build of a package."""
    yield from check_disks(host, _usual_needs(package))
    yield _memory_finding(host, package.setup.memory_per_job)


def _usual_needs(package: Package) -> Mapping[str, CostRange]:
    """Return the bytes on disk for any build of a package, as the need of one part."""
    return {"tree": CostRange(package.setup.disk, package.setup.disk)}


def check_disks(host: Host, needs: Mapping[str, CostRange]) -> Iterator[Finding]:
    """Yield the findings on the disks of a build.

    `needs` are the bytes that each part takes, as `storage_needs` returns them. If a host does not
    describe its disks, all parts are taken to lie on one disk.
    """
    if not host.resources.disks:
        yield disk_finding(host.resources.free_disk, sum(needs.values(), _NOTHING))
    for disk in host.resources.disks:
        subject = "disk" if len(host.resources.disks) == 1 else f"disk of {disk.folder}"
        yield disk_finding(disk.free, _need_on_disk(disk, needs), subject)
        if disk.noexec and "tree" in disk.present_bytes:
            because = "a build runs programs of its tree: CMake, and tests that it compiles"
            yield Finding(
                subject, "mounted noexec", "without noexec", "failure", cure=_MOVE, because=because
            )
        if disk.read_only:
            because = "a build writes to it"
            yield Finding(
                subject, "mounted read-only", "writable", "failure", cure=_MOVE, because=because
            )
        if disk.misread_characters:
            state = f"{disk.misread_characters!r} in its name"
            cure = "let TORCHMILL_HOME name a folder without them"
            because = "CMake, a linker, PATH or a script takes these for something else"
            yield Finding("folder", state, "none of them", "failure", cure=cure, because=because)


def _need_on_disk(disk: DiskSpace, needs: Mapping[str, CostRange]) -> CostRange:
    """Return the bytes that a build adds to a disk: of each part there, those that it still lacks.

    `disk.present_bytes` has all parts of the disk, with the bytes that each has already.
    """
    total = _NOTHING
    for part, present_bytes in disk.present_bytes.items():
        if part in needs:
            low = max(needs[part].low - present_bytes, 0)
            high = max(needs[part].high - present_bytes, 0)
            total += CostRange(low, high)
    return total


def disk_finding(free: int | None, need: CostRange, subject: str = "disk") -> Finding:
    """Return the finding on a disk for a need in bytes; `free` is None if that is unknown."""
    needed = need.in_bytes
    if need.low == need.high:
        needed = f"about {format_bytes(need.high)}"
    if free is None:
        return Finding(subject, "not described", needed, "unknown")
    state = f"{format_bytes(free)} free"
    # Between the bounds of the estimate, nobody can tell: that is a warning.
    if free >= need.high:
        return Finding(subject, state, needed, "ok")
    verdict: Verdict = "failure"
    because = "the build does not fit"
    if free >= need.low:
        verdict = "warning"
        because = "the disk may be full before the build ends"
    missing = format_bytes(need.high - free)
    cures = [f"`invoke clean --free '{missing}'` removes what builds left", _MOVE]
    return with_cures(Finding(subject, state, needed, verdict, because=because), cures)


def _check_inodes(host: Host, *, files_per_source_file: CostRange) -> Iterator[Finding]:
    """Yield a finding for each disk that may run out of inodes.

    `files_per_source_file` are the files that a build makes for each file of its source.
    """
    for disk in host.resources.disks:
        low = round(files_per_source_file.low * disk.source_files)
        high = round(files_per_source_file.high * disk.source_files)
        if disk.free_inodes is None or disk.free_inodes >= high:
            continue
        finding = Finding(
            f"files on {disk.folder}",
            f"{disk.free_inodes} inodes free",
            f"{low} to {high}",
            "failure" if disk.free_inodes < low else "warning",
            because="a disk without inodes is full, whatever room it has",
        )
        yield with_cures(finding, [f"remove files (`df -i {disk.folder}` shows them)", _MOVE])


def _memory_finding(host: Host, need: float) -> Finding:
    """Return the finding on memory, for the bytes that the largest compile takes."""
    state = format_bytes(host.resources.memory)
    needed = f"{format_bytes(need)} for the largest compile"
    if host.resources.memory >= need:
        return Finding("memory", state, needed, "ok")
    # No failure: the need is an upper bound, and the memory guard runs nothing beside the compile.
    because = "it is compiled alone, and the system may kill it even so"
    return Finding("memory", state, needed, "warning", cure="add memory or swap", because=because)


def check_processor_time(host: Host) -> Iterator[Finding]:
    """Yield a finding if each process is killed after some time, as on login nodes of clusters."""
    if host.resources.processor_seconds is None:
        return
    state = f"{format_duration(host.resources.processor_seconds)} for each process"
    because = (
        "a compiler that takes longer is killed, which looks like a lack of memory (`ulimit -t`)"
    )
    finding = Finding("processor time", state, "no limit", "warning", because=because)
    yield with_cures(
        finding, ["ulimit -t unlimited", "build in a job (`invoke cluster --engine slurm`)"]
    )


def check_limits(host: Host) -> Iterator[Finding]:
    """Yield a finding for each limit of the user or of the container that holds builds back."""
    resources = host.resources
    files_needed = resources.cores + OTHER_OPEN_FILES
    if resources.open_files is not None and resources.open_files < files_needed:
        yield Finding(
            "open files",
            f"{resources.open_files} for each process",
            str(files_needed),
            "warning",
            cure="ulimit -n 65536",
            because=f"{_FEWER_COMPILERS}, as ninja keeps a file open for each (`ulimit -n`); "
            'other programs stop with "Too many open files"',
        )
    processes_needed = resources.cores * PROCESSES_PER_COMPILER
    if resources.processes is not None and resources.processes < processes_needed:
        yield Finding(
            "processes",
            f"{resources.processes} may be started",
            str(processes_needed),
            "warning",
            cure="raise `ulimit -u`, or the container's `--pids-limit`",
            because=f"{_FEWER_COMPILERS}; other programs stop with "
            '"Resource temporarily unavailable"',
        )
    if resources.largest_file is not None:
        yield Finding(
            "largest file",
            format_bytes(resources.largest_file),
            "no limit",
            "warning",
            cure="ulimit -f unlimited",
            because="a library or an archive that is larger cannot be written (`ulimit -f`)",
        )
    if resources.shared_memory is not None and resources.shared_memory <= _SHARED_MEMORY_OF_DOCKER:
        yield Finding(
            "shared memory",
            format_bytes(resources.shared_memory),
            f"more than {format_bytes(_SHARED_MEMORY_OF_DOCKER)}, to run it",
            "warning",
            cure="start the container with `--shm-size 8g` or `--ipc host`",
            because="workers of a DataLoader, and NCCL, share tensors through /dev/shm",
        )


def check_certificates(host: Host) -> Iterator[Finding]:
    """Yield a finding for each place of certificates that is missing.

    A place that a variable names is cured by unsetting that: "SSL_CERT_FILE=/x".
    """
    for place in host.platform.missing_certificates:
        variable = place.partition("=")[0]
        cure = "install the package ca-certificates"
        if variable != place:
            cure = f"unset {variable}"
        because = "what is downloaded cannot be verified, so no download succeeds"
        yield Finding("certificates", f"no {place}", "there", "warning", cure=cure, because=because)

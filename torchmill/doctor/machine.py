"""A machine examined for itself: what it could build, before anybody names a build."""

from collections.abc import Iterator

from packaging.version import Version

from torchmill import matrix
from torchmill.cuda.hostcompiler import takes
from torchmill.doctor import driver, interpreter, parts, room, tools
from torchmill.doctor.finding import Finding, absent, nothing
from torchmill.host.parts import called
from torchmill.interpreters import remedy
from torchmill.matrix import bounds
from torchmill.model import Facts, Host, Release, Toolkit

_COMPILERS = {"linux": "gcc or clang", "macos": "clang", "windows": "Visual Studio's"}


def examine(facts: Facts, host: Host, release: Release | None) -> tuple[Finding, ...]:
    """Return what a host has for building `release`, or any release where none is named."""
    return tuple(_findings(facts, host, release))


def _findings(facts: Facts, host: Host, release: Release | None) -> Iterator[Finding]:
    package = matrix.base_package(facts)
    yield _cells(facts, host, release)
    yield from _interpreters(facts, host, release)
    yield from _compilers(host)
    yield from _toolkits(facts, host)
    yield tools.git(host)
    yield tools.compiler_cache(host, next(iter(host.toolkits), None))
    if host.system == "macos":
        yield tools.xcode(host)
    yield from driver.mismatch(host)
    yield from driver.forward(host)
    yield from _gpus(facts, host)
    yield from room.of_package(host, package)


def _cells(facts: Facts, host: Host, release: Release | None) -> Finding:
    """Return how many builds the machine has the interpreter and the toolkit for."""
    cells = matrix.buildable(facts, release, host.arch)
    ready = [
        cell
        for cell in cells
        if cell.build.python in host.interpreters.keys() - _unusable(host).keys()
        if cell.build.cuda is None or cell.build.cuda in host.toolkits
    ]
    of = release.tag if release else "any release"
    found = f"{len(ready)} of {len(cells)} builds of {of}"
    if ready:
        return Finding(
            "can be built",
            found,
            "an interpreter, a toolkit",
            "ok",
            because="`invoke matrix` lists every build, `nox -l` those of the selected release",
        )
    if not host.complete:
        found = f"not known which of {len(cells)} builds of {of}"
    return Finding("can be built", found, "an interpreter, a toolkit", absent(host), "invoke matrix")


def _interpreters(facts: Facts, host: Host, release: Release | None) -> Iterator[Finding]:
    known = release.pythons if release else matrix.pythons(facts)
    wanted, newest = ", ".join(known), [one for one in known if not one.endswith("t")][-1]
    usable = [one for one in host.interpreters if one not in _unusable(host)]
    if usable:
        yield Finding("interpreters", ", ".join(usable), f"any of {wanted}", "ok")
    else:
        yield Finding("interpreters", nothing(host), f"any of {wanted}", absent(host), remedy(newest))
    for version, (path, wrong) in _unusable(host).items():
        headless = version in host.headless_interpreters
        cure = interpreter.headers(host, version, path) if headless else remedy(version)
        yield Finding(f"Python {version}", path, wrong, "warning", cure)
    for version, shim in host.broken_interpreters.items():
        if version not in host.interpreters:
            yield Finding(
                f"Python {version}",
                f"{shim}, a shim that does not run",
                "an installed one",
                "warning",
                remedy(version),
            )


def _unusable(host: Host) -> dict[str, tuple[str, str]]:
    headless = {version: (path, "its headers") for version, path in host.headless_interpreters.items()}
    foreign = {
        version: (path, f"one for {host.arch}") for version, path in host.translated_interpreters.items()
    }
    return headless | foreign


def _compilers(host: Host) -> Iterator[Finding]:
    others = ", ".join(f"{name} {one.version}" for name, one in host.compilers.items())
    needed = _COMPILERS.get(host.system, "gcc or clang")
    if host.compiler is not None:
        beside = f" (of {others})" if others else ""
        yield Finding("C++ compiler", f"{host.compiler}{beside}", needed, "ok")
    elif host.system == "windows":  # the build finds Visual Studio where PATH does not
        yield Finding("C++ compiler", "none on PATH", needed, "unknown")
    else:
        cure = "xcode-select --install" if host.system == "macos" else "invoke deps"
        yield Finding("C++ compiler", nothing(host), needed, absent(host), cure)


def _toolkits(facts: Facts, host: Host) -> Iterator[Finding]:
    known = {one.version: one for one in facts.toolkits}
    for version, home in host.toolkits.items():
        subject, found = f"CUDA {version}", home
        if version not in known:
            yield Finding(subject, found, "a toolkit that some release builds with", "unknown")
        else:
            yield _toolkit(known[version], host, subject, found)
        if lacks := parts.lacking(facts, host, version):
            cure = f"invoke toolkit --complete {version}"
            yield Finding(subject, f"no {called(lacks)}", parts.NEEDED, "warning", cure)
    if not host.toolkits:
        because = "builds without CUDA need none" if host.complete else ""
        yield Finding(
            "CUDA toolkits",
            nothing(host),
            "one, for builds with CUDA",
            "ok" if host.complete else "unknown",
            because=because,
        )


def _toolkit(toolkit: Toolkit, host: Host, subject: str, found: str) -> Finding:
    """Return the finding on a toolkit: that some compiler here goes with it."""
    every = filter(None, (host.compiler, *host.compilers.values()))
    fitting = [one for one in every if takes(toolkit, one)]
    known = toolkit.gcc if host.system == "linux" else None
    needed = f"gcc {bounds(known)}" if known else "a host compiler: not known which"
    if fitting:
        best = max(fitting, key=lambda one: Version(one.version))
        return Finding(subject, f"{found}, with {best}", needed, "ok")
    if not known or host.compiler is None:
        return Finding(subject, found, needed, "unknown")
    because = "no compiler here is one that its nvcc takes"
    return Finding(subject, found, needed, "warning", because=because)


def _gpus(facts: Facts, host: Host) -> Iterator[Finding]:
    for gpu in dict.fromkeys(host.gpus):
        capability = driver.capability_of(facts, gpu)
        version = host.kernel_driver or host.driver
        found = ", ".join(
            filter(
                None,
                (gpu.name, capability.name if capability else "", f"driver {version}" if version else ""),
            )
        )
        yield Finding("GPU", found, "none, to build", "ok")

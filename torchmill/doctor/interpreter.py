"""The CPython that the wheel is for."""

from collections.abc import Iterator

from torchmill import interpreters
from torchmill.doctor.finding import Finding, Question, absent, installed_by, nothing
from torchmill.model import Host

_HEADERS = {"apt": "python{version}-dev", "dnf": "python{version}-devel"}


def check(question: Question) -> Iterator[Finding]:
    """Yield the finding on the interpreter, and on the suite's own where it is translated."""
    if question.host.translated:
        yield _translated_suite(question)
    yield _interpreter(question)


def _interpreter(question: Question) -> Finding:
    host, version = question.host, question.build.python
    path = host.interpreters.get(version)
    shim = host.broken_interpreters.get(version)
    if path is None:
        return _missing(question, shim)
    if version in host.translated_interpreters:
        return _finding(
            question,
            f"{path}, of another machine",
            _native(question),
            f"it runs through an emulator, and what it builds is not for {host.arch}",
        )
    if version in host.headless_interpreters:
        return _finding(
            question,
            f"{path}, without headers",
            headers(host, version, path),
            "extension modules include Python.h",
        )
    needed = f"CPython {version}"
    because = f"the shim {shim} does not run; the suite passes it by" if shim else ""
    return Finding("interpreter", path, needed, "ok", because=because)


def _missing(question: Question, shim: str | None) -> Finding:
    host, version = question.host, question.build.python
    if shim is None:
        found, because = nothing(host), ""
        if host.complete and host.interpreters:
            because = f"there is {', '.join(host.interpreters)}"
    else:
        found, because = f"{shim}, a shim that does not run", "its version is not installed"
    needed, verdict = f"CPython {version}", "failure" if shim else absent(host)
    return Finding("interpreter", found, needed, verdict, _install(version, shim or ""), because)


def _finding(question: Question, found: str, cure: str, because: str) -> Finding:
    return Finding("interpreter", found, f"CPython {question.build.python}", "failure", cure, because)


def _install(version: str, beside: str) -> str:
    return f"pyenv install {version}" if "pyenv" in beside else interpreters.remedy(version)


def headers(host: Host, version: str, path: str) -> str:
    """Return what brings the headers of a CPython that lacks them."""
    name = _HEADERS.get(host.manager or "")
    if name is None or not path.startswith("/usr/bin/"):
        return _install(version, path)
    return installed_by(host, [name.format(version=version)])


def _native(question: Question) -> str:
    version = question.build.python
    if question.host.system == "macos":
        return f"CONDA_SUBDIR=osx-arm64 conda create --name native-{version} python={version}"
    return f"uv python install {version}"


def _translated_suite(question: Question) -> Finding:
    return Finding(
        "this suite",
        "run through Rosetta",
        question.host.arch,
        "failure",
        "CONDA_SUBDIR=osx-arm64 conda create --name torchmill python=3.11",
        "compilers that it starts would make code for Intel; run it with the new environment's Python",
    )

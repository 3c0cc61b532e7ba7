"""Check the Python interpreter of a build."""

from collections.abc import Iterator

from torchmill.config import distributions
from torchmill.core.running_python import OLDEST
from torchmill.host import interpreters
from torchmill.host.host import Host
from torchmill.plan import system_packages
from torchmill.plan.doctor.container_cures import container_cures
from torchmill.plan.doctor.finding import CheckContext, Finding, absence_finding, with_cures
from torchmill.plan.doctor.package_cures import host_install_command, host_manager
from torchmill.plan.system_packages import PACKAGES

_VITAL_MODULES = frozenset({"_ssl", "_ctypes", "zlib"})
_PYTHON_OF_SUITE = ".".join(map(str, OLDEST))  # torchmill runs with newer ones too


def check_interpreter(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the interpreter of a build.

    On Apple silicon, a finding on the Python that runs torchmill comes before it if that Python is
    one for Intel.
    """
    host = context.host
    if host.platform.translated:
        because = (
            "compilers that it starts would make code for Intel; "
            "run it with the new environment's Python"
        )
        cure = _native_environment("torchmill", _PYTHON_OF_SUITE)
        yield Finding(
            "this suite",
            state="run through Rosetta",
            needed=host.arch,
            verdict="failure",
            cure=cure,
            because=because,
        )
    finding = interpreter_finding(host, context.build.python)
    if finding.verdict in {"failure", "unknown"}:
        cures = [finding.cure, *finding.other_cures, *container_cures(context)]
        finding = with_cures(finding, cures)
    yield finding


def interpreter_finding(host: Host, version: str) -> Finding:
    """Return the finding on a host's CPython of a version, such as "3.10".

    One that a broken shim hides is taken: torchmill finds it behind the shim.
    """
    subject = "interpreter"
    needed = f"CPython {version}"
    path = host.interpreters.paths.get(version)
    shim = host.interpreters.broken.get(version)  # the script of pyenv that is first on PATH
    if path is None and shim is None:
        because = ""
        if host.interpreters.paths:
            because = f"this machine has {', '.join(host.interpreters.paths)}"
        return absence_finding(
            host, subject, needed, cures=python_cure(host, version), because=because
        )
    if path is None:
        return Finding(
            subject,
            state=f"{shim}, a shim that does not run",
            needed=needed,
            verdict="failure",
            cure=python_cure(host, version, shim or ""),
            because="its version is not installed",
        )
    if version in host.interpreters.translated:
        because = f"it runs through an emulator, and what it builds is not for {host.arch}"
        cure = f"uv python install {version}"
        if host.system == "macos":
            cure = _native_environment(f"native-{version}", version)
        state = f"{path}, for another architecture"
        return Finding(subject, state, needed, "failure", cure=cure, because=because)
    if version in host.interpreters.without_headers:
        state = f"{path}, without headers"
        because = "extension modules include Python.h"
        finding = Finding(subject, state, needed, "failure", because=because)
        return with_cures(finding, _header_cures(host, version, path))
    missing_modules = host.interpreters.lacking_modules.get(version, "")
    if _VITAL_MODULES.intersection(missing_modules.split(", ")):
        because = (
            "pip needs _ssl and zlib, torch _ctypes: install the headers of OpenSSL, zlib and libffi "
            "before it is compiled again"
        )
        state = f"{path}, without {missing_modules}"
        finding = Finding(subject, state, needed, "failure", because=because)
        return with_cures(finding, [python_cure(host, version, path)])
    clauses: list[str] = []
    if shim:
        clauses.append(f"the shim {shim} does not run; torchmill uses the Python behind it")
    if missing_modules:
        clauses.append(f"it has no {missing_modules}, which some packages import")
    return Finding(subject, path, needed, "ok", because="; ".join(clauses))


def _native_environment(name: str, version: str) -> str:
    """Return the command that makes an environment for Apple silicon with a Python."""
    return f"CONDA_SUBDIR=osx-arm64 conda create --name {name} python={version}"


def python_cure(host: Host, version: str, path: str = "") -> str:
    """Return the command, or the advice, by which a CPython gets onto a host.

    `path` is the path of an interpreter of this version that does not serve; "" without one. If
    pyenv brought it, pyenv has to replace it.
    """
    # uv could bring a CPython too, but the shim of pyenv, which is first on PATH, would stay broken.
    if _is_of_pyenv(path):
        # pyenv asks before it installs a version that it has.
        is_installed = path == host.interpreters.paths.get(version)
        return f"pyenv install {'--force ' if is_installed else ''}{version}"
    paths = [*host.interpreters.paths.values(), *host.interpreters.broken.values()]
    has_pyenv = "pyenv" in host.programs.paths or any(map(_is_of_pyenv, paths))
    return interpreters.how_to_install(version, has_pyenv=has_pyenv)


def _is_of_pyenv(path: str) -> bool:
    """Tell whether an interpreter or a shim lies in pyenv's folder: ".pyenv", or "pyenv"."""
    return "pyenv/" in path


def _header_cures(host: Host, version: str, path: str) -> list[str]:
    """Return how to install the headers of a CPython, or another CPython that has them.

    `path` is the path of the CPython without headers. The first cure is the best: the headers, if
    the package that has them is recorded, and this user may install it.
    """
    other_python = python_cure(host, version, path)
    manager = host_manager(host)
    # Of Debian and its like, "python{version}-dev".
    usual_name = PACKAGES["python_headers"].get(system_packages.naming_manager(manager))
    # Only for the distribution's own Python, in /usr/bin, there are packages with headers.
    if usual_name is None or not path.startswith("/usr/bin/"):
        return [other_python]
    release = distributions.find_recorded_release(host.platform.distribution)
    headers_package = release.pythons.get(version) if release else None
    if manager is None or headers_package is None:
        place = system_packages.describe_place(manager, host.platform.distribution)
        package = usual_name.format(version=version)
        return [other_python, f"look for them as {package} among the packages of {place}"]
    if system_packages.may_install(host, manager):
        return [host_install_command(host, manager, [headers_package]), other_python]
    return [other_python]

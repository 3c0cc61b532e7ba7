"""Register a session for each build of the matrix, and the project's own lint, tests and demo."""

import os
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # the `nox` script, unlike `python -m nox`, does not

from torchwright import facts, host, interpreters, matrix, selection
from torchwright.errors import GpuError, HostError, SuiteError
from torchwright.layout import Layout
from torchwright.model import Facts

# A person who types `nox` wants no wheel; a program that asks for --json wants the matrix and nothing else.
MATRIX_ASKED = "--json" in sys.argv
nox.options.error_on_missing_interpreters = True
os.environ["PATH"] = interpreters.search_path()  # Pythons behind broken pyenv shims count as installed


@contextmanager
def reported(session: nox.Session) -> Iterator[None]:
    """End a session with one message where our own errors stop it."""
    try:
        yield
    except SuiteError as error:
        session.error(str(error))


def own_environment(session: nox.Session, python: str) -> Path:
    """Return the folder of a session's environment; raises HostError where that is not its own."""
    location = getattr(session.virtualenv, "location", None)
    if location is None or session.python != python:
        raise HostError(
            f"{session.name} needs an environment of its own, with Python {python}: leave out --no-venv, "
            "--force-python and --extra-python"
        )
    return Path(location)


def install(session: nox.Session, *requirements: str) -> None:
    """Install with pip: nox's own would leave it to uv where told so, and silently do nothing with -R."""
    session.run("python", "-m", "pip", "install", *requirements, silent=True)


def add_session(known: Facts, cell: matrix.Cell, native: str, installed: Container[str]) -> None:
    """Register the session that makes a build, named after it."""
    build, release = cell.build, cell.release
    # Of a missing interpreter nox would say no more than that; the matrix names it all the same.
    python = build.python if MATRIX_ASKED or build.python in installed else False

    @nox.session(
        name=build.identifier(native),
        python=python,
        tags=[build.session, build.package, build.variant, release.tag],
        default=MATRIX_ASKED,
        venv_backend="venv",  # virtualenv no longer makes environments for the oldest Pythons
        reuse_venv=True,  # reinstalled headers would make ninja compile everything again
    )
    def session(session: nox.Session) -> None:
        from torchwright import stages, workshop  # noqa: PLC0415 - `nox -l` needs none of it

        with reported(session):
            if not python:
                interpreters.resolve(build.python)
            venv = own_environment(session, build.python)
            job = workshop.begin(ROOT, known, cell, session.posargs, venv)
            if (base := workshop.missing_base(job)) is not None:
                session.run(sys.executable, "-m", "nox", "--envdir", str(venv.parent), *base, external=True)
            artifact = stages.delivered(job)
            if artifact is not None:
                session.log(f"{artifact.wheel.name} is there and nothing changed")
                return
            from torchwright import console, pipeline  # noqa: PLC0415 - slow to load, and there is work to do

            with console.build_line() as line:
                artifact = pipeline.make(job, install=partial(install, session), line=line)
            session.log(f"{artifact.wheel} is verified")

    session.__doc__ = f"{release.package} {release.version}, Python {build.python}, {build.variant}"


@nox.session(python=False, default=not MATRIX_ASKED)
def lint(session: nox.Session) -> None:
    """Check style, formatting and types."""
    session.run(sys.executable, "-m", "ruff", "check", ".")
    session.run(sys.executable, "-m", "ruff", "format", "--check", ".")
    session.run(sys.executable, "-m", "mypy")


@nox.session(python=False, default=not MATRIX_ASKED)
def tests(session: nox.Session) -> None:
    """Run the tests."""
    session.run(sys.executable, "-m", "pytest", *session.posargs)


@nox.session(python=False, default=False)
def demo(session: nox.Session) -> None:
    """Take the embedded sample from fetch to verified wheels."""
    upstream = ROOT / ".torchwright" / "demo"
    env = {
        "TORCHWRIGHT_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "TORCHWRIGHT_HOME": str(upstream / "home"),
    }
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    invoke = (sys.executable, "-m", "invoke")
    session.run(sys.executable, "sample/upstream.py", str(upstream / "git"))
    session.run(*invoke, "fetch", "--tag=v1.0.0", "--all", f"--mirror=file://{upstream}/git", env=env)
    for name in (f"wheel-{version}-cpu", f"vision-{version}-cpu"):
        session.run(
            sys.executable, "-m", "nox", "--envdir", str(upstream / "envs"), "--session", name, env=env
        )


@nox.session(python=False, default=False)
def gpu(session: nox.Session) -> None:
    """Try the newest wheels with CUDA, or those that are named after --, on the GPU of this machine."""
    from torchwright import gpu as trying  # noqa: PLC0415 - slow to load

    with reported(session):
        try:
            told = trying.run(ROOT, facts.chosen(ROOT), session.posargs)
        except GpuError as error:  # a program asks whether it was the machine or the wheels
            session.warn(str(error))
            sys.exit(error.exit_code)
        session.log(f"tried on the GPU\n{told}")


def main() -> None:
    """Register the matrix of the selected release on this machine."""
    try:
        known = facts.chosen(ROOT)
        chosen = selection.selected(known, Layout.of(ROOT))
        native = host.native_arch()
        installed = interpreters.installed()
        for cell in matrix.buildable(known, chosen, native):
            add_session(known, cell, native, installed)
    except SuiteError as error:
        sys.exit(f"error: {error}")


main()

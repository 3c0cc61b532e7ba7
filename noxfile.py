"""Register a session for each build of the matrix, and the project's own lint, tests and demo."""

import os
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import nox

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # the `nox` script, unlike `python -m nox`, does not

from torchmill import facts, host, interpreters, matrix, selection
from torchmill.deliver.options import Own, of_conda, of_none
from torchmill.errors import GpuError, HostError, SuiteError
from torchmill.foreign import asked
from torchmill.layout import Layout
from torchmill.model import Facts

if TYPE_CHECKING:
    from torchmill.deliver.made import Product
    from torchmill.deliver.verified import Verified

# A person who types `nox` wants no wheel; a program that asks for --json wants the matrix and nothing else.
MATRIX_ASKED = "--json" in sys.argv
nox.options.error_on_missing_interpreters = True
if folder := os.environ.get("NOX_ENVDIR"):  # which nox itself does not read
    nox.options.envdir = folder
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
    """Install with pip: nox's own would leave it to uv where told so, and silently do nothing with -R.

    A build imports little of what it requires: that is compiled to bytecode when it is.
    """
    session.run("python", "-m", "pip", "install", "--no-compile", *requirements, silent=True)


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
        from torchmill import stages, workshop  # noqa: PLC0415 - `nox -l` needs none of it

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
            from torchmill import console, pipeline  # noqa: PLC0415 - slow to load, and there is work to do

            with console.build_line() as line:
                artifact = pipeline.make(job, install=partial(install, session), line=line)
            session.log(f"{artifact.wheel} is verified")

    session.__doc__ = f"{release.package} {release.version}, Python {build.python}, {build.variant}"


def add_made_from_wheel(known: Facts, cell: matrix.Cell, native: str, word: str, making: "Making") -> None:
    """Register the session "WORD-3.10-cpu", which makes something else of the verified wheel of a build.

    The build's own session makes the wheel first where dist/ lacks it; what stands after -- is for that, but
    for what is read before.
    """
    build, release = cell.build, cell.release

    @nox.session(
        name=replace(build, session=word).identifier(native),
        python=False,
        tags=[word, build.package, build.variant, release.tag],
        default=False,
    )
    def session(session: nox.Session) -> None:
        from torchmill.deliver import verified  # noqa: PLC0415 - `nox -l` needs none of it

        with reported(session):
            own, rest = making.read(session.posargs, f"nox -s {session.name} --")
            found = verified.find(ROOT, known, cell, rest)
            if found is None:
                first = ("-s", build.identifier(native), "--", *rest)
                environments = str(session.cache_dir.parent)
                session.run(sys.executable, "-m", "nox", "--envdir", environments, *first, external=True)
                found = verified.require(ROOT, known, cell, rest)
            session.log(str(making.make(found, own)))

    session.__doc__ = f"{word} of {release.package} {release.version}, Python {build.python}, {build.variant}"


def add_foreign_session(known: Facts, cell: matrix.Cell, name: str) -> None:
    """Register the session of another machine's build, which runs the session `name` in a container."""
    build, release = cell.build, cell.release
    makings = further(known, cell).items()
    made = {replace(build, session=word).identifier(build.arch): making for word, making in makings}
    read = made[name].read if name in made else of_none

    @nox.session(name=f"{name}-{cell.build.arch}", python=False, tags=[release.tag], default=False)
    def session(session: nox.Session) -> None:
        from torchmill.foreign import session as foreign  # noqa: PLC0415 - `nox -l` needs none of it
        from torchmill.foreign.planning import Goal  # noqa: PLC0415

        with reported(session):
            own, rest = read(session.posargs, f"nox -s {session.name} --")
            foreign.build(ROOT, known, Goal(cell, name, own.words), rest, session.log)

    session.__doc__ = f"{name} of {release.package} {release.version}, in a container for {cell.build.arch}"


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
    upstream = ROOT / ".torchmill" / "demo"
    env = {
        "TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "TORCHMILL_HOME": str(upstream / "home"),
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
    from torchmill import gpu as trying  # noqa: PLC0415 - slow to load

    with reported(session):
        try:
            told = trying.run(ROOT, facts.chosen(ROOT), session.posargs)
        except GpuError as error:  # a program asks whether it was the machine or the wheels
            session.warn(str(error))
            sys.exit(error.exit_code)
        session.log(f"tried on the GPU\n{told}")


class Making(NamedTuple):
    """How something else is made of a wheel: what reads its own of the words after --, and what makes it."""

    read: "Callable[[Sequence[str], str], tuple[Own, list[str]]]"
    make: "Callable[[Verified, Own], Product]"


def libtorch(found: "Verified", _: Own) -> "Product":
    """Make the archive for C++ users of a wheel."""
    from torchmill.deliver import libtorch as archives  # noqa: PLC0415 - `nox -l` needs none of it

    return archives.make(found)


def conda(found: "Verified", own: Own) -> "Product":
    """Make the conda package of a wheel."""
    from torchmill.deliver import conda as packages  # noqa: PLC0415 - `nox -l` needs none of it

    return packages.make(found, own.number)


def further(known: Facts, cell: matrix.Cell) -> dict[str, Making]:
    """Return what makes something else of a cell's wheel, by the first word of its session."""
    if cell.build.package == matrix.base_package(known).name:
        return {"libtorch": Making(of_none, libtorch), "conda": Making(of_conda, conda)}
    return {f"conda-{cell.build.session}": Making(of_conda, conda)}


def main() -> None:
    """Register the matrix of the selected release on this machine."""
    try:
        known = facts.chosen(ROOT)
        chosen = selection.selected(known, Layout.of(ROOT))
        native = host.native_arch()
        installed = interpreters.installed()
        for cell in matrix.buildable(known, chosen, native):
            add_session(known, cell, native, installed)
            for word, making in () if MATRIX_ASKED else further(known, cell).items():
                add_made_from_wheel(known, cell, native, word, making)
        wanted = asked.names(sys.argv, os.environ.get(asked.VARIABLE, ""))
        for name, cell in asked.cells(known, chosen, native, wanted, partial(further, known)):
            add_foreign_session(known, cell, name)
    except SuiteError as error:
        sys.exit(f"error: {error}")


main()

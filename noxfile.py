"""Register a session for each build of the matrix, and the project's own lint, tests and demo."""

import logging
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

from torchmill.build.cross import requested
from torchmill.config import facts_reader, matrix, selection
from torchmill.config.model import Facts
from torchmill.core.errors import GpuError, HostError, TorchmillError
from torchmill.core.paths import Layout
from torchmill.host import interpreters
from torchmill.host.native import native_arch

if TYPE_CHECKING:
    from torchmill.deliver.products import Product, ProductOptions, VerifiedWheel

# A person who types `nox` wants no wheel; a program that asks for --json wants the matrix and nothing else.
MATRIX_ASKED = "--json" in sys.argv
MADE_FROM_WHEELS = ("conda", "libtorch")  # the words of their sessions
nox.options.error_on_missing_interpreters = True
if folder := os.environ.get("NOX_ENVDIR"):  # which nox itself does not read
    nox.options.envdir = folder
logging.getLogger("py_serializable").setLevel(logging.WARNING)  # nox shows what libraries log
os.environ["PATH"] = interpreters.search_path()  # Pythons behind broken pyenv shims count as installed


@contextmanager
def reported(session: nox.Session) -> Iterator[None]:
    """End a session with one message where our own errors stop it."""
    try:
        yield
    except TorchmillError as error:
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


def add_session(facts: Facts, cell: matrix.Cell, native: str, installed: Container[str]) -> None:
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
        from torchmill.build.context import create_context, missing_base_session
        from torchmill.build.up_to_date import find_delivered_wheel

        with reported(session):
            if not python:
                interpreters.resolve_interpreter(build.python)
            venv = own_environment(session, build.python)
            context = create_context(ROOT, facts, cell, session.posargs, venv)
            if (base := missing_base_session(context)) is not None:
                session.run(sys.executable, "-m", "nox", "--envdir", str(venv.parent), *base, external=True)
            artifact = find_delivered_wheel(context)
            if artifact is not None:
                session.log(f"{artifact.wheel.name} is up to date")
                return
            from torchmill.build import pipeline, progress_line

            with progress_line.show_build_progress() as line:
                artifact = pipeline.build_wheel(context, install=partial(install, session), line=line)
            session.log(f"{artifact.wheel} is verified")

    session.__doc__ = f"{release.package} {release.version}, Python {build.python}, {build.variant}"


def add_made_from_wheel(facts: Facts, cell: matrix.Cell, native: str, word: str, making: "Making") -> None:
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
        from torchmill.deliver import products

        with reported(session):
            own, rest = making.read(session.posargs, f"nox -s {session.name} --")
            found = products.find_verified(ROOT, facts, cell, rest)
            if found is None:
                first = ("-s", build.identifier(native), "--", *rest)
                environments = str(session.cache_dir.parent)
                session.run(sys.executable, "-m", "nox", "--envdir", environments, *first, external=True)
                found = products.require_verified(ROOT, facts, cell, rest)
            session.log(str(making.make(found, own)))

    session.__doc__ = f"{word} of {release.package} {release.version}, Python {build.python}, {build.variant}"


def add_foreign_session(facts: Facts, cell: matrix.Cell, name: str) -> None:
    """Register the session of another machine's build, which runs the session `name` in a container."""
    build, release = cell.build, cell.release
    makings = further(facts, cell).items()
    made = {replace(build, session=word).identifier(build.arch): making for word, making in makings}
    read = made[name].read if name in made else read_nothing

    @nox.session(name=f"{name}-{cell.build.arch}", python=False, tags=[release.tag], default=False)
    def session(session: nox.Session) -> None:
        from torchmill.build.cross.container import CrossBuild
        from torchmill.commands import cross_build

        with reported(session):
            own, rest = read(session.posargs, f"nox -s {session.name} --")
            cross_build.build_in_container(ROOT, facts, CrossBuild(cell, name, own.words), rest, session.log)

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
    from torchmill.commands.gpu import try_wheels

    with reported(session):
        try:
            told = try_wheels(ROOT, facts_reader.load_facts(ROOT), session.posargs)
        except GpuError as error:  # a program asks whether it was the machine or the wheels
            session.warn(str(error))
            sys.exit(error.exit_code)
        session.log(f"tried on the GPU\n{told}")


class Making(NamedTuple):
    """How something else is made of a wheel: what reads its own of the words after --, and what makes it."""

    read: "Callable[[Sequence[str], str], tuple[ProductOptions, list[str]]]"
    make: "Callable[[VerifiedWheel, ProductOptions], Product]"


def read_nothing(arguments: "Sequence[str]", prog: str) -> "tuple[ProductOptions, list[str]]":
    """Leave all the words after -- to the wheel's session."""
    from torchmill.deliver.products import parse_no_options

    return parse_no_options(arguments, prog)


def read_conda(arguments: "Sequence[str]", prog: str) -> "tuple[ProductOptions, list[str]]":
    """Take what the words after -- say of a conda package."""
    from torchmill.deliver.products import parse_conda_options

    return parse_conda_options(arguments, prog)


def libtorch(found: "VerifiedWheel", _: "ProductOptions") -> "Product":
    """Make the archive for C++ users of a wheel."""
    from torchmill.deliver.libtorch import make_libtorch

    return make_libtorch(found)


def conda(found: "VerifiedWheel", own: "ProductOptions") -> "Product":
    """Make the conda package of a wheel."""
    from torchmill.deliver.conda import package

    return package.make_conda_package(found, own.number)


def further(facts: Facts, cell: matrix.Cell) -> dict[str, Making]:
    """Return what makes something else of a cell's wheel, by the first word of its session."""
    if cell.build.package == matrix.base_package(facts).name:
        return {"libtorch": Making(read_nothing, libtorch), "conda": Making(read_conda, conda)}
    return {f"conda-{cell.build.session}": Making(read_conda, conda)}


def main() -> None:
    """Register the matrix of the selected release on this machine."""
    try:
        known = facts_reader.load_facts(ROOT)
        chosen = selection.selected_release(known, Layout.of_checkout(ROOT))
        native = native_arch()
        installed = interpreters.installed_interpreters()
        # without a release they are two thirds of all sessions: only who names one has them
        named = chosen is not None or any(word in " ".join(sys.argv) for word in MADE_FROM_WHEELS)
        for cell in matrix.buildable_cells(known, chosen, native):
            add_session(known, cell, native, installed)
            for word, making in further(known, cell).items() if named and not MATRIX_ASKED else ():
                add_made_from_wheel(known, cell, native, word, making)
        wanted = requested.session_names(sys.argv, os.environ.get(requested.VARIABLE, ""))
        for name, cell in requested.requested_cells(known, chosen, native, wanted, partial(further, known)):
            add_foreign_session(known, cell, name)
    except TorchmillError as error:
        sys.exit(f"error: {error}")


main()

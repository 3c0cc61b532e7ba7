"""The work of nox's sessions: build a wheel, make products of it, try it on a GPU.

A session is handed on as it is: `import nox` is in noxfile.py alone.
"""

import io
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from torchmill.commands.session_choice import load_cell
from torchmill.commands.session_matrix import MatrixSession
from torchmill.core import process, retries
from torchmill.core.errors import GpuError, HostError, UnfinishedBuildError
from torchmill.core.exits import as_torchmill_error, format_error, is_of_runner, prepare_program
from torchmill.core.homes import mark_home
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.core.system_errors import blame_disk
from torchmill.plan.session_names import split_product

if TYPE_CHECKING:
    from torchmill.cell.context import BuildContext
    from torchmill.config.facts import Facts
    from torchmill.deliver.products import ProductOptions, VerifiedWheel
    from torchmill.plan.cell import Cell


# Builds the wheel of a context, with a function that installs; returns the verified wheel.
RunPipeline = Callable[["BuildContext", Callable[..., None]], Path]


class NoxSession(Protocol):
    """The part of `nox.Session` that is used."""

    @property
    def name(self) -> str:
        """Return the name, "wheel-3.10-cpu"."""

    @property
    def posargs(self) -> list[str]:
        """Return the words after --."""

    @property
    def python(self) -> Any:
        """Return the Python of the environment, "3.10"; False if it has none."""

    @property
    def virtualenv(self) -> Any:
        """Return the environment."""

    @property
    def env(self) -> Mapping[str, str | None]:
        """Return the variables that the session sets; None stands for one that it unsets."""

    @property
    def cache_dir(self) -> Path:
        """Return nox's own folder in that of all environments."""

    @property
    def invoked_from(self) -> str:
        """Return the folder in which nox was called."""

    def log(self, text: str, /) -> None:
        """Print a line."""

    def warn(self, text: str, /) -> None:
        """Print a warning."""

    def error(self, text: str, /) -> NoReturn:
        """End the session as failed."""


def prepare_nox() -> None:
    """Have nox show each error as one message, and nothing that steers a terminal."""
    prepare_program()
    logger = logging.getLogger("nox")
    logger.addFilter(_show_plainly)
    # Nox sets the level of the root logger, so that it also shows what libraries log, and some log
    # addresses with their secrets. Nox's own logger keeps that level, and the root's is raised.
    logger.setLevel(logger.getEffectiveLevel())
    logging.getLogger().setLevel(logging.WARNING)


def _show_plainly(record: logging.LogRecord) -> bool:
    """Make the message of a record of a log plain text, and keep the record: for `addFilter`.

    A log has texts of others, such as the answers of an index, which must not steer a terminal.
    """
    record.msg = as_plain_text(record.getMessage())
    record.args = ()
    return True


@contextmanager
def end_with_message(session: NoxSession) -> Iterator[None]:
    """End a session with one message if an error stops it; mark the state folder as the user's.

    Nox ends with 1 for any failed session. With TORCHMILL_EXITS in the environment, and for an
    error of a GPU, it ends with the exit code of the error. A build that ended where it was asked
    to (UnfinishedBuildError) is shown and is no failure, unless its time was up. Errors of nox
    pass.
    """
    try:
        mark_home(Layout.of_checkout(CHECKOUT))
        yield
    except UnfinishedBuildError as error:
        session.log(str(error))
        if error.code == "time-up":
            # A chain of jobs asks by the exit code whether there is more to do.
            sys.exit(error.exit_code)
    except Exception as error:
        if is_of_runner(error):
            raise
        refusal = as_torchmill_error(error)
        # `invoke bisect` sets the variable: it has to know whether the commit or the machine is at
        # fault. So does whoever tries a GPU.
        if os.environ.get("TORCHMILL_EXITS") or isinstance(refusal, GpuError):
            session.warn(format_error(refusal))
            sys.exit(refusal.exit_code)
        session.error(format_error(refusal))


def refuse_words(session: NoxSession) -> None:
    """End a session that takes no words after -- if there are some."""
    if session.posargs:
        words = shlex.join(session.posargs)
        session.error(
            f"{session.name} takes nothing after --: omit it, or name a build, as in "
            f"nox -s wheel-3.10-cpu -- {words}"
        )


def build_wheel(session: NoxSession, listed: MatrixSession, run_pipeline: RunPipeline) -> None:
    """Build the wheel of a session, after those that it needs; do nothing if it is up to date.

    `listed` is the session as nox lists it. If TORCHMILL_WHEELS names places of wheels that were
    built elsewhere, and one of them offers this wheel, it is taken instead. If `--cpu` names
    several processors, the session runs once for each.
    """
    from torchmill.cell.context import create_context, missing_sessions
    from torchmill.cell.up_to_date import find_delivered_wheel
    from torchmill.plan.options import split_processors

    with end_with_message(session):
        venv = _require_environment(session, listed)
        runs = split_processors(session.posargs, f"nox -s {listed.name} --")
        if len(runs) > 1:
            with chdir(session.invoked_from):
                for words in runs:
                    _run_session(session, venv.parent, "-s", listed.name, "--", *words)
            session.log("`invoke index --variants` makes them variants of one version")
            return
        facts, cell = load_cell(listed.name, Layout.of_checkout(CHECKOUT))
        # The words after -- may name files, from the folder in which nox was called.
        with chdir(session.invoked_from):
            context = create_context(CHECKOUT, facts, cell, session.posargs, venv)
        for words in missing_sessions(context):
            _run_session(session, venv.parent, *words)
        wheel = find_delivered_wheel(context)
        if wheel is not None:
            session.log(f"{wheel.name} is up to date")
            return
        # No place of wheels offers debug information.
        if os.environ.get("TORCHMILL_WHEELS") and not context.options.debug_info:
            from torchmill.deliver.offers import take_wheel

            if take_wheel(context, session.log):
                return
        wheel = run_pipeline(context, partial(_install, session))
        session.log(f"{wheel} is verified")


def _require_environment(session: NoxSession, listed: MatrixSession) -> Path:
    """Return the folder of the environment that nox made for a session.

    Raises HostError if nox made none, or one of another Python, and if the Python is missing;
    SourceError if the source is not fetched. Where nox made none, the words after -- are read
    first: --help ends the program, and mistakes in options are raised.
    """
    if session.python is False:
        # The session is registered without an environment, because its Python or source is missing
        # (`session_choice.can_have_environment`): one of these calls says which.
        from torchmill.cell.context import require_source
        from torchmill.cell.option_files import parse_options
        from torchmill.host.interpreters import resolve_interpreter

        with chdir(session.invoked_from):
            # With --help, this prints the help and ends the program.
            parse_options(session.posargs, f"nox -s {listed.name} --")
        resolve_interpreter(listed.python)
        layout = Layout.of_checkout(CHECKOUT)
        facts, cell = load_cell(listed.name, layout)
        require_source(layout, facts, cell)
    location = getattr(session.virtualenv, "location", None)
    if location is None or session.python != listed.python:
        raise HostError(
            f"{session.name} needs its own environment, with Python {listed.python}: leave out "
            "--no-venv, --force-python and --extra-python",
            code="no-own-environment",
        )
    return Path(location)


def _install(session: NoxSession, *requirements: str) -> None:
    """Install requirements into a session's environment with pip.

    `requirements` may have options of pip. `session.install` does not serve here: it uses uv if the
    user's settings say so, does nothing with -R, and ignores Ctrl-C if pip succeeds nevertheless.
    Raises HostError for a full disk, and for a requirement that no index has; CommandError for
    other failures of pip.
    """
    from torchmill.host import environments

    # A build imports few of its requirements: those are compiled to bytecode on import.
    words = ("-m", "pip", "install", "--no-compile", *requirements)
    session.log(shlex.join(("python", *words)))
    venv = Path(session.virtualenv.location)
    search_path = os.pathsep.join([*(session.virtualenv.bin_paths or ()), os.environ["PATH"]])
    variables = {**os.environ, **session.env, "PATH": search_path}
    set_variables = {name: value for name, value in variables.items() if value is not None}
    # -I: pip is to import no module of the folder that it runs in.
    argv = [str(environments.environment_python(venv)), "-I", *words]
    log = io.StringIO()
    run_pip = partial(
        process.stream,
        argv,
        cwd=None,
        env=environments.pip_variables(set_variables),
        log=log,
        on_line=lambda _: None,
    )
    try:
        retries.repeat(run_pip, environments.judge_pip, "pip")
    except process.CommandError as error:
        targets = [Path(value) for word, value in pairwise(requirements) if word == "--prefix"]
        full_disk = blame_disk(error.output, *targets, venv)
        if full_disk is not None:
            raise full_disk from None
        session.warn(log.getvalue())
        if "No matching distribution" in error.output:
            names = [word for word in requirements if not word.startswith(("-", os.sep))]
            fetch = f"python{session.python} -m pip wheel -w DIR {shlex.join(names)}"
            raise HostError(
                f"{error}; `{fetch}` where there is an index, then PIP_FIND_LINKS=DIR here",
                code="requirement-missing",
            ) from None
        raise


def _run_session(session: NoxSession, environments: Path, *words: str) -> None:
    """Run another session in a process; a failure ends this session, too.

    `environments` is the folder of all environments, `words` the options of nox. If the other
    session ends because its time (`--until`) is up, this one ends with the same exit code.
    """
    noxfile = str(CHECKOUT / "noxfile.py")
    options = ("--noxfile", noxfile, "--envdir", str(environments))
    argv = [sys.executable, "-m", "nox", *options, *words]
    code = process.run_in_terminal(argv, os.environ)
    if code == UnfinishedBuildError.exit_code:
        sys.exit(code)
    if code:
        session.error(f"`nox {shlex.join(words)}` failed, as shown above")


def make_product(session: NoxSession, listed: MatrixSession, product: str) -> None:
    """Make a product of a wheel, such as "conda" (a package), after the session of the wheel.

    The session runs only if dist/ has no verified wheel for these words: a source that has changed
    since then is not noticed. Of the words after --, those that are not options of the product go
    to the session of the wheel.
    """
    from torchmill.deliver import products

    with end_with_message(session), chdir(session.invoked_from):
        options, words = _product_options(product, session)
        facts, cell = load_cell(listed.name, Layout.of_checkout(CHECKOUT))
        wheel = products.find_verified(CHECKOUT, facts, cell, words)
        if wheel is None:
            environments = CHECKOUT / session.cache_dir.parent
            _run_session(session, environments, "-s", listed.name, "--", *words)
            wheel = products.require_verified(CHECKOUT, facts, cell, words)
        session.log(str(_product_maker(product)(wheel, options)))


def _product_options(product: str, session: NoxSession) -> "tuple[ProductOptions, list[str]]":
    """Return the options of a product, and the words after -- that go to the wheel's session."""
    from torchmill.deliver.products import ProductOptions, parse_conda_options

    command = f"nox -s {session.name} --"
    if product == "conda":
        return parse_conda_options(session.posargs, command)
    if product in {"check", "speed"}:
        from tools.proof.compared_wheels import parse_published_options

        takes_tests = product == "check"
        return parse_published_options(session.posargs, command, takes_tests=takes_tests)
    return ProductOptions(), list(session.posargs)


def _product_maker(product: str) -> "Callable[[VerifiedWheel, ProductOptions], object]":
    """Return the function that makes a product of a wheel, or compares it with a published one.

    `product` is "libtorch", "conda", "check" or "speed".
    """
    if product == "libtorch":
        from torchmill.deliver.libtorch import make_libtorch

        return lambda wheel, _: make_libtorch(wheel)
    if product == "conda":
        from torchmill.deliver.conda.package import make_conda_package

        return make_conda_package
    if product == "check":
        from tools.proof.check import check_wheel

        return check_wheel
    from tools.proof.speed import measure_wheel

    return measure_wheel


def build_in_container(session: NoxSession, facts: "Facts", cell: "Cell", name: str) -> None:
    """Run the session `name`, such as "conda-3.10-cpu", in a container for another architecture."""
    from torchmill.cell.containers.cross import CrossBuild
    from torchmill.commands import cross_build

    product, _ = split_product(name)
    with end_with_message(session), chdir(session.invoked_from):
        options, words = _product_options(product, session)
        goal = CrossBuild(cell, name, options.words)
        cross_build.build_in_container(CHECKOUT, facts, goal, words, session.log)


def try_on_gpu(session: NoxSession) -> None:
    """Try wheels on this machine's GPU: those named after --, else the newest with CUDA."""
    from torchmill.commands.gpu import try_wheels
    from torchmill.config import remembered_facts

    with end_with_message(session):
        paths = [str(Path(session.invoked_from, word)) for word in session.posargs]
        table = try_wheels(CHECKOUT, remembered_facts.load_facts(CHECKOUT), paths)
        session.log(f"tried on the GPU\n{table}")


def make_demo_folder(session: NoxSession) -> Path:
    """Make the folder of the demonstration, and return it."""
    from torchmill.core.system_errors import report_unwritable

    folder = Layout.of_checkout(CHECKOUT).demo
    with end_with_message(session), report_unwritable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def demo_variables(folder: Path) -> dict[str, str]:
    """Return the variables by which commands use the facts, home and environments of the sample."""
    return {
        "TORCHMILL_CONFIGS": str(CHECKOUT / "sample" / "build_configs"),
        "TORCHMILL_HOME": str(folder / "home"),
        "NOX_ENVDIR": str(folder / "envs"),
    }

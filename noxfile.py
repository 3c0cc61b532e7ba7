"""Sessions: one for each wheel of the matrix, "wheel-3.10-cpu"; lint, tests, demo.

Of the selected release (`invoke fetch --tag v1.13.1`), those of torch and of
what else is fetched are listed; while none is selected, of the newest torch.
All others run as well, and a tag lists them: `-t vision`. What is "untried" may
build, but nobody is known to have built it (`-t untried`). More can be made of
each wheel: conda-3.10-cpu, libtorch-3.10-cpu, check-3.10-cpu, speed-3.10-cpu.
`invoke matrix` prints a grid.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # the `nox` script, unlike `python -m nox`, does not

from torchmill.core import running_python  # noqa: F401, I001 - before what old ones lack

import io
import logging
import os
import re
import shlex
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import chdir, contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import nox
from nox.command import CommandFailed
from nox.logger import logger
from nox.virtualenv import VirtualEnv

from torchmill.config import selection
from torchmill.core import process, reaper
from torchmill.core.errors import GpuError, HostError, TorchmillError, UnfinishedBuildError
from torchmill.core.exits import (
    as_torchmill_error,
    is_of_runner,
    open_closed_streams,
    show_uncaught,
)
from torchmill.core.files import blame_disk, read_text, report_unwritable
from torchmill.core.homes import mark_home, require_untracked_state
from torchmill.core.paths import Layout, nox_environment_name
from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import name_programs, record_programs
from torchmill.host import environments, interpreters
from torchmill.host.native import native_arch

if TYPE_CHECKING:
    from torchmill.config.matrix import Cell
    from torchmill.config.model import Facts
    from torchmill.deliver.products import ProductOptions, VerifiedWheel

# A person who types `nox` wants no wheel; a program that asks for --json wants the matrix and nothing else.
MATRIX_ASKED = "--json" in sys.argv
LIST_ASKED = MATRIX_ASKED or not {"-l", "--list", "--list-sessions"}.isdisjoint(sys.argv)
FILTERS = {
    "-t",
    "--tags",
    "-k",
    "--keywords",
    "-p",
    "--python",
    "--pythons",
}  # of a list: nothing is left out then
OFFICIAL = {
    "wheel": "official"
}  # what a tag says of a standing: "wheel" is the first word of sessions already
IN_CONTAINER = re.compile(r"\w[\w-]*-\d[.\w]*-\w+-\w+")  # "wheel-3.10-cpu-aarch64"
HELP = (
    ("nox -s demo", "the main job on a small sample, in a minute"),
    ("invoke build wheel-3.10-cpu --tag v1.13.1", "all of the next three; asks before it begins"),
    ("invoke fetch --tag v1.13.1", "fetch a release and select it\n({selected})"),
    ("invoke doctor wheel-3.10-cpu", "what this machine lacks; --fix brings it"),
    ("nox -s wheel-3.10-cpu", "build that wheel"),
    ("nox -l", "wheels of what is fetched, or of torch"),
    ("invoke --list", "all tasks"),
)
COMMAND_COLUMNS = 32  # of the help
record_programs(os.environ)
__doc__ = name_programs(__doc__ or "")  # which nox prints above its list


def show_plainly(record: logging.LogRecord) -> bool:
    """Keep what others wrote, such as the files of an index, from steering a terminal."""
    record.msg = as_plain_text(str(record.msg))
    return True


logger.addFilter(show_plainly)
nox.options.error_on_missing_interpreters = True
sys.excepthook = show_uncaught
open_closed_streams()
if folder := os.environ.get("NOX_ENVDIR"):  # which nox itself does not read
    nox.options.envdir = folder
logger.setLevel(logger.getEffectiveLevel())
logging.getLogger().setLevel(
    logging.WARNING
)  # nox would show what libraries log, addresses with secrets as well
if not LIST_ASKED:
    reaper.watch_run()  # nox makes an environment before its session begins


@contextmanager
def reported(session: nox.Session) -> Iterator[None]:
    """End a session with one message, whatever stops it. What it leaves behind is marked as the user's."""
    try:
        mark_home(Layout.of_checkout(ROOT))
        yield
    except UnfinishedBuildError as error:
        session.log(str(error))
        if error.code == "time-up":  # a chain of jobs asks whether there is more to do
            sys.exit(error.exit_code)
    except Exception as error:
        if is_of_runner(error):
            raise
        shown = as_torchmill_error(error)
        # `invoke bisect` asks whether it is the commit's or the machine's; the latter is asked of a GPU, too
        if os.environ.get("TORCHMILL_EXITS") or isinstance(shown, GpuError):
            session.warn(str(shown))
            sys.exit(shown.exit_code)
        session.error(str(shown))


def own_environment(session: nox.Session, python: str) -> Path:
    """Return the folder of a session's environment; raises HostError where that is not its own."""
    location = getattr(session.virtualenv, "location", None)
    if location is None or session.python != python:
        raise HostError(
            f"{session.name} needs its own environment, with Python {python}: leave out --no-venv, "
            "--force-python and --extra-python",
            code="no-own-environment",
        )
    return Path(location)


def install(session: nox.Session, *requirements: str) -> None:
    """Install with pip: nox's own would leave it to uv where told so, and silently do nothing with -R.

    Nor does nox take Ctrl-C for one where pip ends well all the same. A build imports little of what it
    requires: that is compiled to bytecode when it is. Raises HostError where a disk is full, CommandError.
    """
    words = ("-m", "pip", "install", "--no-compile", *requirements)
    session.log(shlex.join(("python", *words)))
    venv, heard = Path(session.virtualenv.location), io.StringIO()
    path = os.pathsep.join([*(session.virtualenv.bin_paths or ()), os.environ["PATH"]])
    every = {**os.environ, **session.env, "PATH": path}
    variables = environments.pip_variables(
        {name: value for name, value in every.items() if value is not None}
    )
    try:
        argv = [
            str(environments.in_environment(venv)),
            "-I",
            *words,
        ]  # -I: no module of the folder that it runs in
        process.stream(argv, cwd=None, env=variables, log=heard, on_line=lambda _: None)
    except process.CommandError as error:
        targets = [Path(value) for word, value in pairwise(requirements) if word == "--prefix"]
        if (full := blame_disk(error.output, *targets, venv)) is not None:
            raise full from None  # of which pip makes a traceback
        session.warn(heard.getvalue())
        if "No matching distribution" in error.output:
            wanted = shlex.join(one for one in requirements if not one.startswith(("-", os.sep)))
            bring = f"`python{session.python} -m pip wheel -w DIR {wanted}` where there is an index"
            raise HostError(
                f"{error}; {bring}, then PIP_FIND_LINKS=DIR here", code="requirement-missing"
            ) from None
        raise


def asks_for_help() -> bool:
    """Tell whether the options of a session ask for no more than what there is."""
    return (
        bool({"-h", "--help"} & {*sys.argv[sys.argv.index("--") :]}) if "--" in sys.argv else False
    )


def create_environment(
    self: VirtualEnv, create: Callable[[VirtualEnv], bool] = VirtualEnv.create
) -> bool:
    """Create an environment as Nox does, if there is something to build in it.

    Say where a full disk is why that fails: venv does not.
    """
    place = Path(self.location)
    if "\ufffd" in read_text(settings := place / "pyvenv.cfg"):
        settings.unlink()  # no text: Nox would fail to read it, and makes an environment without it anew
    try:
        for name in () if place.exists() or asks_for_help() else nox.registry.get():
            if (
                nox_environment_name(name) == place.name
            ):  # Nox hashes the name of a long path: the session tells then
                from torchmill.cell.context import require_source

                require_source(Layout.of_checkout(ROOT), *load_cell(name))
        if not asks_for_help():
            mark_home(
                Layout.of_checkout(ROOT)
            )  # an environment counts as the user's only where the state does
        return create(self)
    except (TorchmillError, OSError) as error:  # of the latter Nox makes a traceback
        shown = f"{as_torchmill_error(error)}{' (`export NOX_ENVDIR=FOLDER`)' if isinstance(error, OSError) else ''}"
        logger.error(shown)
        raise CommandFailed(shown) from None
    except CommandFailed:
        if (full := blame_disk("", Path(self.location))) is not None:
            logger.error(str(full))
        raise


VirtualEnv.create = create_environment  # type: ignore[method-assign]


def load_cell(name: str) -> "tuple[Facts, Cell]":
    """Return the facts and the cell of a session: to list sessions, nobody needs them."""
    from torchmill.config import cell_lookup, facts_reader

    facts = facts_reader.load_facts(ROOT)
    selected = selection.selected_release(facts, Layout.of_checkout(ROOT))
    return facts, cell_lookup.find_cell(facts, name, native_arch(), selected)


def run_first(session: nox.Session, folder: Path, *words: str) -> None:
    """Run another session, with its environments in `folder`; where its time is up, this one's is as well."""
    own = ("--noxfile", str(ROOT / "noxfile.py"), "--envdir", str(folder))
    code = process.run_in_terminal([sys.executable, "-m", "nox", *own, *words], os.environ)
    if code == UnfinishedBuildError.exit_code:
        sys.exit(code)
    if code:
        session.error(f"`nox {shlex.join(words)}` failed, as shown above")


def add_session(listed: selection.MatrixSession, installed: Container[str]) -> None:
    """Register the session that makes a build, named after it."""
    # Of a missing interpreter nox would say no more than that; the matrix names it all the same.
    python = listed.python if MATRIX_ASKED or listed.python in installed else False

    @nox.session(
        name=listed.name,
        python=python,
        tags=[
            listed.word,
            listed.package,
            listed.variant,
            listed.tag,
            OFFICIAL.get(listed.standing, listed.standing),
        ],
        default=MATRIX_ASKED,
        venv_backend="venv",  # virtualenv no longer makes environments for the oldest Pythons
        venv_params=["--without-pip"],  # a build copies it, which is quicker
        reuse_venv=True,  # reinstalled headers would make ninja compile everything again
    )
    def session(session: nox.Session) -> None:
        from torchmill.cell.context import create_context, missing_sessions
        from torchmill.cell.up_to_date import find_delivered_wheel

        with reported(session):
            if not python:
                interpreters.resolve_interpreter(listed.python)
            venv = own_environment(session, listed.python)
            facts, cell = load_cell(listed.name)
            with chdir(session.invoked_from):  # the words after -- may name files
                context = create_context(ROOT, facts, cell, session.posargs, venv)
            for first in missing_sessions(context):
                run_first(session, venv.parent, *first)
            if (wheel := find_delivered_wheel(context)) is not None:
                session.log(f"{wheel.name} is up to date")
                return
            if os.environ.get("TORCHMILL_WHEELS"):
                from torchmill.deliver.offers import take_wheel

                if take_wheel(context, session.log):
                    return
            from torchmill.cell import pipeline, progress_line

            with progress_line.show_build_progress() as line:
                wheel = pipeline.build_wheel(context, install=partial(install, session), line=line)
            session.log(f"{wheel} is verified")

    session.__doc__ = listed.description


def add_made_from_wheel(listed: selection.MatrixSession, word: str) -> None:
    """Register the session "WORD-3.10-cpu", which makes something else of the verified wheel of a build.

    The build's own session makes the wheel first where dist/ lacks it; what stands after -- is for that, but
    for what is read before.
    """
    name = word + listed.name.removeprefix(listed.word)
    product, _ = selection.split_product(name)

    @nox.session(
        name=name,
        python=False,
        tags=[word, listed.package, listed.variant, listed.tag],
        default=False,
    )
    def session(session: nox.Session) -> None:
        from torchmill.deliver import products

        with reported(session), chdir(session.invoked_from):
            own, rest = read_own(product, session.posargs, f"nox -s {session.name} --")
            facts, cell = load_cell(listed.name)
            found = products.find_verified(ROOT, facts, cell, rest)
            if found is None:
                run_first(session, ROOT / session.cache_dir.parent, "-s", listed.name, "--", *rest)
                found = products.require_verified(ROOT, facts, cell, rest)
            session.log(str(make_product(product, found, own)))

    session.__doc__ = f"{word} of {listed.title}"


def add_container_sessions(names: Collection[str]) -> None:
    """Register those of the named sessions that build in a container: their names end in an architecture."""
    from torchmill.config import cell_lookup, facts_reader, matrix

    facts = facts_reader.load_facts(ROOT)
    selected = selection.selected_release(facts, Layout.of_checkout(ROOT))
    base = matrix.base_package(facts).name

    def words(cell: "Cell") -> tuple[str, ...]:
        return further(cell.build.session, dependent=cell.build.package != base)

    for name, cell in cell_lookup.requested_cells(facts, selected, names, words):
        add_container_session(facts, cell, name)


def add_container_session(facts: "Facts", cell: "Cell", name: str) -> None:
    """Register the session that runs the session `name` in a container."""
    release = cell.release
    product, _ = selection.split_product(name)

    @nox.session(name=f"{name}-{cell.build.arch}", python=False, tags=[release.tag], default=False)
    def session(session: nox.Session) -> None:
        from torchmill.cell.containers.cross import CrossBuild
        from torchmill.commands import cross_build

        with reported(session), chdir(session.invoked_from):
            own, rest = read_own(product, session.posargs, f"nox -s {session.name} --")
            cross_build.build_in_container(
                ROOT, facts, CrossBuild(cell, name, own.words), rest, session.log
            )

    session.__doc__ = (
        f"{name} of {release.package} {release.version}, in a container for {cell.build.arch}"
    )


def short_list(
    everything: list[selection.MatrixSession], tag: str | None
) -> list[selection.MatrixSession]:
    """Return the sessions of what is fetched of the selected release; of the newest torch where none is selected."""
    if tag is None:
        return selection.newest_release_alone(everything)
    sources = Layout.of_checkout(ROOT).sources
    return [one for one in everything if not one.dependent or (sources / one.package).is_dir()]


def refuse_words(session: nox.Session) -> None:
    """End a session that takes no words after --, where there are some."""
    if session.posargs:
        words = shlex.join(session.posargs)
        session.error(
            f"{session.name} takes nothing after --: omit it, or name a build, as in nox -s wheel-3.10-cpu -- {words}"
        )


@nox.session(name="help", python=False, default=not MATRIX_ASKED)
def print_help(session: nox.Session) -> None:
    """Say what to do: what `nox` alone runs."""
    from torchmill.core.exits import print_now

    refuse_words(session)
    tag = selection.selected_tag(Layout.of_checkout(ROOT))
    print_now(format_help(f"selected: {tag}" if tag else "no release is selected"))


def format_help(selected: str) -> str:
    """Return what `nox` alone says: commands, and beside each what it does, or below it where it is long."""
    lines = []
    for command, meaning in HELP:
        named = name_programs(command)
        first, *others = meaning.format(selected=selected).split("\n")
        short = len(named) + 2 <= COMMAND_COLUMNS
        lines += (
            [f"{named:{COMMAND_COLUMNS}}{first}"]
            if short
            else [named, f"{'':{COMMAND_COLUMNS}}{first}"]
        )
        lines += [f"{'':{COMMAND_COLUMNS}}{other}" for other in others]
    return "\n".join(lines)


if (ROOT / "tests").is_dir():  # an installed torchmill has neither those nor what they need

    @nox.session(python=False, default=False)
    def lint(session: nox.Session) -> None:
        """Check style, formatting and types."""
        refuse_words(session)
        session.run(sys.executable, "-m", "ruff", "check", ".")
        session.run(sys.executable, "-m", "ruff", "format", "--check", ".")
        session.run(sys.executable, "-m", "mypy")

    @nox.session(python=False, default=False)
    def tests(session: nox.Session) -> None:
        """Run the tests."""
        session.run(sys.executable, "-m", "pytest", *session.posargs)


@nox.session(python=False, default=False)
def demo(session: nox.Session) -> None:
    """Take the embedded sample from fetch to verified wheels."""
    upstream = Layout.of_checkout(ROOT).demo
    with reported(session), report_unwritable(upstream):
        upstream.mkdir(parents=True, exist_ok=True)
    env = {
        "TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "TORCHMILL_HOME": str(upstream / "home"),
        "NOX_ENVDIR": str(upstream / "envs"),
    }
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    words = (
        "build",
        f"vision-{version}-cpu",
        "--tag=v1.0.0",
        f"--mirror=file://{upstream}/git",
        "--yes",
    )
    session.run(sys.executable, str(ROOT / "sample" / "upstream.py"), str(upstream / "git"))
    with session.chdir(session.invoked_from):  # where the commands that it ends with are for
        invoke = (sys.executable, "-P", "-m", "invoke", "--search-root", str(ROOT))
        session.run(*invoke, *words, *session.posargs, env=env)
    variables = shlex.join(f"{name}={value}" for name, value in env.items())
    session.log(f"these commands find the sample only after this one: export {variables}")


@nox.session(python=False, default=False)
def gpu(session: nox.Session) -> None:
    """Try wheels on the GPU here: the newest with CUDA, or those after --."""
    from torchmill.commands.gpu import try_wheels
    from torchmill.config import facts_reader

    with reported(session):
        named = [str(Path(session.invoked_from, word)) for word in session.posargs]
        session.log(f"tried on the GPU\n{try_wheels(ROOT, facts_reader.load_facts(ROOT), named)}")


def read_own(
    product: str, arguments: Sequence[str], prog: str
) -> "tuple[ProductOptions, list[str]]":
    """Return what the words after -- say of what is made of a wheel ("conda"), and those for the wheel's session."""
    from torchmill.deliver.products import ProductOptions, parse_conda_options

    if product == "conda":
        return parse_conda_options(arguments, prog)
    if product in {"check", "speed"}:
        from tools.proof.compared_wheels import parse_published_options

        return parse_published_options(arguments, prog)
    return ProductOptions(), list(arguments)


def make_product(product: str, found: "VerifiedWheel", own: "ProductOptions") -> object:
    """Make a product of a wheel, or compare it with the published one; return what there is to say of that."""
    if product == "libtorch":
        from torchmill.deliver.libtorch import make_libtorch

        return make_libtorch(found)
    if product == "conda":
        from torchmill.deliver.conda.package import make_conda_package

        return make_conda_package(found, own)
    if product == "check":
        from tools.proof.check import check_wheel

        return check_wheel(found, own)
    from tools.proof.speed import measure_wheel

    return measure_wheel(found, own)


def further(word: str, *, dependent: bool) -> tuple[str, ...]:
    """Return the first words of the sessions that make something of a wheel; `word` is that of its own session."""
    return (f"conda-{word}", f"check-{word}") if dependent else selection.MADE_FROM_WHEELS


def main() -> None:
    """Register the matrix of the selected release on this machine."""
    try:
        layout = Layout.of_checkout(ROOT)
        require_untracked_state(layout.root)
        tag = selection.selected_tag(layout)
        os.environ["PATH"] = (
            interpreters.search_path()
        )  # Pythons behind broken pyenv shims count as installed
        installed = interpreters.installed_interpreters()
        names = selection.asked_sessions(sys.argv, os.environ.get("NOXSESSION", ""))
        # without a release they are two thirds of all sessions: only who names one has them
        named = (tag is not None and not LIST_ASKED) or any(
            word in " ".join([*sys.argv, *names]) for word in selection.MADE_FROM_WHEELS
        )
        everything, warnings = selection.list_sessions(ROOT, native_arch(), tag)
        for warning in warnings:
            sys.stderr.write(as_plain_text(f"warning: {warning}\n"))
        filtered = names or not FILTERS.isdisjoint(word.partition("=")[0] for word in sys.argv)
        if LIST_ASKED and not MATRIX_ASKED and not filtered:
            everything = short_list(everything, tag)
        for listed in everything:
            add_session(listed, installed)
            words = (
                further(listed.word, dependent=listed.dependent)
                if named and not MATRIX_ASKED
                else ()
            )
            for word in words:
                add_made_from_wheel(listed, word)
        if any(IN_CONTAINER.fullmatch(name) for name in names):
            add_container_sessions(names)
        for name in names:
            if {"-", "_"} & {*name} and name not in nox.registry.get():
                load_cell(selection.split_product(name)[1])  # tells what is near
    except Exception as error:  # noqa: BLE001 - whatever it is, it is one message
        sys.exit(as_plain_text(f"error: {as_torchmill_error(error)}"))


main()

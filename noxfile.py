"""Sessions: one for each wheel of the matrix, "wheel-3.10-cpu"; lint, tests, demo.

Of the selected release (`invoke fetch --tag v1.13.1`), those of torch and of
what else is fetched are listed; while none is selected, of the newest torch.
All others run as well, and a tag lists them: `-t vision`. What is "untried" may
build, but nobody is known to have built it (`-t untried`). More can be made of
each wheel: conda-3.10-cpu, libtorch-3.10-cpu, check-3.10-cpu, speed-3.10-cpu.
`invoke matrix` prints a grid.
"""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))  # the script `nox`, unlike `python -m nox`, does not do that
if (
    ROOT.name == "torchmill_suite"
):  # installed; a container finds the package only beside this folder
    sys.path.append(str(ROOT.parent))

# Before all other modules of torchmill: an old Python fails at their syntax, and this one says so.
from torchmill.core import running_python  # noqa: F401, I001

import nox

from torchmill.commands import session_choice, session_work
from torchmill.commands.session_matrix import MatrixSession
from torchmill.config import selection
from torchmill.core import reaper
from torchmill.core.exits import format_error, print_now
from torchmill.core.homes import require_untracked_state
from torchmill.core.paths import Layout
from torchmill.core.programs import name_programs
from torchmill.host import interpreters
from torchmill.plan.session_names import split_product

if TYPE_CHECKING:
    from torchmill.cell.context import BuildContext
    from torchmill.config.facts import Facts
    from torchmill.plan.cell import Cell

nox.needs_version = ">=2026.8.10"
nox.options.error_on_missing_interpreters = True
if os.environ.get("NOX_ENVDIR"):  # nox itself does not read it
    nox.options.envdir = os.environ["NOX_ENVDIR"]

# The tests of the wings that compile nothing, and those of both libraries.
LOWEST_FOLDERS = ("tests/config", "tests/core", "tests/host", "tests/plan", "packages")
LOWEST_TESTS = ("-m", "not slow and not long", *LOWEST_FOLDERS)

session_work.prepare_nox()
__doc__ = name_programs(__doc__ or "")  # nox prints it above its list
CALL = session_choice.read_call(sys.argv)
if not CALL.lists:
    reaper.watch_run()  # here, because nox makes an environment before its session begins


def register_matrix() -> None:
    """Register the sessions of the matrix that this call of nox can mean.

    PATH gets the Pythons that pyenv's shims hide. If sessions run, the folder of environments is
    prepared. Raises TorchmillError, as for a name that no session has.
    """
    layout = Layout.of_checkout(ROOT)
    require_untracked_state(layout.root)
    # Nox searches PATH for Pythons: this one also has those that shims of pyenv hide.
    os.environ["PATH"] = interpreters.search_path()
    installed = interpreters.installed_interpreters()
    tag = selection.selected_tag(layout)
    environments = []  # names of the sessions to run for which nox makes an environment
    others = session_choice.list_other_sessions(CALL, layout)
    for listed in (*session_choice.list_wheel_sessions(CALL, layout), *others.crossed):
        has_environment = session_choice.can_have_environment(listed, CALL, layout, installed)
        python = listed.python if has_environment else False  # False: nox makes no environment
        add_wheel(listed, python)
        if has_environment and listed.name in CALL.names:
            environments.append(listed.name)
        for product in session_choice.product_words(listed, CALL, tag):
            add_product(listed, product)
    for facts, cell, name in others.contained:
        add_container(facts, cell, name)
    session_choice.refuse_unknown_names(CALL, nox.registry.get(), layout)
    # With a filter, nox chooses among the registered sessions: any of them may be made.
    if not CALL.lists and (environments or CALL.filtered):
        session_choice.prepare_environments(CALL, environments, layout)


def add_wheel(listed: MatrixSession, python: str | bool) -> None:
    """Register the session that builds a wheel, "wheel-3.10-cpu".

    `python` is the Python of its environment; False: nox makes none.
    """

    @nox.session(
        name=listed.name,
        python=python,
        tags=session_choice.session_tags(listed),
        default=CALL.as_json,  # whoever types `nox` wants no wheel; a program wants the matrix
        venv_backend="venv",  # virtualenv no longer makes environments for the oldest Pythons
        venv_params=["--without-pip"],  # a build copies it, which is quicker
        reuse_venv=True,  # reinstalled headers would make ninja compile everything again
    )
    def wheel(session: nox.Session) -> None:
        session_work.build_wheel(session, listed, run_pipeline)

    wheel.__doc__ = listed.description


def run_pipeline(context: "BuildContext", install: Callable[..., None]) -> Path:
    """Compile, pack and verify the wheel of a cell, and return its file: the main job.

    `install` is called with the words of `pip install`.
    """
    from torchmill.cell import pipeline, progress_line

    with progress_line.show_build_progress() as line:
        return pipeline.build_wheel(context, install=install, line=line)


def add_product(listed: MatrixSession, word: str) -> None:
    """Register a session that makes something else of a wheel, "conda-3.10-cpu"."""
    # "conda-3.10-cpu" of "wheel-3.10-cpu"; "conda-vision-3.10-cpu" has the word "conda-vision".
    name = word + listed.name.removeprefix(listed.word)
    product_name, _ = split_product(name)
    tags = [word, listed.package, listed.variant, listed.tag]

    @nox.session(name=name, python=False, tags=tags, default=False)
    def product(session: nox.Session) -> None:
        session_work.make_product(session, listed, product_name)

    product.__doc__ = f"{word} of {listed.title}"


def add_container(facts: "Facts", cell: "Cell", name: str) -> None:
    """Register a session that runs another one in a container, "wheel-3.10-cpu-aarch64".

    `name` is that of the other one, "wheel-3.10-cpu".
    """
    release = cell.release
    arch = cell.build.arch

    @nox.session(name=f"{name}-{arch}", python=False, tags=[release.tag], default=False)
    def container(session: nox.Session) -> None:
        session_work.build_in_container(session, facts, cell, name)

    container.__doc__ = f"{name} of {release.package} {release.version}, in a container for {arch}"


@nox.session(name="help", python=False, default=not CALL.as_json)
def print_help(session: nox.Session) -> None:
    """Print the commands to begin with: what `nox` alone runs."""
    session_work.refuse_words(session)
    print_now(session_choice.format_help(Layout.of_checkout(ROOT)))


if (ROOT / "tests").is_dir():  # an installed torchmill has neither those nor their requirements

    @nox.session(python=False, default=False)
    def lint(session: nox.Session) -> None:
        """Check style, formatting and types."""
        session_work.refuse_words(session)
        session.run(sys.executable, "-m", "ruff", "check", ".")
        session.run(sys.executable, "-m", "ruff", "format", "--check", ".")
        session.run(sys.executable, "-m", "mypy")

    @nox.session(python=False, default=False)
    def tests(session: nox.Session) -> None:
        """Run the tests."""
        session.run(sys.executable, "-m", "pytest", *session.posargs)

    @nox.session(name="tests-lowest", python="3.11", venv_backend="uv", default=False)
    def tests_lowest(session: nox.Session) -> None:
        """Run tests on the oldest Python, with the oldest releases of all requirements."""
        libraries = ["-e", "packages/millguard", "-e", "packages/millpress"]
        extras = ".[conda,index,report,s3,sign]"
        session.install("--resolution=lowest-direct", *libraries, extras)
        # The tools of the tests are new, but must not bring newer releases of what is tested.
        constraints = Path(session.create_tmp(), "lowest.txt")
        freeze = ("uv", "pip", "freeze", "--quiet", "--exclude-editable")
        constraints.write_text(str(session.run(*freeze, silent=True, log=False)), encoding="utf-8")
        session.install("-c", str(constraints), "-r", "requirements-dev.txt")
        session.run("python", "-m", "pytest", *(session.posargs or LOWEST_TESTS))

    @nox.session(python=False, default=False)
    def coverage(session: nox.Session) -> None:
        """Run the tests, and print which code they do not run."""
        measure = (sys.executable, "-m", "coverage")
        session.run(*measure, "erase")
        session.run(*measure, "run", "-m", "pytest", *session.posargs)
        session.run(*measure, "combine", "--quiet")
        session.run(*measure, "report")

    @nox.session(default=False)
    def docs(session: nox.Session) -> None:
        """Write the documentation as a site, with pages for the two libraries."""
        session.install("-r", "requirements-docs.txt")
        session.run("mkdocs", "build", *session.posargs, env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session(python=False, default=False)
def demo(session: nox.Session) -> None:
    """Take the embedded sample from fetch to verified wheels."""
    folder = session_work.make_demo_folder(session)
    env = session_work.demo_variables(folder)
    cell = f"vision-{sys.version_info.major}.{sys.version_info.minor}-cpu"
    session.run(sys.executable, str(ROOT / "sample" / "upstream.py"), str(folder / "git"))
    # The commands that its output suggests at the end are for the folder in which nox was called.
    with session.chdir(session.invoked_from):
        invoke = [sys.executable, "-P", "-m", "invoke", "--search-root", str(ROOT)]
        options = ["--tag=v1.0.0", f"--mirror=file://{folder}/git", "--yes", *session.posargs]
        session.run(*invoke, "build", cell, *options, env=env)
    variables = shlex.join(f"{name}={value}" for name, value in env.items())
    session.log(f"these commands find the sample only after this one: export {variables}")


@nox.session(python=False, default=False)
def gpu(session: nox.Session) -> None:
    """Try wheels on the GPU here: the newest with CUDA, or those after --."""
    session_work.try_on_gpu(session)


try:
    register_matrix()
except Exception as error:  # noqa: BLE001 - whatever it is, it is one message
    sys.exit(format_error(error))

"""The command `torchmill`: `torchmill TASK` is invoke's, `torchmill nox -s SESSION` is nox, `torchmill init` begins."""

import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from . import SUITE, start

LISTING: tuple[list[str], ...] = ([], ["--list"], ["-l"], ["--help"], ["-h"], ["help"])  # the tasks
INIT = "torchmill init [--github]: write what a repository of wheels needs into this folder; files that are there stay"
TRUST = (
    "torchmill trust: record that what torchmill keeps in this folder, and links to it, are yours"
)
WORKFLOW = (
    "for GitHub: in .github/workflows/wheels.yml, put your repository of torchmill in the place of OWNER/torchmill,\n"
    "and a tag or commit of it in the place of REF; push; in Settings, Pages, choose GitHub Actions as the source;\n"
    "run the workflow Wheels from the page Actions"
)


def main() -> None:
    """Run a task, a session, begin a project in this folder, or record that its state is the user's."""
    words = sys.argv[1:]
    sys.excepthook = lambda _, error, __: sys.stderr.write(
        f"error: {error}\n"
    )  # until tasks.py has its own
    if str(SUITE) not in sys.path:
        sys.path.insert(0, str(SUITE))
    from torchmill.core import programs

    program = programs.started_program(sys.argv[0], Path(sys.executable), os.environ)
    programs.record_programs(os.environ, program)
    if words in LISTING:
        sys.exit(list_commands())
    if words[:1] == ["init"]:
        sys.exit(begin_project(words[1:], Path.cwd()))
    if words[:1] == ["trust"]:
        sys.exit(trust_folder(words[1:], Path.cwd()))
    start(Path.cwd())
    if words[:1] == ["nox"]:
        from nox.__main__ import main as run_nox

        sys.argv = ["nox", "--noxfile", str(SUITE / "noxfile.py"), *words[1:]]
        run_nox()
        return
    from invoke import Program

    sys.argv = ["torchmill", "--search-root", str(SUITE), *words]
    Program(name="torchmill", binary=program, version=version("torchmill")).run()


def list_commands() -> int:
    """Print the tasks and how sessions are run, which needs nothing of this folder; return the exit code."""
    from torchmill.core.exits import print_now
    from torchmill.core.task_lines import list_tasks

    print_now(f"{list_tasks()}\n\nIn a folder of your own:\n  {INIT}\n  {TRUST}")
    return 0


def trust_folder(words: list[str], folder: Path) -> int:
    """Record that a folder's state and links are the user's, and return the exit code."""
    if words:
        sys.stderr.write(f"error: {' '.join(words)}: {TRUST}\n")
        return 2
    from torchmill.core.errors import TorchmillError
    from torchmill.core.exits import format_error
    from torchmill.core.homes import trust_home
    from torchmill.core.paths import Layout
    from torchmill.core.system_errors import report_unwritable

    os.environ.setdefault("TORCHMILL_HOME", str(folder))
    try:
        with report_unwritable(folder):
            lines = trust_home(Layout.of_checkout(SUITE))
    except TorchmillError as error:
        sys.stderr.write(f"{format_error(error)}\n")
        return error.exit_code
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def begin_project(words: list[str], folder: Path) -> int:
    """Write the files of a project into a folder and return the exit code; nothing is written through a link."""
    if {*words} - {"--github"}:
        sys.stderr.write(f"error: {' '.join(words)}: {INIT}\n")
        return 2
    for top in (SUITE / "project", *([SUITE / "github"] if words else [])):
        for path in sorted(
            path for path in top.rglob("*") if path.is_file() and path.parent.name != "__pycache__"
        ):
            name = Path(*(part.replace("dot-", ".") for part in path.relative_to(top).parts))
            present = os.path.lexists(folder / name)
            link = next((place for place in name.parents if (folder / place).is_symlink()), None)
            if link is not None and not present:
                sys.stderr.write(
                    f"error: {folder / link} is a link: remove it, then {name} can be written here\n"
                )
                return 2
            if not present:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / name)
            sys.stdout.write(f"{name}: {'is there, and stays' if present else 'written'}\n")
    from torchmill.core.exits import print_now

    print_now(
        "noxfile.py and tasks.py are programs: whoever runs `nox` or `invoke` in this folder runs them"
    )
    print_now("next: invoke build --tag v2.4.1 --python 3.12")
    if words:
        print_now(WORKFLOW)
    return 0


if __name__ == "__main__":
    main()

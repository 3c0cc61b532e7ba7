"""The command `torchmill` of an installed suite; it works in the current folder.

- `torchmill TASK` runs a task, as `invoke TASK` does in a checkout.
- `torchmill nox -s SESSION` runs a session of nox.
- `torchmill init` writes the files of a project: a repository of the user's own wheels.
- `torchmill trust` records that the state in the folder is the user's (`torchmill/core/homes.py`).
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from torchmill.core import exits, programs
from torchmill.core.errors import ConfigError
from torchmill.core.exits import print_now
from torchmill.core.homes import trust_home
from torchmill.core.paths import Layout
from torchmill.core.system_errors import report_unwritable
from torchmill.core.task_lines import list_tasks
from torchmill_suite import SUITE, end_with_message, start

TEMPLATES = Path(__file__).parent  # the folder of "project" and "github"
LIST_WORDS = {"--list", "-l", "--help", "-h", "help"}
INIT = (
    "torchmill init [--github]: write what a repository of wheels needs into this folder; "
    "files that exist are left as they are"
)
TRUST = (
    "torchmill trust: record that what torchmill keeps in this folder, and links to it, are yours"
)
WORKFLOW = """\
for GitHub: in .github/workflows/wheels.yml, put your repository of torchmill in the place of \
OWNER/torchmill,
and a tag or commit of it in the place of REF; push; in Settings, Pages, choose GitHub Actions as \
the source;
run the workflow Wheels from the page Actions"""


def main() -> None:
    """Run the command line of this process."""
    sys.excepthook = exits.show_uncaught
    words = sys.argv[1:]
    program = programs.started_program(sys.argv[0], Path(sys.executable), os.environ)
    # Sets the variables by which tasks and sessions start each other, and name commands.
    programs.record_programs(os.environ, program)
    command = words[0] if words else ""
    if not words or (len(words) == 1 and command in LIST_WORDS):
        list_commands()
    # These two need no facts, and run before the folder is the user's own (`start` requires that).
    elif command == "init":
        with end_with_message():  # also of an OSError, such as that of a folder without permission
            begin_project(words[1:], Path.cwd())
    elif command == "trust":
        with end_with_message():
            trust_folder(words[1:], Path.cwd())
    elif command == "nox":
        start(Path.cwd())
        run_nox(words[1:])
    else:
        start(Path.cwd())
        run_task(words, program)


def list_commands() -> None:
    """Print the tasks, and how sessions are run. This needs nothing of the current folder."""
    print_now(f"{list_tasks()}\n\nIn a folder of your own:\n  {INIT}\n  {TRUST}")


def run_nox(words: Sequence[str]) -> None:
    """Run nox with the suite's sessions. Ends the program."""
    from nox.__main__ import main as nox_main

    sys.argv = ["nox", "--noxfile", str(SUITE / "noxfile.py"), *words]
    nox_main()


def run_task(words: Sequence[str], program: str) -> None:
    """Run invoke with the suite's tasks; `program` is its name in messages. Ends the program."""
    from invoke import Program

    # The tasks also read sys.argv themselves (`torchmill/commands/command_line.py`).
    sys.argv = ["torchmill", "--search-root", str(SUITE), *words]
    Program(name="torchmill", binary=program, version=version("torchmill")).run()


def trust_folder(words: Sequence[str], folder: Path) -> None:
    """Record that the state and links of a home are the user's.

    The home is the folder that TORCHMILL_HOME names, as for all commands, and else `folder`. Raises
    ConfigError if there are arguments (it takes none), or if git tracks files of the state;
    HostError if the record cannot be written.
    """
    _refuse_words(words, TRUST)
    os.environ.setdefault("TORCHMILL_HOME", str(folder))
    layout = Layout.of_checkout(SUITE)
    with report_unwritable(layout.root):
        lines = trust_home(layout)
    for line in lines:
        print_now(line)


def begin_project(words: Sequence[str], folder: Path) -> None:
    """Write the files of a project into a folder; those that exist stay as they are.

    With the word "--github", a workflow is written that builds the wheels. Raises ConfigError for
    any other word, and for a link in the place of a folder of the project.
    """
    _refuse_words([word for word in words if word != "--github"], INIT)
    for_github = "--github" in words
    templates = [TEMPLATES / "project"]
    if for_github:
        templates.append(TEMPLATES / "github")
    for template in templates:
        for source in sorted(template.rglob("*")):
            # pip compiles the template's .py files when it installs: leave the bytecode out.
            if source.is_file() and source.parent.name != "__pycache__":
                print_now(_copy_into_project(source, template, folder))
    _copy_schemas(folder / "build_configs" / "schemas")
    print_now(
        "noxfile.py and tasks.py are programs: "
        "whoever runs `nox` or `invoke` in this folder runs them"
    )
    print_now("next: invoke build --tag v2.4.1 --python 3.12")
    if for_github:
        print_now(WORKFLOW)


def _copy_into_project(source: Path, template: Path, folder: Path) -> str:
    """Copy a file of a template into a folder, unless it exists; return a line about it."""
    # A template has "dot-gitignore": as ".gitignore" it would hold for the suite's own checkout.
    parts = source.relative_to(template).parts
    name = Path(*(re.sub("^dot-", ".", part) for part in parts))
    target = folder / name
    if os.path.lexists(target):
        return f"{name}: exists, left as it is"
    for parent in name.parents:
        # A link may have come with a clone, and lead out of the folder.
        if (folder / parent).is_symlink():
            raise ConfigError(
                f"{folder / parent} is a link: remove it, then {name} can be written here",
                code="foreign-link",
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return f"{name}: written"


def _refuse_words(words: Sequence[str], usage: str) -> None:
    """Raise ConfigError if there are words that a command does not take."""
    if words:
        raise ConfigError(f"{' '.join(words)}: {usage}", code="invalid-option")


def _copy_schemas(folder: Path) -> None:
    """Copy the JSON schemas of the TOML files in build_configs/ into a project's folder.

    Those of an older torchmill are replaced. Nothing is written through a link.
    """
    if folder.is_symlink() or folder.parent.is_symlink():
        return
    folder.mkdir(parents=True, exist_ok=True)
    is_written = False
    for path in sorted((SUITE / "build_configs" / "schemas").glob("*.json")):
        target = folder / path.name
        if not target.is_symlink():
            shutil.copyfile(path, target)
            is_written = True
    if is_written:
        print_now("build_configs/schemas: written, for editors")


if __name__ == "__main__":
    main()

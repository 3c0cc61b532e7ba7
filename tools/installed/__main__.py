"""The command `torchmill`: `torchmill TASK` is invoke's, `torchmill nox -s SESSION` is nox, `torchmill init` begins."""

import shutil
import sys
from importlib.metadata import version
from pathlib import Path

from . import SUITE, start

INIT = "torchmill init [--github]: write what a repository of wheels needs into this folder; files that are there stay"


def main() -> None:
    """Run a task, a session, or begin a project in this folder."""
    words = sys.argv[1:]
    sys.excepthook = lambda _, error, __: sys.stderr.write(f"error: {error}\n")  # until tasks.py has its own
    if words[:1] == ["init"]:
        sys.exit(begin_project(words[1:], Path.cwd()))
    start(Path.cwd())
    if words[:1] == ["nox"]:
        from nox.__main__ import main as run_nox

        sys.argv = ["nox", "--noxfile", str(SUITE / "noxfile.py"), *words[1:]]
        run_nox()
        return
    from invoke import Program

    sys.argv = ["torchmill", "--search-root", str(SUITE), *(words or ["--list"])]
    Program(name="torchmill", binary="torchmill", version=version("torchmill")).run()


def begin_project(words: list[str], folder: Path) -> int:
    """Write the files of a project into a folder and return the exit code."""
    if {*words} - {"--github"}:
        sys.stderr.write(f"error: {' '.join(words)}: {INIT}\n")
        return 2
    for top in (SUITE / "project", *([SUITE / "github"] if words else [])):
        for path in sorted(one for one in top.rglob("*") if one.is_file() and one.parent.name != "__pycache__"):
            name = Path(*(part.replace("dot-", ".") for part in path.relative_to(top).parts))
            there = (folder / name).exists()
            if not there:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / name)
            sys.stdout.write(f"{name}: {'is there, and stays' if there else 'written'}\n")
    sys.stdout.write("next: invoke build --tag v2.4.1 --python 3.12\n")
    return 0


if __name__ == "__main__":
    main()

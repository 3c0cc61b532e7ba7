"""Hostile repositories under a file-system watch: what commands execute and change, by strace.

Each repository of tests/support/hostile.py is cloned or unpacked into a user's home, and commands are run in it. None
may execute what the repository brought, and none may change anything but torchmill's own state, the user's cache,
temporary files, and for commands that write something for the user, their documented places in the repository.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tests.faults.tally import REFUSED, RIGHT, Tally
from tests.support import hostile
from tests.support.commands import ROOT
from tests.support.hostile import HARMLESS, ONLY_ARCHIVES, Victim
from tests.support.installed import install_suite, user_environment
from tests.support.watched import Watch, watch

_CELL = ("wheel-3.12-cpu", "--tag=v2.4.1")
_HOST = f"--host={ROOT}/tests/golden/hosts/debian-12.toml"
READING: Sequence[tuple[str, ...]] = (
    ("matrix", "--tag=v2.4.1"),
    ("plan", *_CELL),
    ("plan", *_CELL, _HOST),
    ("explain", *_CELL),
    ("doctor",),
    ("doctor", *_CELL),
    ("arch", "8.6"),
    ("shards", *_CELL, _HOST),
    ("status",),
    ("jobs", *_CELL),
    ("facts",),
    ("verify",),
    ("report",),
    ("diagnose",),
    ("diagnose", "build.log"),
    ("toolkit", "--list"),
    ("snippet", "--tool=uv"),
    ("build", "--dry-run", "--tag=v2.4.1", "--python=3.12", "--cuda=cpu"),
    ("clean", "--age=0s", "--dry-run"),
    ("deps", "--dry-run"),
    ("slim", "--dry-run"),
    ("publish", "--dry-run"),
    ("nox", "-l"),
    ("--list",),
    ("--help",),
)
"""Commands that write nothing in the home."""
WRITING: Sequence[tuple[str, ...]] = (
    ("clean", "--age=0s"),
    ("clean", "--kind=trees", "--kind=sources", "--kind=logs", "--kind=wheels"),
    ("index",),
    ("image", "--kind=builder", "--tag=v2.4.1", "--python=3.12"),
    ("image", "--kind=devcontainer", "--tag=v2.4.1", "--python=3.12"),
    ("cluster", *_CELL, "--shards=2"),
    ("fetch", "--tag=v2.4.1", "--mirror=file:///nowhere"),
    ("add", "nobody-has-this", "--no-try"),
    ("bisect", "--reset"),
    ("trust",),
    ("init", "--github"),
)
WRITTEN = (
    ".torchmill",
    ".nox",
    "dist",
    "index",
    "channel",
    ".devcontainer",
    ".github",
    "build_configs",
    "noxfile.py",
    "tasks.py",
    "requirements.txt",
    ".gitignore",
)
"""The places in a repository that the commands of WRITING may change; docs/reference/files.md names them."""


@dataclass(frozen=True)
class Form:
    """A hostile repository, and how its victim got it."""

    name: str
    cloned: bool

    def __str__(self) -> str:
        """Return it in words, for the list of failures."""
        return f"{self.name} as {'a clone' if self.cloned else 'an archive'}"


def all_forms() -> list[Form]:
    """Return every hostile repository in every form that it can have."""
    names = (*hostile.REFUSED, *HARMLESS)
    return [
        Form(name, cloned)
        for name in names
        for cloned in (True, False)
        if not (cloned and name in ONLY_ARCHIVES)
    ]


def attack_by_repositories(count: int, seed: int) -> Tally:
    """Run `count` commands in hostile repositories: every form and every command once before any is repeated."""
    tally = Tally("repositories")
    with tempfile.TemporaryDirectory() as place:
        site = install_suite(Path(place) / "site")
        for number, (form, words) in enumerate(islice(_cases(seed), count)):
            folder = Path(place) / str(number)
            folder.mkdir()
            tally.add(f"{form}: {' '.join(words)}", run_case(form, words, folder, site))
            tally.notes["forms of repositories"] = min(number + 1, len(all_forms()))
    return tally


def _cases(seed: int) -> Iterator[tuple[Form, tuple[str, ...]]]:
    """Yield pairs of a form and a command for ever, each list in an order of its own that changes each time."""
    chance = random.Random(f"{seed} repositories")  # noqa: S311 - no secret
    forms: list[Form] = []
    commands: list[tuple[str, ...]] = []
    while True:
        forms = forms or chance.sample(all_forms(), k=len(all_forms()))
        commands = commands or chance.sample((*READING, *WRITING), k=len(READING) + len(WRITING))
        yield forms.pop(), commands.pop()


def run_case(form: Form, words: Sequence[str], folder: Path, site: Path) -> str:
    """Run one command in one hostile repository; return the outcome."""
    victim = hostile.make_victim(folder / "home")
    hostile.build_repository(form.name, victim, cloned=form.cloned)
    before = hostile.snapshot(victim.home)
    temporary = folder / "tmp"
    temporary.mkdir()
    env = user_environment(site, victim.home) | {
        "TMPDIR": str(temporary),
        "MILLGUARD_BOARD": "",
        "TORCHMILL_PROBE": "off",
    }
    argv = [sys.executable, "-P", "-m", "torchmill_suite", *words]
    seen = watch(argv, victim.repo, env, folder / "trace")
    return _judge(seen, victim, before, tuple(words), folder)


def _judge(
    seen: Watch,
    victim: Victim,
    before: dict[str, tuple[object, ...]],
    words: tuple[str, ...],
    folder: Path,
) -> str:
    """Return the outcome of a command that was watched."""
    if "Traceback" in seen.done.stderr or "a bug" in seen.done.stderr:
        return f"unforeseen: {seen.done.stderr[-500:]}"
    if theirs := sorted(path for path in seen.executed if path.is_relative_to(victim.home)):
        return f"executed: {theirs[:5]}"
    if victim.canary.exists():
        return "code of the repository ran"
    allowed = [folder / "cache", folder / "tmp", Path("/dev"), Path("/proc")]
    if words in WRITING:
        allowed += [victim.repo / name for name in WRITTEN]
    foreign = sorted(
        path for path in seen.changed if not any(path.is_relative_to(place) for place in allowed)
    )
    if foreign:
        return f"changed: {[str(path) for path in foreign[:5]]}"
    after = hostile.snapshot(victim.home)
    lost = sorted(
        path for path in before if not path.startswith("repo/") and after.get(path) != before[path]
    )
    if lost:
        return f"changed of the user's own: {lost[:5]}"
    return REFUSED if seen.done.returncode else RIGHT

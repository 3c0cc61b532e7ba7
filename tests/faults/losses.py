"""Files that are gone, empty, cut off or overwritten: the same command must end in the same bytes all the same."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.faults.kills import SESSIONS, finish, make_upstream, set_back
from tests.faults.tally import REFUSED, RIGHT, Tally
from tests.support.commands import run
from tests.support.sampled import Sample, fetched

# What torchmill and Nox keep: by kind, where files and folders of it lie below the user's folder.
KEPT: Mapping[str, tuple[str, ...]] = {
    "environment": (
        "../envs/*",
        "../envs/*/bin",
        "../envs/*/lib",
        "../envs/*/pyvenv.cfg",
        "../envs/*/bin/python*",
    ),
    "installed package": ("../envs/*/lib/*/site-packages/*",),
    "delivered": ("home/dist/*",),
    "stage": ("home/.torchmill/trees/*/*/stage", "home/.torchmill/trees/*/*/stage/**/*"),
    "raw wheel": ("home/.torchmill/trees/*/*/raw", "home/.torchmill/trees/*/*/raw/*"),
    "packed wheel": ("home/.torchmill/trees/*/*/packed", "home/.torchmill/trees/*/*/packed/*"),
    "trial": ("home/.torchmill/trees/*/*/verify", "home/.torchmill/trees/*/*/verify/**/*"),
    "records of a tree": ("home/.torchmill/trees/*/*/*",),
    "shared tools": ("home/.torchmill/trees/*/*/kit", "home/.torchmill/trees/*/*/kit/*"),
    "objects": (
        "home/.torchmill/trees/*/*/source/build",
        "home/.torchmill/trees/*/*/source/build/**/*",
    ),
    "copied source": (
        "home/.torchmill/trees/*/*/source/*",
        "home/.torchmill/trees/*/*/source/**/*.c*",
    ),
    "lock": ("home/.torchmill/sources/*/lock", "home/.torchmill/trees/*/*/lock"),
    "log": (
        "home/.torchmill/logs",
        "home/.torchmill/logs/*",
        "home/.torchmill/sources/*/*/fetch.log",
    ),
    "cache": ("home/cache/torchmill/*", "home/cache/torchmill/**/*"),
    "source": ("home/.torchmill/sources/*/*", "home/.torchmill/sources/*/*/tree/**/*"),
    "record of a source": ("home/.torchmill/sources/*/*/source.json",),
    "selected release": ("home/.torchmill/selected.json",),
}
FETCHED = {"source", "record of a source", "selected release"}
"""What `invoke fetch` brought, and brings again: a session may refuse to go on, and name it."""
WAYS = ("gone", "empty", "half", "overwritten")


def attack_by_losses(count: int, seed: int, kinds: Sequence[str] = (*KEPT,)) -> Tally:
    """Spoil `count` files or folders of the sample, one after another, each followed by the same command."""
    chance, tally = random.Random(f"{seed} losses"), Tally("losses")  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sample = fetched(folder / "user", make_upstream(folder), folder / "envs")
        expected = {session: finish(sample, session) for session in SESSIONS}
        whole = _copy((sample.folder, sample.envs), folder / "whole")
        for number in range(count):
            kind = kinds[number % len(kinds)]
            session = SESSIONS[number // len(kinds) % len(SESSIONS)]
            way = (
                "gone" if kind == "copied source" else chance.choice(WAYS)
            )  # a changed one is an edit, and told
            if kind != "delivered" and chance.random() < 0.5:
                set_back(sample, session, "delivered")
            if (path := _pick(sample, kind, chance)) is None:
                raise LookupError(f"the sample keeps nothing that is a {kind}")
            _spoil(path, way, chance)
            outcome = _outcome(sample, session, kind, expected)
            tally.add(f"{session}, {kind} {way}: {path.relative_to(folder)}", outcome)
            if outcome != RIGHT:  # what one case spoiled is not held against the next
                _copy([whole / one.name for one in (sample.folder, sample.envs)], folder)
    return tally


def _copy(folders: Iterable[Path], target: Path) -> Path:
    """Copy folders into another one, in place of what is there, with their times; return it."""
    for folder in folders:
        shutil.rmtree(target / folder.name, ignore_errors=True)
        shutil.copytree(folder, target / folder.name, symlinks=True)
    return target


def _pick(sample: Sample, kind: str, chance: random.Random) -> Path | None:
    """Return a file or a folder of a kind, each of its patterns as likely as the others."""
    every = [
        sorted(path for path in sample.folder.glob(pattern) if not _is_git(path))
        for pattern in KEPT[kind]
    ]
    return (
        chance.choice(chance.choice(some))
        if (some := [paths for paths in every if paths])
        else None
    )


def _is_git(path: Path) -> bool:
    return ".git" in path.parts  # git's own, which it proves itself


def _spoil(path: Path, way: str, chance: random.Random) -> None:
    """Remove a file or folder, or leave of it what `way` says; what is in a folder goes as a whole."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
        if way != "gone":
            path.mkdir()
        return
    size = path.stat().st_size if path.exists() else 0
    if way == "gone" or path.is_symlink():
        path.unlink()
    elif way == "overwritten":
        path.write_bytes(chance.randbytes(size))
    else:
        content = path.read_bytes()
        path.write_bytes(content[: size // 2] if way == "half" else b"")


def _outcome(sample: Sample, session: str, kind: str, expected: Mapping[str, str]) -> str:
    """Return what came of a run, after which everything is well again."""
    told = ""
    try:
        if finish(sample, session) != expected[session]:
            told = "the wheel is another one"
    except subprocess.CalledProcessError as error:
        told = f"the same command ended with {error.returncode}: {error.output[-500:]}"
        if "Traceback" in error.output:
            return f"unforeseen: {told}"
    if not told:
        return RIGHT
    if kind not in FETCHED or "invoke fetch" not in told:
        return told
    order = (
        "fetch",
        "--tag=v1.0.0",
        "--all",
        "--discard",
        f"--mirror=file://{sample.folder.parent / 'upstream'}",
    )
    fetched_again = run("invoke", *order, home=sample.home, env=sample.env)
    try:
        right = all(finish(sample, one) == expected[one] for one in SESSIONS)
    except subprocess.CalledProcessError as error:
        said = fetched_again.stdout + fetched_again.stderr
        return f"{told}; then `invoke fetch`: {said[-300:]}; then {error.output[-300:]}"
    return REFUSED if right else "after `invoke fetch` the wheel is another one"

"""Files of torchmill's that are removed, emptied, cut off or overwritten: the same command must still work.

It must end in the same wheel. If what `invoke fetch` brought is lost, the command may refuse instead, and name it.
"""

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

# Files and folders that torchmill and Nox keep, by kind, as patterns below the user's folder.
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
"""Kinds that `invoke fetch` brings again: a session may refuse to continue, and name that command."""
WAYS = ("gone", "empty", "half", "overwritten")  # half: the second half is cut off


def attack_by_losses(count: int, seed: int, kinds: Sequence[str] = (*KEPT,)) -> Tally:
    """Spoil `count` files or folders of the sample, and run the same command after each."""
    chance, tally = random.Random(f"{seed} losses"), Tally("losses")  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sample = fetched(folder / "user", make_upstream(folder), folder / "envs")
        expected = {session: finish(sample, session) for session in SESSIONS}
        whole = _copy((sample.folder, sample.envs), folder / "whole")
        for number in range(count):
            kind = kinds[number % len(kinds)]
            session = SESSIONS[number // len(kinds) % len(SESSIONS)]
            # A changed file of a copied source would be an edit by the user, which torchmill keeps.
            way = "gone" if kind == "copied source" else chance.choice(WAYS)
            if kind != "delivered" and chance.random() < 0.5:
                set_back(sample, session, "delivered")
            path = _pick(sample, kind, chance)
            if path is None:
                raise LookupError(f"the sample keeps nothing that is a {kind}")
            _spoil(path, way, chance)
            outcome = _outcome(sample, session, kind, expected)
            tally.add(f"{session}, {kind} {way}: {path.relative_to(folder)}", outcome)
            if outcome != RIGHT:  # restore everything, so that the next case starts afresh
                _copy([whole / sample.folder.name, whole / sample.envs.name], folder)
    return tally


def _copy(folders: Iterable[Path], target: Path) -> Path:
    """Copy folders into `target` with their times, replacing folders of the same names; return it."""
    for folder in folders:
        shutil.rmtree(target / folder.name, ignore_errors=True)
        shutil.copytree(folder, target / folder.name, symlinks=True)
    return target


def _pick(sample: Sample, kind: str, chance: random.Random) -> Path | None:
    """Return a file or folder of a kind, drawn from a pattern that was drawn before; None if there is none."""
    matches = []
    for pattern in KEPT[kind]:
        # git verifies its own files.
        paths = sorted(path for path in sample.folder.glob(pattern) if ".git" not in path.parts)
        if paths:
            matches.append(paths)
    return chance.choice(chance.choice(matches)) if matches else None


def _spoil(path: Path, way: str, chance: random.Random) -> None:
    """Spoil a file in one of WAYS, or remove a folder; unless the way is "gone" an empty one replaces it."""
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
    """Run a session after a loss, and `invoke fetch` if the session names it; return the outcome."""
    try:
        if finish(sample, session) == expected[session]:
            return RIGHT
        problem = "the wheel is another one"
    except subprocess.CalledProcessError as error:
        problem = f"the same command ended with {error.returncode}: {error.output[-500:]}"
        if "Traceback" in error.output:
            return f"unforeseen: {problem}"
    if kind not in FETCHED or "invoke fetch" not in problem:
        return problem
    mirror = f"--mirror=file://{sample.folder.parent / 'upstream'}"
    words = ("fetch", "--tag=v1.0.0", "--all", "--discard", mirror)
    fetch = run("invoke", *words, home=sample.home, env=sample.env)
    try:
        digests = {name: finish(sample, name) for name in SESSIONS}
    except subprocess.CalledProcessError as error:
        output = fetch.stdout + fetch.stderr
        return f"{problem}; then `invoke fetch`: {output[-300:]}; then {error.output[-300:]}"
    return REFUSED if digests == expected else "after `invoke fetch` the wheel is another one"

"""A share of a build's compiles, for one of several machines: how the compiles are cut, and what makes a share.

What a share makes goes into ccache's own storage in a folder, and a record beside it: PARTS/shards/3-of-16.json.
As a program this stands in for ninja, which alone knows the compiles once CMake, or setuptools, has written its
file. A cut depends on ninja's names, the shipped costs and the number of shares only, so that all machines agree.
setuptools calls ninja for each module of an extension: what one adds to a share counts in the next.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torchmill.core.atomic_writes import write_atomically, write_script
from torchmill.core.deletion import delete_paths
from torchmill.core.lenient_paths import exists, find_paths, read_text
from torchmill.core.package_data import read_table_beside
from torchmill.core.paths import CHECKOUT
from torchmill.core.strict_json import load_object

ORDER_VARIABLE = (
    "TORCHMILL_SHARD"  # the variable that names the file with what the program shall do
)
RECORDS = "shards"  # folder of the records, in a folder of parts
MADE = 3  # exit code of the program: the share is made, and the rest of the build is not for this machine
_STAND_IN = Path(__file__).with_name("ninja_shard.sh")
_MAKE_PROGRAM = re.compile(rb"^(CMAKE_MAKE_PROGRAM:\w+=).*$", re.MULTILINE)
_USUAL_SECONDS = 5.0  # of a compile that no cost is known of; about the mean of torch 1.13.1's
_USUAL_SECONDS_OF_C = 0.2  # of one of C; about the mean of the libraries in its tree
MOST_SHARDS = 1000  # Slurm's own default for an array is 1001
_SHARD = re.compile(r"(?P<number>\d{1,4}|auto)(?:/(?P<count>\d{1,4}))?")
_WITH_VALUE = {"-f", "-j", "-k", "-l", "-d", "-w"}  # of ninja's options
_ENGINES = read_table_beside(__file__, "engines.toml")["engine"]


@dataclass(frozen=True, slots=True)
class Shard:
    """Which share of how many."""

    number: int  # from 1
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def record(self, parts: Path) -> Path:
        """Return the file that says what it made."""
        return parts / RECORDS / f"{self.number}-of-{self.count}.json"


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard:
    """Return the share that "3/16", "auto" or "auto/16" means; "auto" is told by the engine that runs the task.

    Raises ValueError, whose message is part of a sentence, for what is none, or where no engine tells.
    """
    match = _SHARD.fullmatch(text)
    if match is None or (match["number"] != "auto" and not match["count"]):
        raise ValueError(f"'{text}' is not a share such as 3/16, auto or auto/16")
    count = int(match["count"] or 0)
    shard = (
        _engine_shard(count, environ)
        if match["number"] == "auto"
        else Shard(int(match["number"]), count)
    )
    if not 1 <= shard.number <= shard.count <= MOST_SHARDS:
        raise ValueError(
            f"there is no share {shard}: they are 1/COUNT to COUNT/COUNT, with up to {MOST_SHARDS}"
        )
    return shard


def _engine_shard(count: int, environ: Mapping[str, str]) -> Shard:
    def number_in(name: str, usual: str) -> int:
        if not (said := environ.get(name, usual)).isdecimal():
            raise ValueError(f"{name} is '{said[:40]}', which is not a number: write 3/16")
        return int(said)

    engines = [one for one in _ENGINES if environ.get(one["number"], "").isdecimal()]
    if len(engines) != 1:
        names = ", ".join(one["number"] for one in engines) or "Slurm, SGE, GitLab, Buildkite …"
        raise ValueError(f"no engine says which share this is, or several do ({names}): write 3/16")
    number, begin = engines[0]["number"], engines[0]["first"]
    if not (shares := count or number_in(engines[0].get("count", ""), "0")):
        raise ValueError(f"{number} gives a number, but nothing gives the total: write auto/COUNT")
    begin = begin if isinstance(begin, int) else number_in(begin, "1")
    return Shard(number_in(number, "") - begin + 1, shares)


def cut_shares(seconds: Mapping[str, float], loads: list[float]) -> list[list[str]]:
    """Return the names in as many shares as there are `loads`, the seconds of each, to which theirs are added."""
    shares: list[list[str]] = [[] for _ in loads]
    for name in sorted(seconds, key=lambda name: (-seconds[name], name)):  # the longest first
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += seconds[name]
    return shares


def expected_seconds(name: str, costs: Iterable[tuple[str, float]]) -> float:
    """Return the seconds that an object of that name takes to compile, by the first pattern of its source."""
    plain = re.sub(
        r"CMakeFiles/[^/]+\.dir/|\.(o|obj)$", "", name
    )  # of CMake, the source is named in two parts
    usual = _USUAL_SECONDS_OF_C if plain.endswith((".c", ".S")) else _USUAL_SECONDS
    return next((seconds for pattern, seconds in costs if fnmatchcase(plain, f"*{pattern}")), usual)


def stand_in(folder: Path, path: str, configured: Path) -> dict[str, str]:
    """Return the variables by which builds take the program for ninja; a tree that is configured calls it, too.

    Its folder is the first of PATH. CMake looks into CMAKE_PREFIX_PATH before that, and torch's setup.py passes
    the other variable on. `configured` is the text that CMake keeps there. Raises OSError where the folder cannot
    be written.
    """
    own = folder / "ninja"
    rest = os.pathsep.join(one for one in path.split(os.pathsep) if one != str(folder))
    real = shutil.which("ninja", path=rest) or "ninja"
    words = {"ninja": real, "suite": str(CHECKOUT), "python": sys.executable}
    write_script(own, _STAND_IN, {name: shlex.quote(word) for name, word in words.items()})
    if configured.is_file():
        times, data = configured.stat(), configured.read_bytes()
        write_atomically(
            configured, _MAKE_PROGRAM.sub(lambda match: match[1] + os.fsencode(own), data)
        )
        os.utime(
            configured, ns=(times.st_atime_ns, times.st_mtime_ns)
        )  # else all would be configured again
    return {"PATH": f"{folder}{os.pathsep}{rest}", "CMAKE_MAKE_PROGRAM": str(own)}


def list_parts(folder: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Yield each folder of parts, with its records, of which damaged ones are empty: the folder itself, those in it."""
    for one in (folder, *sorted(path for path in folder.iterdir() if path.is_dir())):
        if any(
            exists(one / name) for name in (RECORDS, "CACHEDIR.TAG")
        ):  # ccache's: where a share was ended
            records = map(load_object, find_paths(one / RECORDS, "*-of-*.json"))
            yield one, [said if isinstance(said.get("failed"), list) else {} for said in records]


class Ninja:
    """The real ninja, what it was called with, and the folder of its file."""

    def __init__(self, program: str, arguments: Sequence[str]) -> None:
        self.program, self.folder = program, Path()
        self.options, self.goals, words = list[str](), list[str](), iter(arguments)
        for word in words:
            if word == "-C":
                self.folder = Path(next(words))
            elif word in _WITH_VALUE:
                self.options += [word, next(words)]
            else:
                (self.options if word.startswith("-") else self.goals).append(word)

    def ask(self, *words: str) -> list[str]:
        """Return the lines of one of its tools. Raises CalledProcessError."""
        argv = [self.program, "-t", *words]
        done = subprocess.run(
            argv, check=True, stdout=subprocess.PIPE, encoding="utf-8", cwd=self.folder
        )
        return done.stdout.splitlines()

    def _rules(self, *words: str) -> dict[str, str]:
        return dict(line.rsplit(": ", 1) for line in self.ask("targets", *words) if ": " in line)

    def compiled(self) -> list[str]:
        """Return the objects that the goals need and no generator does: those are made wherever they are needed."""
        rules = self._rules("all")
        # ninja does not count goals among their inputs; where setuptools links, objects are the goals
        needed = {*self.ask("inputs", *self.goals), *(self.goals or self._rules("depth", "1"))}
        objects = [name for name in needed if _is_object(name, rules.get(name, ""))]
        return sorted(set(objects).difference(self.ask("inputs", *objects) if objects else ()))


def _is_object(name: str, rule: str) -> bool:
    """Tell whether ninja compiles an object of that name; a link of device code needs all the others."""
    linked = any(
        word in rule for word in ("DEVICE_LINK", "devlink", "dlink")
    )  # of CMake, torch, Meson
    linked = linked or "intermediate_link" in name or "device_link" in name
    return bool(rule) and rule != "phony" and name.endswith((".o", ".obj")) and not linked


def main(program: str, arguments: Sequence[str]) -> int:
    """Make the share that the order names, write its record, and return the exit code."""
    given = Path(os.environ.pop(ORDER_VARIABLE))
    order = json.loads(given.read_text(encoding="utf-8"))
    ninja, shard = Ninja(program, arguments), Shard(order["number"], order["count"])
    try:
        names = ninja.compiled()
    except subprocess.CalledProcessError as error:
        sys.stderr.write(
            f"error: ninja does not say what it compiles, as 1.11 and newer do: {error}\n"
        )
        return 1
    before = order.get("made") or {
        "compiles": 0,
        "made": 0,
        "failed": [],
        "seconds": [0.0] * shard.count,
    }
    seconds = {name: expected_seconds(name, order["costs"]) for name in names}
    mine = cut_shares(seconds, before["seconds"])[shard.number - 1]
    sys.stderr.write(f"share {shard}: {len(mine)} of {len(names)} compiles\n")
    last = given.with_name(f"parts-{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]}")
    if read_text(last) != order["parts"]:  # what is compiled here is not in this folder yet
        delete_paths(ninja.folder / name for name in mine)
        write_atomically(last, order["parts"])
    argv = [
        program,
        *ninja.options,
        "-k",
        "0",
        *mine,
    ]  # one that fails keeps no other from being made
    done = subprocess.run(argv, check=False, cwd=ninja.folder).returncode if mine else 0
    failed = [name for name in mine if not (ninja.folder / name).exists()]
    sums = {
        "compiles": before["compiles"] + len(names),
        "made": before["made"] + len(mine) - len(failed),
    }
    sums |= {"failed": before["failed"] + failed, "seconds": before["seconds"]}
    record = {
        "format": 1,
        "shard": str(shard),
        "session": order["session"],
        "tree": order["tree"],
        **sums,
    }
    write_atomically(shard.record(Path(order["parts"])), json.dumps(record, indent=1))
    write_atomically(given, json.dumps(order | {"made": sums}))
    return (done or 1) if failed else MADE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

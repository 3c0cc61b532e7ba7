"""A share of a build's compiles, for one of several machines: how they are divided, and made.

The objects of a share go into ccache's own storage in a folder, and a record beside them:
PARTS/shards/3-of-16.json. As a program this stands in for ninja, which alone knows the compiles once
CMake, or setuptools, has written its file. A division depends only on ninja's names, the shipped
costs and the number of shares, so that all machines agree. setuptools calls ninja for each module of
an extension: the seconds that one module adds to a share count for the next.
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
from torchmill.core.paths import IMPORT_FOLDER
from torchmill.core.strict_json import load_object

ORDER_VARIABLE = "TORCHMILL_SHARD"  # names the file with the order for this program
RECORDS = "shards"  # folder of the records, in a folder of parts
MADE = 3  # exit code: the share is made, and the rest of the build is not for this machine
MOST_SHARDS = 1000  # Slurm's default limit for an array is 1001
_STAND_IN = Path(__file__).with_name("ninja_shard.sh")
_MAKE_PROGRAM = re.compile(rb"^(CMAKE_MAKE_PROGRAM:\w+=).*$", re.MULTILINE)
_CCACHE_TAG = "CACHEDIR.TAG"  # in a folder of parts whose share was ended before its record
# Seconds of a compile without a known cost: the means of torch 1.13.1, and of its C libraries.
_USUAL_SECONDS = 5.0
_USUAL_SECONDS_OF_C = 0.2
_SHARD = re.compile(r"(?P<number>\d{1,4}|auto)(?:/(?P<count>\d{1,4}))?")
_NINJA_OPTIONS_WITH_VALUE = {"-f", "-j", "-k", "-l", "-d", "-w"}
_ENGINES = read_table_beside(__file__, "engines.toml")["engine"]
_SHOWN_CHARACTERS = 40  # of a variable that an error quotes


@dataclass(frozen=True, slots=True)
class Shard:
    """One share of several."""

    number: int  # from 1
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def record(self, parts: Path) -> Path:
        """Return the file of its record in a folder of parts."""
        return parts / RECORDS / f"{self.number}-of-{self.count}.json"


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard:
    """Return the share that "3/16", "auto" or "auto/16" means.

    "auto" is told by the variables of the engine that runs the task. Raises ValueError, whose
    message is part of a sentence, if the text means none, or no engine tells.
    """
    match = _SHARD.fullmatch(text)
    if match is None or (match["number"] != "auto" and not match["count"]):
        raise ValueError(f"'{text}' is not a share such as 3/16, auto or auto/16")
    count = int(match["count"] or 0)
    if match["number"] == "auto":
        shard = _engine_shard(count, environ)
    else:
        shard = Shard(int(match["number"]), count)
    if not 1 <= shard.number <= shard.count <= MOST_SHARDS:
        raise ValueError(
            f"there is no share {shard}: they are 1/COUNT to COUNT/COUNT, with up to {MOST_SHARDS}"
        )
    return shard


def divide_compiles(seconds: Mapping[str, float], loads: list[float]) -> list[list[str]]:
    """Return the names in as many shares as there are `loads`.

    `loads` are the seconds of each share, to which those of its names are added.
    """
    shares: list[list[str]] = [[] for _ in loads]
    longest_first = sorted(seconds, key=lambda name: (-seconds[name], name))
    for name in longest_first:
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += seconds[name]
    return shares


def expected_seconds(name: str, costs: Iterable[tuple[str, float]]) -> float:
    """Return the seconds that an object of a name takes to compile.

    The first pattern that fits its source counts.
    """
    # CMake names the source in two parts of the object's path.
    source = re.sub(r"CMakeFiles/[^/]+\.dir/|\.(o|obj)$", "", name)
    for pattern, seconds in costs:
        if fnmatchcase(source, f"*{pattern}"):
            return seconds
    return _USUAL_SECONDS_OF_C if source.endswith((".c", ".S")) else _USUAL_SECONDS


def stand_in(folder: Path, path: str, configured: Path) -> dict[str, str]:
    """Return the variables by which builds take this program for ninja.

    Its folder is the first of PATH. CMake looks into CMAKE_PREFIX_PATH before that, and torch's
    setup.py passes CMAKE_MAKE_PROGRAM on. `configured` is CMake's cache file: a tree that is
    configured already calls the program as well. Raises OSError if the folder cannot be written.
    """
    program = folder / "ninja"
    other_folders = [entry for entry in path.split(os.pathsep) if entry != str(folder)]
    other_path = os.pathsep.join(other_folders)
    ninja = shutil.which("ninja", path=other_path) or "ninja"
    words = {"ninja": ninja, "suite": str(IMPORT_FOLDER), "python": sys.executable}
    write_script(program, _STAND_IN, {name: shlex.quote(word) for name, word in words.items()})
    if configured.is_file():
        times = configured.stat()
        replaced = _MAKE_PROGRAM.sub(
            lambda match: match[1] + os.fsencode(program), configured.read_bytes()
        )
        write_atomically(configured, replaced)
        # with its old date, else everything would be configured again
        os.utime(configured, ns=(times.st_atime_ns, times.st_mtime_ns))
    return {"PATH": f"{folder}{os.pathsep}{other_path}", "CMAKE_MAKE_PROGRAM": str(program)}


def list_parts(folder: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """Yield each folder of parts with its records: the folder itself, and those in it.

    The record of a part that is damaged is empty.
    """
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir())
    for part in (folder, *subfolders):
        if not exists(part / RECORDS) and not exists(part / _CCACHE_TAG):
            continue
        records = []
        for file in find_paths(part / RECORDS, "*-of-*.json"):
            record = load_object(file)
            records.append(record if isinstance(record.get("failed"), list) else {})
        yield part, records


class Ninja:
    """The real ninja, the words it was called with, and the folder of its file."""

    def __init__(self, program: str, arguments: Sequence[str]) -> None:
        self.program = program
        self.folder = Path()
        self.options: list[str] = []
        self.goals: list[str] = []
        words = iter(arguments)
        for word in words:
            if word == "-C":
                self.folder = Path(next(words))
            elif word in _NINJA_OPTIONS_WITH_VALUE:
                self.options += [word, next(words)]
            elif word.startswith("-"):
                self.options.append(word)
            else:
                self.goals.append(word)

    def ask(self, *words: str) -> list[str]:
        """Return the lines of one of its tools. Raises CalledProcessError."""
        argv = [self.program, "-t", *words]
        done = subprocess.run(
            argv, check=True, stdout=subprocess.PIPE, encoding="utf-8", cwd=self.folder
        )
        return done.stdout.splitlines()

    def compiled(self) -> list[str]:
        """Return the objects that the goals need and no generator does, sorted.

        Objects that a generator needs are made wherever the generator runs.
        """
        rules = self._rules("all")
        # ninja does not list goals among their inputs, and if setuptools links, objects are goals.
        needed = {*self.ask("inputs", *self.goals), *(self.goals or self._rules("depth", "1"))}
        objects = [name for name in needed if _is_object(name, rules.get(name, ""))]
        of_generators = self.ask("inputs", *objects) if objects else []
        return sorted(set(objects).difference(of_generators))

    def _rules(self, *words: str) -> dict[str, str]:
        """Return the rule that makes each target."""
        rules = {}
        for line in self.ask("targets", *words):
            if ": " in line:
                target, rule = line.rsplit(": ", 1)
                rules[target] = rule
        return rules


def main(program: str, arguments: Sequence[str]) -> int:
    """Make the share that the order names, write its record, and return the exit code."""
    order_file = Path(os.environ.pop(ORDER_VARIABLE))
    order = json.loads(order_file.read_text(encoding="utf-8"))
    ninja = Ninja(program, arguments)
    shard = Shard(order["number"], order["count"])
    try:
        names = ninja.compiled()
    except subprocess.CalledProcessError as error:
        sys.stderr.write(
            f"error: ninja does not say what it compiles, as 1.11 and newer do: {error}\n"
        )
        return 1
    # What earlier modules of the extension added to the shares.
    nothing: dict[str, Any] = {
        "compiles": 0,
        "made": 0,
        "failed": [],
        "seconds": [0.0] * shard.count,
    }
    earlier = order.get("made") or nothing
    seconds = {name: expected_seconds(name, order["costs"]) for name in names}
    own_names = divide_compiles(seconds, earlier["seconds"])[shard.number - 1]
    sys.stderr.write(f"share {shard}: {len(own_names)} of {len(names)} compiles\n")
    _forget_other_parts(order_file, order["parts"], names, ninja.folder, own_names)
    exit_code = 0
    if own_names:
        # -k 0: one that fails keeps no other from being made
        argv = [program, *ninja.options, "-k", "0", *own_names]
        exit_code = subprocess.run(argv, check=False, cwd=ninja.folder).returncode
    failed = [name for name in own_names if not (ninja.folder / name).exists()]
    sums = {
        "compiles": earlier["compiles"] + len(names),
        "made": earlier["made"] + len(own_names) - len(failed),
        "failed": earlier["failed"] + failed,
        "seconds": earlier["seconds"],
    }
    record = {
        "format": 1,
        "shard": str(shard),
        "session": order["session"],
        "tree": order["tree"],
        **sums,
    }
    write_atomically(shard.record(Path(order["parts"])), json.dumps(record, indent=1))
    write_atomically(order_file, json.dumps(order | {"made": sums}))
    return (exit_code or 1) if failed else MADE


def _forget_other_parts(
    order_file: Path, parts: str, names: Sequence[str], tree: Path, own_names: Iterable[str]
) -> None:
    """Delete this share's objects if they were compiled for another folder of parts.

    ninja would take them for done, and they would not go into this one.
    """
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]
    last_parts = order_file.with_name(f"parts-{digest}")
    if read_text(last_parts) != parts:
        delete_paths(tree / name for name in own_names)
        write_atomically(last_parts, parts)


def _engine_shard(count: int, environ: Mapping[str, str]) -> Shard:
    """Return the share by the variables of an engine; `count` is 0 if the engine has to tell it."""
    engines = [engine for engine in _ENGINES if environ.get(engine["number"], "").isdecimal()]
    if len(engines) != 1:
        names = ", ".join(engine["number"] for engine in engines)
        names = names or "Slurm, SGE, GitLab, Buildkite …"
        raise ValueError(f"no engine says which share this is, or several do ({names}): write 3/16")
    engine = engines[0]
    shares = count or _read_number(environ, engine.get("count", ""), "0")
    if not shares:
        raise ValueError(
            f"{engine['number']} gives a number, but nothing gives the total: write auto/COUNT"
        )
    first = engine["first"]  # the number of the first share, or the variable that has it
    if not isinstance(first, int):
        first = _read_number(environ, first, "1")
    number = _read_number(environ, engine["number"], "")
    return Shard(number - first + 1, shares)


def _read_number(environ: Mapping[str, str], name: str, default: str) -> int:
    text = environ.get(name, default)
    if not text.isdecimal():
        raise ValueError(
            f"{name} is '{text[:_SHOWN_CHARACTERS]}', which is not a number: write 3/16"
        )
    return int(text)


def _is_object(name: str, rule: str) -> bool:
    """Tell whether a target is an object of one source; a link of device code needs all the others."""
    # rules of CMake, torch and Meson
    links = any(word in rule for word in ("DEVICE_LINK", "devlink", "dlink"))
    links = links or "intermediate_link" in name or "device_link" in name
    return bool(rule) and rule != "phony" and name.endswith((".o", ".obj")) and not links


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

"""Compile one machine's share of a build: this module is run in place of ninja.

The objects of a share go through ccache into a folder, called parts. A record is written beside
them: PARTS/shards/3-of-16.json. When the parts of all shares are together, one machine makes the
wheel of them.

Only ninja knows the compiles of a build, from the file that CMake or setuptools writes. So a stand-in
for ninja, which runs this module, asks the real ninja for them, and has it make those of the share.
An order, a file of JSON, tells the share. The division into shares depends only on the names of the
objects, the shipped costs and the number of shares, so that all machines compute the same.
setuptools calls ninja once for each module of an extension. The seconds that a share takes for one
module count when the next is divided.
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
from typing import Any, NamedTuple

from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically, write_script
from torchmill.core.deletion import delete_paths
from torchmill.core.lenient_paths import exists, find_paths, read_text
from torchmill.core.package_data import read_table_beside
from torchmill.core.paths import IMPORT_FOLDER
from torchmill.core.strict_json import load_object

ORDER_VARIABLE = "TORCHMILL_SHARD"  # names the file with the order
RECORDS = "shards"  # the folder of the records, in a folder of parts
# The exit code after which a build stops: the share is made, and this machine does no more.
MADE = 3
MOST_SHARDS = 1000  # Slurm's default limit for an array is 1001
_STAND_IN = Path(__file__).with_name("ninja_shard.sh")
_MAKE_PROGRAM = re.compile(rb"^(CMAKE_MAKE_PROGRAM:\w+=).*$", re.MULTILINE)  # in CMakeCache.txt
_CCACHE_TAG = "CACHEDIR.TAG"  # ccache writes it into each folder of parts, before any record
# Seconds of a compile without a known cost: the means of torch 1.13.1, and of its C libraries.
_USUAL_SECONDS = 5.0
_USUAL_SECONDS_OF_C = 0.2
_SHARD = re.compile(r"(?P<number>\d{1,4}|auto)(?:/(?P<count>\d{1,4}))?")
_NINJA_OPTIONS_WITH_VALUE = {"-f", "-j", "-k", "-l", "-d", "-w"}
# An engine runs one command on many machines, each with the number of its task in a variable.
_ENGINES = read_table_beside(__file__, "engines.toml")["engine"]
_SHOWN_CHARACTERS = 40  # of a variable that an error quotes


@dataclass(frozen=True, slots=True)
class Shard:
    """One of the shares into which a build is divided."""

    number: int  # from 1
    count: int  # of all shares

    def __str__(self) -> str:
        """Return "3/16"."""
        return f"{self.number}/{self.count}"

    def record(self, parts: Path) -> Path:
        """Return the path of this share's record in a folder of parts."""
        return parts / RECORDS / f"{self.number}-of-{self.count}.json"


def parse_shard(text: str, environ: Mapping[str, str]) -> Shard:
    """Return the share that a text means: "3/16", "auto" or "auto/16".

    With "auto", the variables of the engine that runs this task tell the number, and the count if
    the text has none. Raises ValueError, whose message is the rest of a sentence, for a text that
    means no share, and if the variables do not tell it.
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
    """Divide objects into as many shares as `loads` has numbers; return the names in each share.

    `seconds` has the expected time of each object. `loads` are the seconds that each share takes
    already: the seconds of its new objects are added to them, in place.
    """
    # The longest first, each to the share with the least load: the shares become nearly equal.
    shares: list[list[str]] = [[] for _ in loads]
    longest_first = sorted(seconds, key=lambda name: (-seconds[name], name))
    for name in longest_first:
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += seconds[name]
    return shares


def expected_seconds(name: str, costs: Iterable[tuple[str, float]]) -> float:
    """Return the seconds that compiling an object is expected to take.

    `costs` are patterns of sources with seconds. The first that fits the object's source counts.
    """
    # "caffe2/CMakeFiles/torch_cpu.dir/core/blob.cc.o" is made of "caffe2/core/blob.cc".
    source = re.sub(r"CMakeFiles/[^/]+\.dir/|\.(o|obj)$", "", name)
    for pattern, seconds in costs:
        if fnmatchcase(source, f"*{pattern}"):
            return seconds
    return _USUAL_SECONDS_OF_C if source.endswith((".c", ".S")) else _USUAL_SECONDS


def write_stand_in(folder: Path, path: str, configured: Path) -> dict[str, str]:
    """Write the stand-in for ninja into a folder; return the variables by which builds use it.

    `path` is the PATH of the build. `configured` is the file CMakeCache.txt of the tree: if it
    exists, its entry for ninja is replaced. Raises OSError if a file cannot be written.
    """
    program = folder / "ninja"
    # The real ninja is looked for outside the folder of the stand-in.
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
        # With a new date, ninja would have CMake configure everything again.
        os.utime(configured, ns=(times.st_atime_ns, times.st_mtime_ns))
    # PATH alone is not enough: CMake looks into CMAKE_PREFIX_PATH before it. torch's setup.py passes
    # CMAKE_MAKE_PROGRAM on to CMake.
    return {"PATH": f"{folder}{os.pathsep}{other_path}", "CMAKE_MAKE_PROGRAM": str(program)}


class PartsFolder(NamedTuple):
    """A folder of parts, and the records of its shares."""

    path: Path
    records: list[dict[str, Any]]  # {} for a damaged one; a share that was ended early has none


def list_parts(folder: Path) -> Iterator[PartsFolder]:
    """Yield the folders of parts: `folder` itself and its subfolders, as far as they have parts.

    One whose shares were all ended early has parts, and no records.
    Raises OSError if `folder` cannot be read.
    """
    subfolders = sorted(path for path in folder.iterdir() if path.is_dir())
    for parts in (folder, *subfolders):
        if not exists(parts / RECORDS) and not exists(parts / _CCACHE_TAG):
            continue
        records: list[dict[str, Any]] = []
        for file in find_paths(parts / RECORDS, "*-of-*.json"):
            record = load_object(file)
            is_whole = isinstance(record.get("failed"), list)
            records.append(record if is_whole else {})
        yield PartsFolder(parts, records)


class Ninja:
    """The real ninja, and a call of it: its folder, its options, and the goals that it is to make."""

    def __init__(self, program: str, arguments: Sequence[str]) -> None:
        """Read the arguments of a call, such as "-C", "build", "-j", "8", "install"."""
        self.program = program
        self.folder = Path()  # of build.ninja
        self.options: list[str] = []
        self.goals: list[str] = []
        words = iter(arguments)
        for word in words:
            if word.startswith("-C"):
                # The folder may be in the same word: "-Cbuild".
                self.folder = Path(word.removeprefix("-C") or next(words))
            elif word in _NINJA_OPTIONS_WITH_VALUE:
                self.options += [word, next(words)]
            elif word.startswith("-"):
                self.options.append(word)
            else:
                self.goals.append(word)

    def ask(self, *words: str) -> list[str]:
        """Return the lines that one of ninja's tools prints. Raises CalledProcessError."""
        argv = [self.program, "-t", *words]
        completed = subprocess.run(
            argv, check=True, stdout=subprocess.PIPE, encoding="utf-8", cwd=self.folder
        )
        return completed.stdout.splitlines()

    def objects_to_share(self) -> list[str]:
        """Return the names of the objects that can be divided among machines, sorted.

        They are the objects that the goals need, without those of generators. A generator is a
        program that the build compiles and runs, such as protoc, to write other sources: each
        machine has to make it. Raises CalledProcessError.
        """
        rules = self._rules("all")
        # Without goals, ninja makes its default targets, which "depth 1" lists.
        goals = self.goals or list(self._rules("depth", "1"))
        # ninja does not list goals among their inputs. If setuptools links a module, the objects
        # themselves are goals.
        needed = {*self.ask("inputs", *self.goals), *goals}
        objects = {name for name in needed if _is_object(name, rules.get(name, ""))}
        # Inputs of an object are its sources; an object among them belongs to a generator.
        generator_objects = self.ask("inputs", *objects) if objects else []
        return sorted(objects.difference(generator_objects))

    def _rules(self, *words: str) -> dict[str, str]:
        """Return the rule that makes each target, by its name; `words` select the targets."""
        rules: dict[str, str] = {}
        for line in self.ask("targets", *words):
            if ": " in line:
                target, rule = line.rsplit(": ", 1)
                rules[target] = rule
        return rules


def main(program: str, arguments: Sequence[str]) -> int:
    """Make this machine's share, write its record, and return the exit code.

    It is MADE if all objects of the share exist, else ninja's, or 1: never 0, so that the build ends
    here. `program` is the real ninja, `arguments` those of its call. ORDER_VARIABLE names the order,
    into which the sums of this call are written.
    """
    # Removed, so that a ninja which is called by this one is not divided.
    order_file = Path(os.environ.pop(ORDER_VARIABLE))
    order = json.loads(order_file.read_text(encoding="utf-8"))
    ninja = Ninja(program, arguments)
    shard = Shard(order["number"], order["count"])
    try:
        objects = ninja.objects_to_share()
    except subprocess.CalledProcessError as error:
        sys.stderr.write(
            f"error: ninja does not say what it compiles, as 1.11 and newer do: {error}\n"
        )
        return 1
    # Earlier calls, for other modules of an extension, have left their sums in the order.
    sums: dict[str, Any] = order.get("made") or {
        "compiles": 0,
        "made": 0,
        "failed": [],
        "seconds": [0.0] * shard.count,
    }
    seconds = {name: expected_seconds(name, order["costs"]) for name in objects}
    shares = divide_compiles(seconds, sums["seconds"])
    share = shares[shard.number - 1]
    sys.stderr.write(f"share {shard}: {len(share)} of {len(objects)} compiles\n")
    _delete_objects_of_other_parts(order_file, order["parts"], objects, ninja.folder, share)
    exit_code = 0
    if share:
        # -k 0: a compile that fails does not end the others.
        argv = [program, *ninja.options, "-k", "0", *share]
        exit_code = subprocess.run(argv, check=False, cwd=ninja.folder).returncode
    failed = [name for name in share if not (ninja.folder / name).exists()]
    sums["compiles"] += len(objects)
    sums["made"] += len(share) - len(failed)
    sums["failed"] += failed
    record = {
        formats.KEY: formats.SHARD,
        "shard": str(shard),
        "session": order["session"],
        "tree": order["tree"],
        **sums,
    }
    write_atomically(shard.record(Path(order["parts"])), json.dumps(record, indent=1))
    write_atomically(order_file, json.dumps(order | {"made": sums}))
    return (exit_code or 1) if failed else MADE


def _delete_objects_of_other_parts(
    order_file: Path, parts: str, objects: Sequence[str], folder: Path, share: Iterable[str]
) -> None:
    """Delete the objects of this share from a tree if they were made for another folder of parts.

    ninja would not compile them again, and so ccache would not write them into this one. A file
    beside the order remembers the folder of parts. `objects` are those of all shares, `folder` that
    of build.ninja.
    """
    # The objects identify the call of ninja: each module of an extension has its own file.
    digest = hashlib.sha256(json.dumps(objects).encode()).hexdigest()[:16]
    last_parts = order_file.with_name(f"parts-{digest}")
    if read_text(last_parts) != parts:
        delete_paths(folder / name for name in share)
        write_atomically(last_parts, parts)


def _engine_shard(count: int, environ: Mapping[str, str]) -> Shard:
    """Return the share by the variables of an engine; `count` is 0 if the engine has to tell it.

    Raises ValueError as `parse_shard` does.
    """
    engines = [engine for engine in _ENGINES if environ.get(engine["number"], "").isdecimal()]
    if len(engines) != 1:
        names = ", ".join(engine["number"] for engine in engines)
        names = names or "Slurm, SGE, GitLab, Buildkite …"
        raise ValueError(f"no engine says which share this is, or several do ({names}): write 3/16")
    engine = engines[0]
    if not count:
        # Some engines tell only the number.
        count = _read_number(environ, engine.get("count", ""), "0")
    if not count:
        raise ValueError(
            f"{engine['number']} gives a number, but nothing gives the total: write auto/COUNT"
        )
    first = engine["first"]  # the number of the first share, or the variable that has it
    if not isinstance(first, int):
        first = _read_number(environ, first, "1")
    number = _read_number(environ, engine["number"], "")
    return Shard(number - first + 1, count)


def _read_number(environ: Mapping[str, str], name: str, default: str) -> int:
    """Return the number in a variable. Raises ValueError as `parse_shard` does."""
    text = environ.get(name, default)
    if not text.isdecimal():
        raise ValueError(
            f"{name} is '{text[:_SHOWN_CHARACTERS]}', which is not a number: write 3/16"
        )
    return int(text)


def _is_object(name: str, rule: str) -> bool:
    """Tell whether a target, which a rule makes, is an object that is compiled of one source."""
    if not rule or rule == "phony" or not name.endswith((".o", ".obj")):
        return False
    # An object with linked device code is made of all other objects of its library. CMake, torch
    # and Meson show it by the rule or by the name.
    is_link = any(word in rule for word in ("DEVICE_LINK", "devlink", "dlink"))
    return not is_link and "intermediate_link" not in name and "device_link" not in name


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

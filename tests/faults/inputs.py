"""Hostile input: contents of every kind that torchmill reads and others write, changed at random.

A *reader* passes a content to the part of torchmill that reads it; READERS has one for each kind, with a valid content.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import zipfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from millguard.timeline import parse_record
from millpress.elf import read_elf
from millpress.errors import MillpressError
from packaging.requirements import Requirement

from tests.faults.tally import REFUSED, RIGHT, Tally
from tests.support import documented_wheels
from tests.support.source_upstream import layout
from torchmill.cell.option_files import parse_options
from torchmill.cell.patches import read_patches
from torchmill.config import facts_reader, selection, wheel_variants
from torchmill.config.arch_list import parse_arch_list
from torchmill.config.release_lookup import base_package, find_release
from torchmill.core import ninja, stat_cache, units, urls
from torchmill.core.errors import TorchmillError, UnforeseenError
from torchmill.core.log_reader import read_log
from torchmill.core.plain_text import as_plain_text
from torchmill.core.strict_json import parse_json_object
from torchmill.deliver import agreement, signature
from torchmill.deliver.publish.targets import choose_target
from torchmill.fetch.package_index import parse_html_page
from torchmill.fetch.source.git_command import mirror_candidates
from torchmill.fetch.source.source_dir import load_source
from torchmill.fetch.source.tree import read_build_backend
from torchmill.host.description import load_host
from torchmill.host.host import Host
from torchmill.host.own_runs import read_own_runs
from torchmill.plan import build_plan, causes, cell_lookup, matrix, rebuild, render, script
from torchmill.plan.diagnosis.collected_host import read_collected_host
from torchmill.plan.options import format_options
from torchmill.wheel import debug_archive, finished_wheel, variant_metadata

ROOT = Path(__file__).parents[2]
SHIPPED = facts_reader.read_facts(ROOT / "build_configs")
MOST_MEMORY = 200 << 20  # bytes that reading one input may add
_DEEP = 20_000  # levels of nested brackets

Reader = Callable[[Path, bytes], object]  # takes an empty folder and the content


def _text(read: Callable[[str], object], harmless: tuple[type[Exception], ...] = ()) -> Reader:
    """Return a reader of a text; `harmless` are the exceptions that its docstring allows."""

    def reader(_: Path, content: bytes) -> None:
        with contextlib.suppress(*harmless):
            read(content.decode("utf-8", "replace"))

    return reader


def _file(
    read: Callable[[Path], object], name: str = "file", harmless: tuple[type[Exception], ...] = ()
) -> Reader:
    """Return a reader of a file with a name; `harmless` are the exceptions that its docstring allows."""

    def reader(place: Path, content: bytes) -> None:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        with contextlib.suppress(*harmless):
            read(path)

    return reader


def _host(path: Path) -> None:
    _plan_for(load_host(path))


def _collected(path: Path) -> None:
    _plan_for(read_collected_host(read_log(str(path)), path.name).host)


def _plan_for(host: Host) -> None:
    """Plan a build on a described machine."""
    release = find_release(SHIPPED, "torch", "1.13.1")
    cell = cell_lookup.find_cell(SHIPPED, "wheel-3.10-cpu", host.arch, release)
    render.plan_as_data(build_plan.compute_plan(SHIPPED, cell, host, parse_options((), "fuzz")))


def _facts_of(root: Path, name: str) -> Reader:
    """Return a reader that puts the content in one file of facts, and plans two builds by these facts."""

    def reader(_: Path, content: bytes) -> None:
        folder, cache = _copy_of_facts(root)
        path = folder / name
        path.write_bytes(content)
        try:
            facts = facts_reader.read_usable_facts(folder, cache)
        finally:
            path.write_bytes((root / name).read_bytes())
        facts_reader.require_complete(facts)
        host = load_host(ROOT / "tests/golden/hosts/rtx3090.toml")
        for cell in islice(matrix.all_builds(facts, base_package(facts)), 2):
            selected = cell_lookup.find_cell(facts, str(cell), host.arch, None)
            plan = build_plan.compute_plan(facts, selected, host, parse_options((), "fuzz"))
            script.plan_as_script(plan, facts, host, read_patches(plan, facts.patches))
            render.plan_as_data(plan)

    return reader


@functools.cache
def _copy_of_facts(root: Path) -> tuple[Path, stat_cache.StatCache]:
    """Return a copy of a folder of facts, and a cache in which the commands, too, remember its parsed files."""
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(root, folder / "facts")
    return folder / "facts", stat_cache.StatCache(folder / "facts.json")


def _rebuilt(content: bytes) -> None:
    """Read a manifest as `invoke rebuild` does, and what its options would be on a command line."""
    try:
        first = rebuild.read_manifest(parse_json_object(content))
    except agreement.DOCUMENT_ERRORS:
        return
    options, _ = rebuild.recorded_options(first, "", {})
    list(rebuild.untrusted_parts(first, fetches=True, release_commit="", wheels=()))
    for line in rebuild.pinned_requirements(first, {}):
        Requirement(line)
    with contextlib.redirect_stderr(io.StringIO()):
        parse_options(format_options(options), "fuzz")


def _debug_index(place: Path, content: bytes) -> None:
    """Read an archive with debug information whose index has this content."""
    archive = place / "a.whl.debuginfo.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(debug_archive.INDEX, content)
    for problem in debug_archive.archive_problems(archive, "0" * 64, None):
        as_plain_text(problem)
    debug_archive.newer_clause(archive)


def _member(name: str) -> Reader:
    """Return a reader that puts the content in one member of a wheel, and examines the wheel."""

    def reader(place: Path, content: bytes) -> None:
        wheel = place / documented_wheels.WHEEL
        with zipfile.ZipFile(_wheel()) as old, zipfile.ZipFile(wheel, "w") as new:
            for info in old.infolist():
                new.writestr(info, content if info.filename.endswith(name) else old.read(info))
        agreement.examine_wheel(wheel)
        finished_wheel.read_wheel(wheel)

    return reader


_ENVELOPE = json.dumps(
    {
        "payloadType": signature.PAYLOAD_TYPE,
        "payload": b64encode(
            b'{"_type": "https://in-toto.io/Statement/v1", "subject": []}'
        ).decode(),
        "signatures": [{"keyid": "x", "sig": "AAAA"}],
    }
).encode()


def _beside(suffix: str) -> Reader:
    """Return a reader that puts the content in a document beside a wheel, and examines the wheel."""

    def reader(place: Path, content: bytes) -> None:
        for path in _wheel().parent.iterdir():
            shutil.copy(path, place)
        wheel = place / _wheel().name
        wheel.with_name(wheel.name.removesuffix(".whl") + suffix).write_bytes(content)
        wheel.with_name(wheel.name + suffix).write_bytes(content)
        signature.add_check(agreement.examine_wheel(wheel), signature.Signers())
        read_own_runs(SHIPPED, place)

    return reader


def _selected(place: Path, content: bytes) -> None:
    folders = layout(place)
    folders.selection.parent.mkdir(parents=True, exist_ok=True)
    folders.selection.write_bytes(content)
    selection.selected_release(SHIPPED, folders)


def _fetched(place: Path, content: bytes) -> None:
    folder = layout(place).source("torch") / "v1.13.1"
    (folder / "tree").mkdir(parents=True)
    (folder / "source.json").write_bytes(content)
    load_source(layout(place), "torch", "v1.13.1")


def _options(text: str) -> object:
    with contextlib.redirect_stderr(io.StringIO()):
        return parse_options(text.split(), "fuzz")


@functools.cache
def _wheel() -> Path:
    """Return a wheel with its documents."""
    return documented_wheels.built(Path(tempfile.mkdtemp()), "1.13.1+cpu")


def _sample_wheel_member(suffix: str) -> bytes:
    """Return the content of the wheel's first member whose name has a suffix."""
    with zipfile.ZipFile(_wheel()) as wheel:
        return next(wheel.read(name) for name in wheel.namelist() if name.endswith(suffix))


def _facts_files() -> Iterator[tuple[Path, str]]:
    """Yield folder and name of each file of the sample's facts, and of the shipped files that the sample lacks."""
    sample, shipped = ROOT / "sample/build_configs", ROOT / "build_configs"
    yield from ((sample, str(path.relative_to(sample))) for path in sorted(sample.rglob("*.toml")))
    others = (path.name for path in sorted(shipped.glob("*.toml")))
    yield from ((shipped, name) for name in others if not (sample / name).exists())


_REBUILT = {
    "wheel": "tiny-1.0-cp312-cp312-linux_x86_64.whl",
    "sha256": "1" * 64,
    "identifier": "vision-3.12-cpu",
    "package": "tinyvision",
    "tag": "v0.1.0",
    "commit": "2" * 40,
    "contents": "3" * 64,
    "archive": None,
    "source": "https://github.com/tiny/tinyvision.git",
    "options": {"settings": {"USE_X": "0"}, "platform": "linux"},
    "torch": "tinytorch==1.0.0+cpu",
    "switches": {"USE_X": "0"},
    "patches": ["given/mine.patch"],
    "edits": {},
    "network": "none",
    "requirements": ["setuptools==80.0", "tinytorch==1.0.0+cpu"],
    "builder": {"id": "https://ci", "torchmill": "v1"},
    "tools": {"version": "3.12.1 (main)", "python3.12": "4" * 64},
    "stages": {"compile": {"inputs": {"compiler": "7"}}},
}
_DEBUG_INDEX = {
    "format": 1,
    "wheel_sha256": "0" * 64,
    "level": "full",
    "libraries": {"a.so": "ab12"},
}
READERS: dict[str, tuple[Reader, Callable[[], bytes]]] = {
    "ELF file": (_file(read_elf), lambda: Path(sys.executable).resolve().read_bytes()[:200_000]),
    "wheel": (
        _file(agreement.examine_wheel, documented_wheels.WHEEL),
        lambda: _wheel().read_bytes(),
    ),
    "METADATA": (_member("/METADATA"), lambda: _sample_wheel_member("/METADATA")),
    "WHEEL": (_member("/WHEEL"), lambda: _sample_wheel_member("/WHEEL")),
    "RECORD": (_member("/RECORD"), lambda: _sample_wheel_member("/RECORD")),
    "manifest": (
        _beside(".json"),
        lambda: json.dumps(documented_wheels.manifest(_wheel())).encode(),
    ),
    "statement": (_beside(".intoto.json"), lambda: b'{"_type": "https://in-toto.io/Statement/v1"}'),
    "envelope": (_beside(".intoto.jsonl"), lambda: _ENVELOPE),
    "manifest of a rebuild": (
        lambda _, content: _rebuilt(content),
        lambda: json.dumps(_REBUILT).encode(),
    ),
    "index of debug information": (_debug_index, lambda: json.dumps(_DEBUG_INDEX).encode()),
    "metadata of variants": (
        lambda _, content: variant_metadata.parse_metadata(content, "t-1-variants.json"),
        lambda: variant_metadata.compose_metadata([wheel_variants.NULL_VARIANT]),
    ),
    "bundle of Sigstore": (_beside(".sigstore.json"), lambda: b'{"dsseEnvelope": %b}' % _ENVELOPE),
    "selected release": (_selected, lambda: b'{"tag": "v1.13.1"}'),
    "record of a source": (
        _fetched,
        lambda: b'{"tag": "v1.13.1", "package": "torch", "submodules": {}}',
    ),
    "description of a machine": (
        _file(_host, "host.toml"),
        (ROOT / "tests/golden/hosts/rtx3090.toml").read_bytes,
    ),
    "collect_env": (
        _file(_collected),
        lambda: (
            b"PyTorch version: 2.4.1\nCUDA used to build PyTorch: 12.1\nOS: Ubuntu 22.04 LTS (x86_64)\n"
            b"GCC version: (Ubuntu 11.4.0) 11.4.0\nPython platform: Linux-5.15-x86_64-with-glibc2.35\n"
            b"GPU 0: NVIDIA GeForce RTX 3090\nNvidia driver version: 535.54\nCPU(s): 8\n"
        ),
    ),
    "pyproject.toml": (
        _file(lambda path: read_build_backend(path.parent), "pyproject.toml"),
        lambda: b'[build-system]\nrequires = ["a>=1"]\nbuild-backend = "x"\n',
    ),
    "memory of files": (
        _file(lambda path: stat_cache.StatCache(path).digest(path), "cache.json"),
        lambda: b'{"x": [[1, 2], "y"]}',
    ),
    "build log": (
        _file(lambda path: causes.diagnose(SHIPPED.causes, read_log(str(path)))),
        lambda: (
            b"[1/2] c++ a.o\nFAILED: a.o\nc++ -c a.cpp\n/a.cpp:1:2: fatal error: x.h: No such file\n"
            b"ninja: build stopped\n"
        ),
    ),
    "ninja's log of dependencies": (
        _file(ninja.read_dependencies, harmless=(ValueError,)),
        lambda: b"# ninjadeps\n\x04\0\0\0" + bytes(64),
    ),
    "ninja's progress": (
        _text(ninja.parse_edge),
        lambda: b"[12/345] Building CXX object a/b.cpp.o",
    ),
    "timeline of the guard": (
        _text(parse_record, (ValueError,)),
        lambda: b'{"kind": "unit", "at": 1.5, "bytes": 7}',
    ),
    "page of an index": (
        _text(lambda text: parse_html_page(text, "https://h/simple/t/")),
        lambda: b'<a href="../t-1.tar.gz#sha256=00" data-requires-python="&gt;=3">t-1.tar.gz</a>',
    ),
    "identifier": (
        _text(lambda text: cell_lookup.find_cell(SHIPPED, text, "x86_64", None)),
        lambda: b"wheel-3.10-cu117-aarch64",
    ),
    "options": (
        _text(_options),
        lambda: b"--jobs 4 --memory 8GiB --set USE_X=1 --label none --arch-list 8.6+PTX",
    ),
    "GPU list": (
        _text(lambda text: parse_arch_list(SHIPPED, text, "1.13.1")),
        lambda: b"7.0;8.6 9.0a+PTX",
    ),
    "address": (
        _text(lambda text: urls.validate_url("--to", text, ("https", "http"), "https://h/")),
        lambda: b"https://me:secret@[::1]:8080/a%20b?c#d",
    ),
    "address of a repository": (
        _text(lambda text: mirror_candidates(text, text)),
        lambda: b"ssh://git@github.com:22/pytorch/pytorch.git",
    ),
    "place to publish": (
        _text(lambda text: choose_target(text, {"HOME": os.devnull, "GH_TOKEN": "x"})),
        lambda: b"github:me/wheels@v1.0",
    ),
    "size": (_text(units.parse_bytes, (ValueError,)), lambda: b"1.5 GiB"),
    "duration": (_text(units.parse_duration, (ValueError,)), lambda: b"1.5 h"),
    **{
        f"facts: {name}": (_facts_of(root, name), (root / name).read_bytes)
        for root, name in _facts_files()
    },
}
PIECES = (
    b"\0", b"\xff\xfe", b"\n", b'"', b"'", b"[", b"{", b"}", b"{0}", b"%s", b"..", b"/", b"../../etc", b"-1",
    b"1e999", b"NaN", b"99999999999999999999999", b"\xc3\x28", "٣".encode(), b"=", b"true", b"null", b"[]", b"{}",
    b"''", b"7", b"3.x", b"zz", b"[" * _DEEP, b'{"a":' * _DEEP, b"x" * 100_000, b"\r", b"\x1b[31m", b"#", b"\\",
    b"\\u0000", b"http://[bad/", b" ",
    b"9" * 5000,  # more digits than Python reads as a number
    b"9" * 30, "\u202e".encode(), b"\n::error::x\n", b"\n--index-url https://example.org\n", b"$(touch x)",
)  # fmt: skip


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Return a content that is cut off, has another value for one key, or is changed in a few places."""
    way = chance.randrange(5)
    if way == 0:
        return content[: chance.randrange(len(content) + 1)]
    if way == 1:  # replace the value of a line `key = value`
        lines = content.split(b"\n")
        key_lines = [number for number, line in enumerate(lines) if b"=" in line]
        if key_lines:
            number = chance.choice(key_lines)
            key, _, _ = lines[number].partition(b"=")
            value = chance.choice((*PIECES, b'"{0}"', b'["3.x"]'))
            lines[number] = key + b"= " + value
            return b"\n".join(lines)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(content) + 1)
        if way == 4:
            piece = chance.randbytes(chance.randrange(1, 9))
        else:
            piece = chance.choice(PIECES)
        replaced = chance.choice((0, len(piece), 1))  # bytes
        content = content[:at] + piece + content[at + replaced :]
    return content


def outcome_of(name: str, content: bytes) -> str:
    """Return what a reader makes of a content: RIGHT, REFUSED, or a failure in words."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        try:
            READERS[name][0](Path(folder), content)
        except UnforeseenError as error:
            return f"unforeseen: {error}"
        except (TorchmillError, MillpressError) as error:
            return REFUSED if str(error) and error.code else f"says nothing of use: {error!r}"
        except BaseException as error:  # noqa: BLE001 - any other exception is a failure of torchmill
            return f"{type(error).__name__}: {error}"[:300]
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10  # bytes, from KiB
    return RIGHT if growth < MOST_MEMORY else f"took {growth >> 20} MiB"


def attack_inputs(count: int, seed: int) -> Iterator[Tally]:
    """Give each reader `count` changed contents."""
    for name, (_, sample) in READERS.items():
        chance = random.Random(f"{seed} {name}")  # noqa: S311
        tally = Tally(f"input: {name}")
        valid_content = sample()
        outcome = outcome_of(name, valid_content)
        if outcome not in {RIGHT, REFUSED}:
            tally.add("as it is", outcome)
        for _ in range(count):
            content = mutated(valid_content, chance)
            tally.add(repr(content[:200]), outcome_of(name, content))
        yield tally

"""Nothing changed, nothing done; anything changed, and it is done again."""

import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from filelock import FileLock

from tests.support.commands import ROOT
from tests.support.documents import assert_fits
from tests.support.sampled import THIS, Sample, fetched, in_this_process
from torchmill.cell import up_to_date
from torchmill.cell.up_to_date import INSTALLED, WHOLE_PLAN, StageRecord
from torchmill.core import formats
from torchmill.core.errors import TorchmillError
from torchmill.core.stat_cache import StatCache, package_folder
from torchmill.core.strict_json import load_object
from torchmill.host import environments
from torchmill.wheel import dist_files

PARTS = {"switch A": "1", "compiler": "2", WHOLE_PLAN: "3"}


@pytest.fixture
def stat_cache(tmp_path: Path) -> StatCache:
    return StatCache(tmp_path / "stat-cache.json")


def changes(entry: StageRecord, parts: dict[str, str], stat_cache: StatCache) -> list[str]:
    return list(up_to_date.find_differences(entry, parts, stat_cache))


def test_each_part_that_differs_is_named(stat_cache: StatCache) -> None:
    entry = StageRecord(PARTS, "made")
    assert changes(entry, PARTS, stat_cache) == []
    assert changes(entry, PARTS | {"compiler": "x", WHOLE_PLAN: "y"}, stat_cache) == ["compiler"]
    assert changes(entry, PARTS | {WHOLE_PLAN: "y"}, stat_cache) == [WHOLE_PLAN]
    assert changes(entry, PARTS | {"switch B": "1"}, stat_cache) == ["switch B"]
    assert changes(entry, {"compiler": "2", WHOLE_PLAN: "3"}, stat_cache) == ["switch A"]


def test_an_environment_that_is_not_filled_yet_is_no_difference(stat_cache: StatCache) -> None:
    entry = StageRecord({**PARTS, INSTALLED: "numpy 1"}, "made")
    assert changes(entry, PARTS, stat_cache) == []
    assert changes(entry, {**PARTS, INSTALLED: "numpy 2"}, stat_cache) == [INSTALLED]


def test_a_file_that_was_read_and_is_another_now_is_named(
    tmp_path: Path, stat_cache: StatCache
) -> None:
    header = tmp_path / "a.h"
    header.write_text("one")
    digest = stat_cache.digest(header)
    assert digest is not None
    entry = StageRecord(PARTS, "made", {str(header): digest})
    assert changes(entry, PARTS, stat_cache) == []
    header.write_text("two")
    assert changes(entry, PARTS, stat_cache) == [str(header)]
    header.unlink()
    assert changes(entry, PARTS, stat_cache) == [str(header)]


def test_entries_come_back_as_they_were_written(tmp_path: Path) -> None:
    entries = {
        "compile": StageRecord(PARTS, "raw", {"/a.h": "1"}, {"edges": 7}),
        "pack": StageRecord({"raw": "1"}, "packed"),
    }
    file = tmp_path / "ledger"
    up_to_date.write_records(file, entries)
    assert_fits(load_object(file), "ledger")
    assert up_to_date.parse_records(load_object(file)) == entries
    told = json.loads(
        json.dumps(
            {"format": formats.MANIFEST, "stages": up_to_date.records_as_data(entries), "edges": 7}
        )
    )
    assert up_to_date.parse_records(told)["compile"].report == {}, "the manifest says it elsewhere"
    assert up_to_date.parse_records(told)["compile"].files == {"/a.h": "1"}


WHOLE_RECORD = {"inputs": {"a": "b"}, "product": "x", "files": {}, "report": {}}


@pytest.mark.parametrize("text", ["", "[]", "{", "{}"])
def test_a_damaged_file_has_no_records(tmp_path: Path, text: str) -> None:
    file = tmp_path / "ledger"
    assert up_to_date.parse_records(load_object(file)) == {}
    file.write_text(text)
    assert up_to_date.parse_records(load_object(file)) == {}


@pytest.mark.parametrize(
    "stages",
    [
        5,
        {"compile": 5},
        {"pack": WHOLE_RECORD},
        {"compile": {}},
        {"compile": {**WHOLE_RECORD, "inputs": {}}},
        {"compile": {**WHOLE_RECORD, "product": ""}},
        {"compile": {**WHOLE_RECORD, "files": 7}},
    ],
)
def test_a_record_that_cannot_be_understood_is_none(stages: object) -> None:
    manifest = {"format": formats.MANIFEST, "stages": stages}
    assert up_to_date.parse_records(manifest) == {}


def test_a_record_that_can_be_understood_is_one() -> None:
    manifest = {"format": formats.MANIFEST, "stages": {"compile": WHOLE_RECORD}}
    assert list(up_to_date.parse_records(manifest)) == ["compile"]


def test_records_of_another_format_are_none(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    up_to_date.write_records(file, {"compile": StageRecord(PARTS, "raw")})
    assert up_to_date.parse_records(load_object(file), formats.LEDGER)
    for other in ({"format": formats.LEDGER + 1}, {"format": "1"}):
        assert up_to_date.parse_records(load_object(file) | other, formats.LEDGER) == {}
    del (old := load_object(file))["format"]
    assert up_to_date.parse_records(old, formats.LEDGER) == {}


slow = pytest.mark.slow

SESSION = f"wheel-{THIS}-cpu"
SKIPPED = "is up to date"
AGAIN = "is out of date: "


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> Sample:
    """Make a wheel with a compiler, and a header, that the tests may change."""
    sample = fetched(tmp_path_factory.mktemp("stages"), upstream, envs)
    header = sample.folder / "system" / "extra.h"
    header.parent.mkdir()
    header.write_text("#define EXTRA 1\n")
    compiler = sample.folder / "system" / "c++"
    compiler.write_text(f'#!/bin/sh\nexec c++ -O1 -include {header} "$@"\n')
    compiler.chmod(0o755)
    sample.env |= {"CXX": str(compiler)}
    done = sample.nox("-s", SESSION)
    assert done.returncode == 0, done.stdout + done.stderr
    return sample


def cell(sample: Sample) -> Path:
    return sample.home / ".torchmill" / "trees" / "v1.0.0" / SESSION


def environment(sample: Sample) -> Path:
    return sample.envs / SESSION.replace(".", "-")


def wheel(sample: Sample) -> Path:
    return next((sample.home / "dist").glob("*.whl"))


def reason(sample: Sample, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Return why the session would not skip, "" where it does; asked in this process, as the session asks."""
    with in_this_process(sample, SESSION, env or {}) as create:
        try:
            job = create(*arguments)
        except TorchmillError as error:
            return str(error)
        if up_to_date.find_delivered_wheel(job):
            return ""
        notes: list[str] = []
        up_to_date.explain_rebuild(job, notes.append)
        return notes[0].partition(AGAIN)[2]


def all_notes(sample: Sample, *arguments: str) -> list[str]:
    """Return what a session would note before a build."""
    notes: list[str] = []
    with in_this_process(sample, SESSION, {}) as create:
        up_to_date.explain_rebuild(create(*arguments), notes.append)
    return notes


def reason_of_nox(sample: Sample, *arguments: str) -> str:
    """Return why nox would not skip, "" where it does; nothing is done, for another run has the cell."""
    with FileLock(cell(sample) / "lock"):
        done = sample.nox(*arguments, "-s", SESSION)
    text = done.stdout + done.stderr
    assert (SKIPPED in text) == (done.returncode == 0), text
    found = next((line.partition(AGAIN)[2] for line in text.splitlines() if AGAIN in line), text)
    return "" if SKIPPED in text else found


@contextmanager
def edited(file: Path, old: str, new: str) -> Iterator[None]:
    """Change a file such that neither its size nor its time tells of it: the clock went back meanwhile."""
    text, seen = file.read_bytes(), file.stat()
    assert len(old) == len(new)
    assert old.encode() in text
    file.write_bytes(text.replace(old.encode(), new.encode()))
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    yield
    file.write_bytes(text)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))


@slow
def test_nothing_changed_means_nothing_done(built: Sample) -> None:
    log = built.home / ".torchmill" / "logs" / f"v1.0.0-{SESSION}.log"
    before = [
        (path, path.stat().st_mtime_ns) for path in (log, wheel(built), cell(built) / "ledger")
    ]
    assert reason_of_nox(built) == reason(built) == ""
    assert [(path, path.stat().st_mtime_ns) for path, _ in before] == before


@slow
def test_what_cannot_change_the_wheel_is_no_reason(built: Sample) -> None:
    """How fast it is built, what facts say elsewhere, a touched file, another terminal, a lost memory."""
    file = built.configs / "packages" / "tinytorch.toml"
    text = file.read_text()
    file.write_text("# a remark\n" + text.replace('disk = "200 MiB"', 'disk = "100 MiB"'))
    (built.folder / "system" / "extra.h").touch()
    (tree(built) / "setup.py").touch()
    shutil.rmtree(built.cache)
    calm = {
        "MAX_JOBS": "3",
        "LINES": "20",
        "GITHUB_PATH": "/x",
        "PATH": f"/nowhere:{os.environ['PATH']}",
    }
    assert reason(built, "--jobs", "1", "--memory", "4 GiB", env=calm) == ""
    file.write_text(text)


@slow
def test_a_changed_switch_or_flag_is_seen(built: Sample) -> None:
    assert "switch USE_TINY_FAST" in reason(built, "--set", "USE_TINY_FAST=0")
    env = {"LD_LIBRARY_PATH": "/nowhere", "NIX_LDFLAGS": "-s"}
    assert "compile: LD_LIBRARY_PATH, NIX_LDFLAGS" in reason(built, env=env)


@slow
def test_another_compiler_at_the_same_place_is_seen(built: Sample) -> None:
    with edited(built.folder / "system" / "c++", "-O1", "-O2"):
        assert "compile: C++: driver" in reason(built)
    assert "CXX" in reason(built, env={"CXX": "c++"})
    assert reason(built) == ""


@slow
def test_an_upgraded_header_of_the_system_is_seen(built: Sample) -> None:
    """Its time is older than that of what was compiled, as a package manager has it."""
    header = built.folder / "system" / "extra.h"
    os.utime(header, (1e9, 1e9))
    with edited(header, "EXTRA 1", "EXTRA 2"):
        assert f"compile: {header}" in reason(built)
    assert reason(built) == ""


def tree(sample: Sample) -> Path:
    return sample.home / ".torchmill" / "sources" / "tinytorch" / "v1.0.0" / "tree"


@slow
def test_a_touched_source_is_seen(built: Sample) -> None:
    with edited(tree(built) / "src" / "add.cpp", "a + b", "a - b"):
        # git says so if it looks, and else the comparison with the commit: the file looks as before
        assert "(src/add.cpp" in reason(built)
    extra = tree(built) / "src" / "more.cpp"
    extra.write_text("int more = 1;\n")
    assert "src/more.cpp" in reason(built)
    extra.unlink()
    assert reason(built) == ""


@slow
def test_a_moved_submodule_is_seen(built: Sample) -> None:
    other = built.manifest(wheel(built).name)["commit"]
    git = tree(built) / "third_party" / "tinymath" / ".git"
    folder = git if git.is_dir() else (git.parent / git.read_text().split()[1])
    head = (folder / "HEAD").read_text()
    (folder / "HEAD").write_text(f"{other}\n")
    assert "third_party/tinymath is at" in reason(built)
    (folder / "HEAD").write_text(head)
    assert reason(built) == ""


@slow
def test_another_interpreter_of_the_same_version_is_seen(built: Sample) -> None:
    configuration = environment(built) / "pyvenv.cfg"
    text = configuration.read_text()
    home = next(
        line.partition("=")[2].strip() for line in text.splitlines() if line.startswith("home")
    )
    other = built.folder / "other" / "bin"
    other.mkdir(parents=True)
    (other / f"python{THIS}").write_text(f'#!/bin/sh\nexec {home}/python{THIS} "$@"\n')
    (other / f"python{THIS}").chmod(0o755)
    configuration.write_text(text.replace(home, str(other)))
    assert "compile: interpreter: " in reason(built)
    configuration.write_text(text)
    assert reason(built) == ""


@slow
def test_packages_changed_by_hand_are_seen(built: Sample) -> None:
    (packages,) = environment(built).glob("lib/python*/site-packages")
    (packages / "numpy-9.9.9.dist-info").mkdir()
    assert "compile: installed packages" in reason(built)
    (packages / "numpy-9.9.9.dist-info").rmdir()


@slow
def test_the_same_cell_of_another_release_has_the_environment_first(built: Sample) -> None:
    lock = environment(built).with_name(".locks") / environment(built).name / "lock"
    with FileLock(lock):
        done = built.nox("-s", SESSION, "--", "--set", "USE_TINY_FAST=0")
    assert done.returncode != 0
    assert "in the same environment" in done.stderr


@slow
def test_changed_facts_and_patches_are_seen(built: Sample) -> None:
    patch = built.configs / "patches" / "tinytorch" / "limits-header.patch"
    text = patch.read_text()
    patch.write_text(text + "\n")
    assert "compile: patch tinytorch/limits-header.patch" in reason(built)
    patch.write_text(text)
    facts = built.configs / "packages" / "tinytorch.toml"
    text = facts.read_text()
    built.add_rule('reason = "more"\nrequires = ["tomli"]')
    assert "compile: requirements" in reason(built)
    facts.write_text(text)
    assert reason(built) == ""


def change_code(folder: Path) -> None:
    with (folder / "__init__.py").open("a") as file:
        file.write("# better\n")


@pytest.mark.long
def test_changed_code_of_a_stage_is_seen(built: Sample) -> None:
    """A checkout of the suite in which somebody works on how wheels are packed, and how they are verified."""
    checkout = built.folder / "checkout"
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("torchmill", "checks"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=ignored)
    shutil.copy2(ROOT / "noxfile.py", checkout)
    millpress = checkout / "installed" / "millpress"
    shutil.copytree(package_folder("millpress"), millpress, ignore=ignored)
    built.env["PYTHONPATH"] = str(millpress.parent)
    noxfile = str(checkout / "noxfile.py")
    assert reason_of_nox(built, "-f", noxfile) == ""
    made, manifest = wheel(built), built.manifest(wheel(built).name)
    text = (made.parent / f"{made.name}.json").read_text()
    change_code(checkout / "torchmill/wheel/verify")
    assert "verify: code that verifies" in reason_of_nox(built, "-f", noxfile)
    done = built.nox("-f", noxfile, "-s", SESSION)
    assert done.returncode == 0, done.stdout + done.stderr
    again = built.manifest(made.name)
    assert again["stages"]["pack"] == manifest["stages"]["pack"], (
        "it was verified again, and nothing else"
    )
    assert again["stages"]["verify"] != manifest["stages"]["verify"]
    assert again["edges"] == manifest["edges"]
    assert reason_of_nox(built, "-f", noxfile) == ""
    change_code(millpress)
    assert "pack: code that packs" in reason_of_nox(built, "-f", noxfile)
    (made.parent / f"{made.name}.json").write_text(text)
    assert reason(built) == ""


@slow
def test_a_wheel_or_manifest_that_is_gone_or_edited_is_made_again_and_nothing_else(
    built: Sample,
) -> None:
    made = wheel(built)
    data, seen = made.read_bytes(), made.stat()
    manifest = built.manifest(made.name)
    text = (made.parent / f"{made.name}.json").read_text()
    for spoiled in ("", "{}", text.replace(manifest["sha256"], "0" * 64)):
        (made.parent / f"{made.name}.json").write_text(spoiled)
        assert reason(built)
    made.unlink()
    assert reason(built)
    made.write_bytes(data[:-9] + b"\0" + data[-8:])
    os.utime(made, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert reason(built)

    done = built.nox("-s", SESSION)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert "compiles and links" not in text, "the raw wheel was there"
    assert made.read_bytes() == data
    again = built.manifest(made.name)
    assert again["stages"]["compile"] == manifest["stages"]["compile"]
    assert again["edges"] == manifest["edges"]
    assert reason(built) == ""


@slow
def test_an_environment_of_checks_does_not_outlive_an_interrupted_run(built: Sample) -> None:
    """As after a run that was ended between its checks and the wheel's move into dist/."""
    packed = cell(built) / "packed" / wheel(built).name
    dist_files.withdraw_wheel(wheel(built), packed)
    venv = cell(built) / "verify" / "venv"
    venv.mkdir(parents=True)
    done = built.nox("-s", SESSION)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verifying" not in done.stdout + done.stderr
    assert (wheel(built).is_file(), venv.parent.exists()) == (True, False)


@slow
def test_a_wheel_whose_tree_is_gone_is_still_known(built: Sample) -> None:
    """Whoever makes room by deleting trees keeps what they were for; and an environment may be a new one."""
    shutil.rmtree(built.home / ".torchmill" / "trees")
    (environment(built) / environments.STAMP_NAME).unlink()
    cell(built).mkdir(parents=True)
    assert reason(built) == ""


@slow
def test_files_of_a_newer_torchmill_are_not_replaced_in_silence(built: Sample) -> None:
    manifest = dist_files.manifest_path(wheel(built))
    archive = dist_files.document_path(wheel(built), dist_files.DEBUG_SUFFIX)
    text = manifest.read_text(encoding="utf-8")
    newer = formats.MANIFEST + 1
    manifest.write_text(json.dumps(json.loads(text) | {"format": newer}), encoding="utf-8")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("index.json", json.dumps({"format": formats.DEBUG_ARCHIVE + 1}))
    try:
        notes = [note for note in all_notes(built, "--debug-info") if "newer torchmill" in note]
        without_option = [note for note in all_notes(built) if archive.name in note]
    finally:
        manifest.write_text(text, encoding="utf-8")
        archive.unlink()
    assert [note.partition(" ")[0] for note in notes] == [manifest.name, archive.name]
    assert without_option == []

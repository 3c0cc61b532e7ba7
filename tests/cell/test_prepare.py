"""A tree made ready: shared tools, the copy of the source, what is kept and what is made anew."""

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.contexts import HOST, job
from tests.support.ninja_trees import Python, Site
from tests.support.refusals import refused
from torchmill.cell import added_files, prepare, retarget, source_edits
from torchmill.cell.context import BuildContext
from torchmill.cell.environment import fill_placeholders
from torchmill.cell.folders import BuildTree, copy_source
from torchmill.config.facts import Facts
from torchmill.core.system_errors import report_unwritable
from torchmill.fetch.source.source import Source
from torchmill.host.tree_users import TreeUser
from torchmill.plan.plan import Command, Plan

needs_preparing = pytest.mark.skipif(
    not shutil.which("cc") or not shutil.which("ninja"), reason="needs a C compiler and ninja"
)


class Cell:
    """A cell of a shared tree, whose source the real ninja compiles."""

    def __init__(self, begun: BuildContext, python: Python) -> None:
        self.job, self.python = replace(begun, venv=python.venv), python
        self.said: list[str] = []
        self.began = time.time()

    @property
    def user(self) -> TreeUser:
        return self.python.user(self.job.tree)

    def prepare(self) -> str:
        """Make the tree ready and return what was said."""
        self.said.clear()
        self.began = time.time()
        prepare.prepare_tree(self.job, self.user, lambda *_: None, self.said.append)
        return "\n".join(self.said)

    def build(self) -> set[str]:
        """Compile, note what was read, and return what was made."""
        site = Site.__new__(Site)
        site.tree = self.job.tree
        site.tree.build.mkdir(exist_ok=True)
        made = site.built(self.python)
        prepare.record_external_inputs(self.job, self.user, self.began)
        return made


@pytest.fixture
def begun(small_facts: Facts, tmp_path: Path) -> BuildContext:
    """Return a job whose source is fetched."""
    made = job(small_facts, tmp_path, HOST)
    fetched = Site(tmp_path / "fetched").tree.source
    fetched.rename(made.source.path)
    shutil.rmtree(made.source.path / "build")
    return made


@pytest.fixture
def old(begun: BuildContext, tmp_path: Path) -> Cell:
    return Cell(begun, Python(tmp_path, "3.10", "1.0"))


@pytest.fixture
def new(begun: BuildContext, tmp_path: Path) -> Cell:
    return Cell(begun, Python(tmp_path, "3.12", "2.0"))


def with_preparation(plan: Plan, command: Command) -> Plan:
    """Return the plan with one command that prepares its tree."""
    return replace(plan, tree=replace(plan.tree, preparation=(command,)))


@needs_preparing
def test_a_tree_is_made_once_and_goes_from_one_to_the_other(old: Cell, new: Cell) -> None:
    assert old.prepare() == f"copying the source to {old.job.tree.source}"
    assert len(old.build()) == 5
    assert (
        new.prepare()
        == f"reusing {new.job.tree.folder}, recompiling 2 objects that depend on Python"
    )
    assert new.build() == {"python.o", "number.o", "lib.so"}
    prepare.refuse_foreign_objects(new.job, new.user)
    assert new.prepare() == f"reusing {new.job.tree.folder}"
    assert new.build() == set()


@needs_preparing
def test_what_is_not_whole_is_made_anew(old: Cell) -> None:
    old.prepare()
    old.build()
    old.job.tree.key_file.unlink()
    assert old.prepare().startswith("copying the source")
    assert not old.job.tree.build.exists()


@needs_preparing
@pytest.mark.parametrize("noted", [True, False])
def test_an_upgraded_header_costs_what_read_it(old: Cell, noted: bool) -> None:
    """Also where the build was killed before it could note what it had read."""
    header = old.python.headers.parent / "system.h"
    source = old.job.source.path / "also.c"
    header.write_text("")
    source.write_text(f'#include "{header}"\n{source.read_text()}')
    old.prepare()
    old.build()
    if not noted:
        old.job.tree.external_inputs_file.unlink()
    time.sleep(0.01)
    header.write_text("/* upgraded */\n")
    os.utime(header, (1, 1))
    said = old.prepare()
    assert said.splitlines()[0] == f"{header} changed: recompiling 1 objects"
    assert old.build() == {"also.o", "lib.so"}
    assert old.prepare() == f"reusing {old.job.tree.folder}"


@needs_preparing
def test_a_clock_that_went_back(old: Cell) -> None:
    old.prepare()
    old.build()
    later = time.time() + 3600
    os.utime(old.job.tree.build / "free.o", (later, later))
    said = old.prepare()
    assert f"recreating {old.job.tree.folder}: object files are dated in the future" in said
    assert len(old.build()) == 5


@needs_preparing
def test_a_disk_whose_clock_is_ahead_of_ours(old: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    old.prepare()
    old.build()
    here = time.time
    monkeypatch.setattr(time, "time", lambda: here() - 60)
    assert old.prepare() == f"reusing {old.job.tree.folder}"


@needs_preparing
def test_a_tree_of_which_nothing_was_written_down(old: Cell, new: Cell) -> None:
    old.prepare()
    old.build()
    (old.job.tree.build / ".ninja_deps").unlink()
    assert "no record of which objects depend on the Python" in new.prepare()
    assert len(new.build()) == 5


@needs_preparing
def test_an_object_of_another_python_is_never_packed(old: Cell, new: Cell) -> None:
    old.prepare()
    old.build()
    retarget.claim_tree(new.job.tree, new.user, new.job.venv)  # as if it had been handed over
    with refused("foreign-object"):
        prepare.refuse_foreign_objects(new.job, new.user)
    assert new.prepare().startswith("copying the source")


@needs_preparing
def test_what_was_edited_in_the_tree_is_told(old: Cell, new: Cell) -> None:
    """A patch is no edit, and the build may write a file again as it was."""
    patch = with_preparation(old.job.plan, Command("patch", ("sed", "-i", "s/2/3/", "also.c")))
    for cell in (old, new):
        cell.job = replace(cell.job, plan=patch)
    old.prepare()
    free = old.job.tree.source / "free.c"
    free.write_text(free.read_text())
    assert new.prepare() == f"reusing {new.job.tree.folder}"
    free.write_text("int mine(void) { return 1; }")
    assert old.prepare().splitlines()[0] == (
        f"free.c in {old.job.tree.source} has local edits, which every wheel of this tree will contain: "
        "turn them into a patch (`--patch FILE`)"
    )


def note_build(cell: Cell, *made: str) -> None:
    """Do what a build does to the tree beside compiling: it leaves files of its own in it."""
    edits = source_edits.find_edits(cell.job)
    added_files.begin_build(cell.job.tree, [name for name in edits if name != "free.c"])
    for name in made:
        (cell.job.tree.source / name).write_text(name)
    source_edits.record_generated_files(cell.job, edits)


@needs_preparing
def test_what_was_added_to_the_tree_is_an_edit_and_what_a_build_left_is_none(old: Cell) -> None:
    old.prepare()
    source = old.job.tree.source
    note_build(old, "version.py")
    assert source_edits.find_edits(old.job) == {}
    (source / "extra.h").write_text("#define EXTRA 1")
    (source / "build").mkdir(exist_ok=True)
    (source / "build" / "log").touch()
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "setup.pyc").touch()
    assert [*source_edits.find_edits(old.job)] == ["extra.h"]
    assert old.prepare().startswith("extra.h in ")
    note_build(old, "later.py")  # which does not make it the build's own
    assert [*source_edits.find_edits(old.job)] == ["extra.h"]
    (source / "extra.h").unlink()
    assert source_edits.find_edits(old.job) == {}


@needs_preparing
def test_after_a_build_that_was_killed_its_files_are_no_edits(old: Cell) -> None:
    old.prepare()
    source = old.job.tree.source
    note_build(old)
    (source / "extra.h").write_text("#define EXTRA 1")
    added_files.begin_build(old.job.tree, [*source_edits.find_edits(old.job)])
    (source / "half.py").write_text("made by the build that was killed")
    assert [*source_edits.find_edits(old.job)] == ["extra.h"]


@needs_preparing
def test_a_new_tree_says_what_changed_since_the_last_one(old: Cell) -> None:
    old.prepare()
    job = old.job
    old.job = replace(job, machine_inputs={**job.machine_inputs, "compiler": "gcc 99"})
    said = old.prepare().splitlines()
    assert old.job.tree.folder != job.tree.folder
    assert said[0].startswith(
        "a new tree, because of what changed since the last build: machine's compiler ("
    )
    assert said[1] == f"copying the source to {old.job.tree.source}"


@needs_preparing
def test_what_is_gone_from_the_tree_comes_back(old: Cell) -> None:
    """From the source, as old as it was; where a patch had changed it, the tree is made again."""
    patch = with_preparation(old.job.plan, Command("patch", ("sed", "-i", "s/2/3/", "also.c")))
    old.job = replace(old.job, plan=patch)
    old.prepare()
    source = old.job.tree.source
    dated = (source / "free.c").stat().st_mtime_ns
    (source / "free.c").unlink()
    assert old.prepare() == f"reusing {old.job.tree.folder}"
    assert (source / "free.c").stat().st_mtime_ns == dated
    patched = (source / "also.c").read_text()
    (source / "also.c").unlink()
    assert old.prepare().startswith(f"recreating {old.job.tree.folder}: also.c is gone")
    assert (source / "also.c").read_text() == patched


@needs_preparing
def test_a_patch_that_does_not_fit_leaves_no_tree(old: Cell) -> None:
    broken = with_preparation(old.job.plan, Command("patch a", ("git", "apply", "absent.patch")))
    old.job = replace(old.job, plan=broken)
    with refused("preparation-failed") as caught:
        old.prepare()
    assert "absent.patch" in str(caught.value)
    assert not old.job.tree.key_file.exists()


def source(path: Path) -> Source:
    return Source("base", "1.0.0", "v1.0.0", "git", "here", "1" * 40, path, verified=True)


def test_a_copy_is_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    (origin / "sub").mkdir(parents=True)
    (origin / "sub" / "run.sh").write_text("echo")
    (origin / "sub" / "run.sh").chmod(0o755)
    (origin / "link").symlink_to("sub/run.sh")
    tree = BuildTree(tmp_path / "tree")
    (tree.source / "stale").mkdir(parents=True)
    for note in (tree.key_file, tree.interpreter_file, tree.external_inputs_file):
        note.write_text("k")
    copy_source(tree, source(origin))
    assert not tree.key_file.exists(), "a tree is complete only when its patches are in"
    assert not tree.interpreter_file.exists(), "what is fresh has served nobody"
    assert not tree.external_inputs_file.exists()
    assert sorted(path.name for path in tree.source.iterdir()) == ["link", "sub"]
    assert (tree.source / "link").is_symlink()
    assert (tree.source / "sub" / "run.sh").stat().st_mode & 0o111


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with refused("disk-full"), report_unwritable(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), report_unwritable(tmp_path):
        raise PermissionError


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on a file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_source_too_large_for_the_disk(tmp_path: Path, tiny_disk: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "large").write_bytes(bytes(2 * 1024**2))
    tree = BuildTree(tiny_disk / "tree")
    tree.folder.mkdir()
    with refused("disk-full"):
        copy_source(tree, source(origin))
    assert not tree.key_file.exists(), "what was half copied does not count as a tree"


def test_placeholders() -> None:
    assert fill_placeholders("${venv}/bin:$$ORIGIN", {"venv": "/v"}) == "/v/bin:$ORIGIN"
    with refused("unknown-placeholder"):
        fill_placeholders("${nowhere}", {})

"""A tree made ready: kept where it can be, made anew where it must be, and why it says so."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.build.test_handover import Python, Site
from tests.build.test_workshop import HOST, job
from tests.support.refusals import refused
from torchmill.build import prepare, retarget
from torchmill.build.context import BuildContext
from torchmill.config.model import Command, Facts
from torchmill.host.environments import TreeUser

pytestmark = pytest.mark.skipif(
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
def begun(known: Facts, tmp_path: Path) -> BuildContext:
    """Return a job whose source is fetched."""
    made = job(known, tmp_path, HOST)
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


def test_a_tree_is_made_once_and_goes_from_one_to_the_other(old: Cell, new: Cell) -> None:
    assert old.prepare() == f"copying the source to {old.job.tree.source}"
    assert len(old.build()) == 5
    assert new.prepare() == f"reusing {new.job.tree.folder}, recompiling 2 objects that depend on Python"
    assert new.build() == {"python.o", "number.o", "lib.so"}
    prepare.refuse_foreign_objects(new.job, new.user)
    assert new.prepare() == f"reusing {new.job.tree.folder}"
    assert new.build() == set()


def test_what_is_not_whole_is_made_anew(old: Cell) -> None:
    old.prepare()
    old.build()
    old.job.tree.key_file.unlink()
    assert old.prepare().startswith("copying the source")
    assert not old.job.tree.build.exists()


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


def test_a_clock_that_went_back(old: Cell) -> None:
    old.prepare()
    old.build()
    later = time.time() + 3600
    os.utime(old.job.tree.build / "free.o", (later, later))
    said = old.prepare()
    assert f"recreating {old.job.tree.folder}: object files are dated in the future" in said
    assert len(old.build()) == 5


def test_a_tree_of_which_nothing_was_written_down(old: Cell, new: Cell) -> None:
    old.prepare()
    old.build()
    (old.job.tree.build / ".ninja_deps").unlink()
    assert "no record of which objects depend on the Python" in new.prepare()
    assert len(new.build()) == 5


def test_an_object_of_another_python_is_never_packed(old: Cell, new: Cell) -> None:
    old.prepare()
    old.build()
    retarget.claim_tree(new.job.tree, new.user, new.job.venv)  # as if it had been handed over
    with refused("foreign-object"):
        prepare.refuse_foreign_objects(new.job, new.user)
    assert new.prepare().startswith("copying the source")


def test_what_was_edited_in_the_tree_is_told(old: Cell, new: Cell) -> None:
    """A patch is no edit, and the build may write a file again as it was."""
    patch = replace(old.job.plan, prepare=(Command("patch", ("sed", "-i", "s/2/3/", "also.c")),))
    for cell in (old, new):
        cell.job = replace(cell.job, plan=patch)
    old.prepare()
    free = old.job.tree.source / "free.c"
    free.write_text(free.read_text())
    assert new.prepare() == f"reusing {new.job.tree.folder}"
    free.write_text("int mine(void) { return 1; }")
    assert old.prepare().splitlines()[0] == (
        f"free.c in {old.job.tree.source} has local edits, which every wheel of this tree will contain: "
        "turn them into a patch"
    )


def test_a_patch_that_does_not_fit_leaves_no_tree(old: Cell) -> None:
    broken = replace(old.job.plan, prepare=(Command("patch a", ("git", "apply", "absent.patch")),))
    old.job = replace(old.job, plan=broken)
    with refused("preparation-failed") as caught:
        old.prepare()
    assert "absent.patch" in str(caught.value)
    assert not old.job.tree.key_file.exists()

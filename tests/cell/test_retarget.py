"""Trees that go from one interpreter to the next, compiled by the real ninja and the real compiler."""

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.support.ninja_trees import Python, Site
from torchmill.cell import recorded_inputs, retarget

pytestmark = pytest.mark.skipif(
    not shutil.which("cc") or not shutil.which("ninja"), reason="needs a C compiler and ninja"
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def old(tmp_path: Path) -> Python:
    return Python(tmp_path, "3.10", "1.0")


@pytest.fixture
def new(tmp_path: Path) -> Python:
    return Python(tmp_path, "3.12", "2.0")


def begun(site: Site, python: Python) -> None:
    """Build everything for a first interpreter."""
    retarget.claim_tree(site.tree, python.user(site.tree), python.venv)
    assert site.built(python) == {"free.o", "also.o", "python.o", "number.o", "lib.so"}


def test_only_what_depends_on_the_interpreter_is_compiled_again(
    site: Site, old: Python, new: Python
) -> None:
    begun(site, old)
    for python in (new, old):
        assert site.given(python) == 2
        assert site.tree.env.readlink() == python.venv
        assert site.built(python) == {"python.o", "number.o", "lib.so"}
        assert site.versions() == {f"python {python.version}", f"number {python.number}"}
        assert site.given(python) == 0
        assert site.built(python) == set()


def test_without_handing_over_the_first_interpreter_stays_for_good(
    site: Site, old: Python, new: Python
) -> None:
    """What upstream's own scripts do: nothing is configured anew, and nobody sees that anything changed."""
    begun(site, old)
    assert site.built(new) == set()
    assert site.versions() == {"python 3.10", "number 1.0"}


def test_another_version_of_a_package_in_the_same_place(
    site: Site, old: Python, tmp_path: Path
) -> None:
    """Its files may be older than what was compiled with the former ones: ninja would not look twice."""
    begun(site, old)
    other = Python(tmp_path, "3.10", "1.1")
    os.utime(other.package / "number.h", (1, 1))
    assert site.given(other) == 2
    assert site.built(other) == {"python.o", "number.o", "lib.so"}
    assert site.versions() == {"python 3.10", "number 1.1"}


def test_what_is_named_for_an_interpreter_goes(site: Site, old: Python, new: Python) -> None:
    begun(site, old)
    kept = [
        site.tree.source / "torch" / "lib" / "libtorch.so",
        site.tree.build / "lib" / "libtorch_python.so",
        site.tree.source / "cpython-310.txt",
    ]
    gone = [
        site.tree.build / "_C.cpython-310-x86_64-linux-gnu.so",
        site.tree.source / "torch" / "_C.cpython-313t-darwin.so",
        site.tree.source / "torch" / "_C.cp310-win_amd64.pyd",
        site.tree.source / "torch" / "lib" / "python3.10" / "site-packages" / "caffe2" / "a.py",
        site.tree.build / "lib.linux-x86_64-3.10" / "torch" / "version.py",
        site.tree.build / "temp.linux-x86_64-cpython-310" / "stub.o",
        site.tree.build / "bdist.linux-x86_64" / "wheel" / "a",
        site.tree.build / ".skbuild-info.json",
        site.tree.source / "torch.egg-info" / "SOURCES.txt",
    ]
    for file in (*kept, *gone):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert site.given(new) == 2
    assert [file for file in kept if not file.exists()] == []
    assert [file for file in gone if file.exists()] == []


def test_a_build_that_was_stopped_is_handed_over_too(site: Site, old: Python, new: Python) -> None:
    retarget.claim_tree(site.tree, old.user(site.tree), old.venv)
    site.configure(old)
    assert site.compile("free.o", "python.o") == {"free.o", "python.o"}
    log = site.tree.build / ".ninja_deps"
    log.write_bytes(log.read_bytes() + b"\x40\x00\x00\x80cut o")  # in the middle of a record
    assert site.given(new) == 1
    assert site.built(new) == {"also.o", "python.o", "number.o", "lib.so"}
    assert site.versions() == {"python 3.12", "number 2.0"}


def test_handing_over_that_was_stopped_begins_again_whoever_comes(
    site: Site, old: Python, new: Python
) -> None:
    begun(site, old)
    obstacle = site.tree.folder / "env.new"
    obstacle.mkdir()
    with pytest.raises(IsADirectoryError):
        site.given(new)
    obstacle.rmdir()
    assert site.tree.env.readlink() == old.venv
    assert site.given(old) == 0, "the objects are gone already"
    assert not (site.tree.build / "CMakeCache.txt").exists()
    assert site.built(old) == {"python.o", "number.o", "lib.so"}
    assert site.versions() == {"python 3.10", "number 1.0"}


def test_a_tree_in_which_nothing_was_compiled_yet_is_anyones(
    site: Site, old: Python, new: Python
) -> None:
    retarget.claim_tree(site.tree, old.user(site.tree), old.venv)
    assert site.given(new) == 0
    assert site.tree.env.readlink() == new.venv


@pytest.mark.parametrize("lost", ["log", "log's content", "user"])
def test_a_tree_of_which_too_little_is_known_is_refused(
    site: Site, old: Python, new: Python, lost: str
) -> None:
    begun(site, old)
    log = site.tree.build / ".ninja_deps"
    if lost == "log":  # releases that compile with make leave none
        log.unlink()
    elif lost == "log's content":
        log.write_bytes(b"# ninjadeps\n\x63\x00\x00\x00")
    else:
        site.tree.interpreter_file.write_text("{")
    assert site.given(new) is None


def test_objects_without_a_record_stay_beside_those_with_one(
    site: Site, old: Python, new: Python
) -> None:
    begun(site, old)
    library = site.tree.source / "third_party/nccl/core.o"  # as make leaves it
    library.parent.mkdir(parents=True)
    library.touch()
    assert site.given(new) == 2  # python.o and number.o
    assert library.exists()


def test_a_clock_that_went_back_configures_all_the_same(
    site: Site, old: Python, new: Python
) -> None:
    begun(site, old)
    manifest = site.tree.build / "build.ninja"
    later = time.time() + 3600
    os.utime(manifest, (later, later))
    site.given(new)
    assert manifest.stat().st_mtime == 1, "ninja runs CMake again where its memory is newer"


def test_what_was_compiled_later_than_now_is_found(site: Site, old: Python) -> None:
    begun(site, old)
    assert not recorded_inputs.has_future_objects(site.tree)
    later = time.time() + 3600
    os.utime(site.tree.build / "free.o", (later, later))
    assert recorded_inputs.has_future_objects(site.tree)


def test_a_header_of_another_content_and_an_older_date(site: Site, old: Python) -> None:
    """As a package manager leaves it behind after an upgrade."""
    begun(site, old)
    header = old.headers / "Python.h"
    header.write_text('#define PY_VERSION "python 3.10.1"\n')
    os.utime(header, (1, 1))
    assert site.built(old) == set()
    assert retarget.delete_outdated_objects(site.tree, [str(header)]) == 1
    assert site.built(old) == {"python.o", "lib.so"}
    assert "python 3.10.1" in site.versions()


def test_what_changed_after_it_was_read_is_found_whatever_date_it_has(
    site: Site, old: Python
) -> None:
    begun(site, old)
    known = recorded_inputs.read_recorded_inputs(site.tree.source)
    assert known is not None
    header = old.headers / "Python.h"
    assert (
        recorded_inputs.inputs_newer_than_objects(known, lambda file: file == str(header)) == set()
    )
    os.utime(site.tree.build / "python.o", (1, 1))  # compiled before the header was written
    assert recorded_inputs.inputs_newer_than_objects(known, lambda file: file == str(header)) == {
        str(header)
    }
    assert recorded_inputs.inputs_newer_than_objects(known, lambda _: False) == set()


def test_a_library_that_changed_is_in_no_object(site: Site, old: Python) -> None:
    begun(site, old)
    assert (
        retarget.delete_outdated_objects(
            site.tree, [str(old.headers / "Python.h"), "/usr/lib/libm.a"]
        )
        is None
    )


def test_an_object_of_which_nobody_knows_what_it_read_may_have_read_it(
    site: Site, old: Python
) -> None:
    """As make leaves it, or FindCUDA."""
    begun(site, old)
    header = str(old.headers / "Python.h")
    for place, gone in (("build/temp.linux/stub.o", 1), ("third_party/nccl/core.o", None)):
        (site.tree.source / place).parent.mkdir(parents=True)
        (site.tree.source / place).touch()
        assert retarget.delete_outdated_objects(site.tree, [header]) == gone
        site.built(old)


def test_objects_with_the_headers_of_another_interpreter_are_found(
    site: Site, old: Python, new: Python
) -> None:
    begun(site, old)
    known = recorded_inputs.read_recorded_inputs(site.tree.source)
    assert known is not None
    assert recorded_inputs.find_foreign_object(known, old.user(site.tree)) is None
    assert recorded_inputs.find_foreign_object(known, new.user(site.tree)) == (
        str(site.tree.build / "python.o"),
        str(old.headers / "Python.h"),
    )

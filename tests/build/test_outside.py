"""The files outside a tree that were read, found in what real compilers and ninja wrote down."""

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from torchmill.build import machine_inputs
from torchmill.core.stat_cache import StatCache

NINJA = shutil.which("ninja")
COMMANDS = """\
rule compile
  command = c++ -I{system} -MD -MF $out.d -c $in -o $out
  deps = gcc
  depfile = $out.d
rule link
  command = c++ -shared -o $out $in
build a.o: compile ../a.cpp
build b.so: link a.o | {system}/with$ space.a {system}/lib$:s.a
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Build a library by ninja, with a header and two libraries from elsewhere."""
    if NINJA is None:
        pytest.skip("there is no ninja on PATH")
    system, source = tmp_path / "system", tmp_path / "tree" / "source"
    system.mkdir()
    (source / "build").mkdir(parents=True)
    for name in ("far.h", "with space.a", "lib:s.a"):
        (system / name).write_text("")
    (source / "near.h").write_text("")
    (source / "a.cpp").write_text('#include <far.h>\n#include <stddef.h>\n#include "near.h"\nint a;\n')
    (source / "build" / "build.ninja").write_text(COMMANDS.format(system=system))
    subprocess.run([NINJA, "-C", str(source / "build")], check=True, capture_output=True)
    return source


def test_what_lies_outside_was_read_and_nothing_else(source: Path, tmp_path: Path) -> None:
    recall = StatCache(tmp_path / "recall.json")
    read = machine_inputs.read_external_inputs(source, [source.parent], recall, time.time() + 60)
    own = {Path(path).name for path in read if path.startswith(str(tmp_path))}
    assert own == {"far.h", "with space.a", "lib:s.a"}
    assert any(path.endswith("/stddef.h") for path in read)
    assert list(machine_inputs.find_changed_inputs(read, recall)) == []
    (tmp_path / "system" / "lib:s.a").write_text("upgraded")
    (tmp_path / "system" / "far.h").unlink()
    assert {Path(path).name for path in machine_inputs.find_changed_inputs(read, recall)} == {
        "far.h",
        "lib:s.a",
    }


def test_what_changed_during_the_build_is_not_trusted(source: Path, tmp_path: Path) -> None:
    recall = StatCache(tmp_path / "recall.json")
    read = machine_inputs.read_external_inputs(source, [source.parent], recall, time.time() - 3600)
    assert str(tmp_path / "system" / "far.h") in machine_inputs.find_changed_inputs(read, recall)


def test_a_log_that_cannot_be_read_is_never_unchanged(source: Path, tmp_path: Path) -> None:
    recall = StatCache(tmp_path / "recall.json")
    (source / "build" / ".ninja_deps").write_bytes(b"# ninjadeps\n\x63\0\0\0")
    assert list(
        machine_inputs.find_changed_inputs(
            machine_inputs.read_external_inputs(source, [], recall, time.time()), recall
        )
    )


def test_without_a_log_all_headers_of_the_system_count(tmp_path: Path) -> None:
    recall = StatCache(tmp_path / "recall.json")
    read = machine_inputs.read_external_inputs(tmp_path, [], recall, time.time())
    assert "/usr/include/" in read
    assert list(machine_inputs.find_changed_inputs(read, recall)) == []
    assert list(machine_inputs.find_changed_inputs({**read, "/usr/include/": "another look"}, recall)) == [
        "/usr/include/"
    ]
    meanwhile = machine_inputs.read_external_inputs(tmp_path, [], recall, 1.0)
    assert meanwhile["/usr/include/"] == machine_inputs.UNKNOWN, "it changed after the build began"

"""A wheel's files, where conda has them."""

import csv
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import paper_wheels
from torchmill.core.errors import DeliveryError
from torchmill.deliver.conda import layout
from torchmill.wheel.pack import wheel_writer
from torchmill.wheel.pack.staging import StagedWheel

PYTHON = "{}.{}".format(*sys.version_info)
INFO = "tinytorch-1.0+cpu.dist-info"
DATA = "tinytorch-1.0+cpu.data"
CONSOLE = b"[console_scripts]\ntinyrun = tinytorch.run:Main.start [fast]\n[other]\nthing = tinytorch\n"
RUN = b"import sys\nclass Main:\n  @staticmethod\n  def start():\n    print(sys.prefix, *sys.argv[1:])\n"


def laid(tmp_path: Path, more: dict[str, bytes], python: str = PYTHON) -> tuple[Path, StagedWheel]:
    wheel = paper_wheels.made(tmp_path, change=lambda members: members.update(more))
    prefix = tmp_path / "pre fix"
    return prefix, layout.lay_out_wheel(wheel, prefix, python)


def test_everything_lies_where_an_installer_puts_it(tmp_path: Path) -> None:
    more = {
        f"{DATA}/scripts/tool": b"#!python\nprint('tool')\n",
        f"{DATA}/data/share/tiny/note.txt": b"note",
        f"{DATA}/headers/tiny.h": b"int tiny;",
        f"{DATA}/purelib/tinytorch/more.py": b"more = 1\n",
        "tinytorch/.hidden": b"",
    }
    prefix, _ = laid(tmp_path, more, "3.13t")
    site = prefix / "lib/python3.13t/site-packages"
    assert (prefix / "share/tiny/note.txt").read_bytes() == b"note"
    assert (prefix / "include/python3.13t/tinytorch/tiny.h").exists()
    assert (site / "tinytorch/more.py").exists()
    assert (site / "tinytorch/.hidden").exists()
    assert (prefix / "bin/tool").read_text().startswith("#!/bin/sh\n")
    assert not list(site.glob("*.data"))


def test_scripts_run_by_the_python_beside_them_wherever_they_are(tmp_path: Path) -> None:
    more = {
        f"{INFO}/entry_points.txt": CONSOLE,
        f"{DATA}/scripts/tool": b"#!python\nimport sys\nprint(sys.prefix)\n",
        "tinytorch/run.py": RUN,
    }
    prefix, _ = laid(tmp_path, more)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    elsewhere = prefix.rename(tmp_path / "else where")
    link = tmp_path / "link"
    link.symlink_to(elsewhere / "bin/tinyrun")
    for script, words in (
        (elsewhere / "bin/tinyrun", ["a", "b c"]),
        (link, []),
        (elsewhere / "bin/tool", []),
    ):
        done = subprocess.run([script, *words], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == " ".join([str(elsewhere), *words])


def test_dist_info_says_conda_and_record_tells_of_all_files(tmp_path: Path) -> None:
    more = {f"{INFO}/entry_points.txt": CONSOLE, f"{INFO}/REQUESTED": b"", f"{INFO}/direct_url.json": b"{}"}
    prefix, staged = laid(tmp_path, more)
    (staged.root / "tinytorch/__init__.py").write_text("edited = True\n")
    layout.register_with_conda(staged, prefix)
    info = staged.root / INFO
    assert (info / "INSTALLER").read_text() == "conda\n"
    assert not (info / "direct_url.json").exists()
    assert not (info / "REQUESTED").exists()
    lines = (info / "RECORD").read_text().splitlines()
    rows = {name: (said, size) for name, said, size in csv.reader(lines)}
    files = {path for path in prefix.rglob("*") if path.is_file()}
    assert {(staged.root / name).resolve() for name in rows} == {path.resolve() for path in files}
    assert rows.pop(f"{INFO}/RECORD") == ("", "")
    assert "../../../bin/tinyrun" in rows
    for name, (said, size) in rows.items():
        data = (staged.root / name).read_bytes()
        assert (said, size) == (wheel_writer.record_digest(hashlib.sha256(data).digest()), str(len(data)))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            {f"{INFO}/entry_points.txt": b"[console_scripts]\n../../x = a:b\n"},
            "script '../../x' cannot be a file",
        ),
        (
            {f"{INFO}/entry_points.txt": b"[console_scripts]\nx = import os\n"},
            "calls 'import os', which is no",
        ),
        ({f"{DATA}/etc/passwd": b""}, "/etc is no kind of data"),
        ({f"{DATA}/purelib/tinytorch/__init__.py": b""}, "is in it twice"),
    ],
)
def test_what_would_lie_elsewhere_is_refused(tmp_path: Path, more: dict[str, bytes], problem: str) -> None:
    with pytest.raises(DeliveryError, match=problem):
        laid(tmp_path, more)

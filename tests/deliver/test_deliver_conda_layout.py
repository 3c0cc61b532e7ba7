"""Where the files of a wheel lie in a conda environment, and their run paths."""

import csv
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from millpress import record_file
from millpress.staging import StagedWheel
from press_support import compiled_wheels as tiny
from press_support import written_wheels

from tests.support.refusals import refused
from torchmill.deliver.conda import layout

PYTHON = "{}.{}".format(*sys.version_info)
INFO = "tinytorch-1.0+cpu.dist-info"
DATA = "tinytorch-1.0+cpu.data"
CONSOLE = (
    b"[console_scripts]\ntinyrun = tinytorch.run:Main.start [fast]\n[other]\nthing = tinytorch\n"
)
RUN = b"""\
import sys
class Main:
  @staticmethod
  def start():
    print(sys.prefix, *sys.argv[1:])
"""


def laid(
    tmp_path: Path, members: dict[str, bytes], python: str = PYTHON
) -> tuple[Path, StagedWheel]:
    wheel = written_wheels.made(tmp_path, change=lambda contents: contents.update(members))
    prefix = tmp_path / "pre fix"
    return prefix, layout.lay_out_wheel(wheel, prefix, python)


def test_every_file_is_where_an_installer_puts_it(tmp_path: Path) -> None:
    members = {
        f"{DATA}/scripts/tool": b"#!python\nprint('tool')\n",
        f"{DATA}/data/share/tiny/note.txt": b"note",
        f"{DATA}/headers/tiny.h": b"int tiny;",
        f"{DATA}/purelib/tinytorch/more.py": b"more = 1\n",
        "tinytorch/.hidden": b"",
    }
    prefix, _ = laid(tmp_path, members, "3.13t")
    site = prefix / "lib/python3.13t/site-packages"
    assert (prefix / "share/tiny/note.txt").read_bytes() == b"note"
    assert (prefix / "include/python3.13t/tinytorch/tiny.h").exists()
    assert (site / "tinytorch/more.py").exists()
    assert (site / "tinytorch/.hidden").exists()
    assert (prefix / "bin/tool").read_text().startswith("#!/bin/sh\n")
    assert not list(site.glob("*.data"))


def test_scripts_run_the_python_beside_them_wherever_the_environment_is(tmp_path: Path) -> None:
    members = {
        f"{INFO}/entry_points.txt": CONSOLE,
        f"{DATA}/scripts/tool": b"#!python\nimport sys\nprint(sys.prefix)\n",
        "tinytorch/run.py": RUN,
    }
    prefix, _ = laid(tmp_path, members)
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


SCRIPT_WITH_FUTURE = """\
#!python -u
# -*- coding: latin-1 -*-

'''Say "Grüße".'''
from __future__ import annotations
print(ascii(__doc__))
"""


def test_a_script_keeps_its_encoding_and_its_imports_from_the_future(tmp_path: Path) -> None:
    script = SCRIPT_WITH_FUTURE.encode("latin-1")
    prefix, _ = laid(tmp_path, {f"{DATA}/scripts/tool": script})
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    done = subprocess.run([prefix / "bin/tool"], capture_output=True, text=True, check=True)
    assert 'Say "Gr\\xfc\\xdfe".' in done.stdout


def test_dist_info_names_conda_and_record_lists_all_files(tmp_path: Path) -> None:
    members = {
        f"{INFO}/entry_points.txt": CONSOLE,
        f"{INFO}/REQUESTED": b"",
        f"{INFO}/direct_url.json": b"{}",
    }
    prefix, staged = laid(tmp_path, members)
    (staged.root / "tinytorch/__init__.py").write_text("edited = True\n")
    layout.register_with_conda(staged, prefix)
    info = staged.root / INFO
    assert (info / "INSTALLER").read_text() == "conda\n"
    assert not (info / "direct_url.json").exists()
    assert not (info / "REQUESTED").exists()
    lines = (info / "RECORD").read_text().splitlines()
    rows = {name: (digest, size) for name, digest, size in csv.reader(lines)}
    files = {path for path in prefix.rglob("*") if path.is_file()}
    assert {(staged.root / name).resolve() for name in rows} == {path.resolve() for path in files}
    assert rows.pop(f"{INFO}/RECORD") == ("", "")
    assert "../../../bin/tinyrun" in rows
    for name, (digest, size) in rows.items():
        data = (staged.root / name).read_bytes()
        assert digest == record_file.record_digest(hashlib.sha256(data).digest())
        assert size == str(len(data))


@pytest.mark.parametrize(
    ("members", "code"),
    [
        (
            {f"{INFO}/entry_points.txt": b"[console_scripts]\n../../x = a:b\n"},
            "invalid-script",
        ),
        (
            {f"{INFO}/entry_points.txt": b"[console_scripts]\nx = import os\n"},
            "invalid-script",
        ),
        ({f"{DATA}/etc/passwd": b""}, "invalid-wheel-layout"),
        ({f"{DATA}/purelib/tinytorch/__init__.py": b""}, "invalid-wheel-layout"),
        (
            {f"{INFO}/entry_points.txt": CONSOLE, f"{DATA}/scripts/tinyrun": b"#!/bin/sh\n"},
            "invalid-wheel-layout",
        ),
    ],
)
def test_files_and_scripts_without_a_valid_place_are_refused(
    tmp_path: Path, members: dict[str, bytes], code: str
) -> None:
    with refused(code):
        laid(tmp_path, members)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the repaired wheel of tinytorch."""
    folder = tmp_path_factory.mktemp("wheel")
    raw = tiny.build(folder)
    return tiny.finish(raw.torch, folder / "dist", folder / "stage", folders=(raw.outside,))[0]


def dynamic(path: Path) -> dict[str, str]:
    """Return the run paths of a file as another reader of ELF files has them."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        tags = section.iter_tags()
        return {
            tag.entry.d_tag: str(getattr(tag, "rpath", None) or getattr(tag, "runpath", None))
            for tag in tags
            if tag.entry.d_tag in {"DT_RPATH", "DT_RUNPATH"}
        }


@tiny.needs_compiler
def test_run_paths_are_those_of_recipe_r3_and_forced(wheel: Path, tmp_path: Path) -> None:
    """The recipe is for `_C*.so` and `lib/*.so`."""
    prefix = tmp_path / "prefix"
    staged = layout.lay_out_wheel(wheel, prefix, PYTHON)
    layout.apply_run_paths(staged, prefix)
    extension = next(staged.root.glob("tinytorch/_C*.so"))
    assert dynamic(extension) == {"DT_RPATH": "$ORIGIN:$ORIGIN/lib:$ORIGIN/../../.."}
    assert dynamic(staged.root / "tinytorch/lib/libtiny.so") == {
        "DT_RPATH": "$ORIGIN:$ORIGIN/../../../.."
    }
    assert all(dynamic(path).keys() <= {"DT_RPATH"} for path in staged.root.rglob("*.so*"))
    code = "import tinytorch; print(tinytorch.add(1, 2))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=staged.root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3.0"


@tiny.needs_compiler
def test_a_program_in_bin_finds_the_libraries_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    staged = layout.lay_out_wheel(wheel, prefix, PYTHON)
    program = prefix / "bin/tool"
    program.parent.mkdir()
    shutil.copy2(staged.root / "tinytorch/lib/libtiny.so", program)
    layout.apply_run_paths(staged, prefix)
    folder = f"lib/python{PYTHON}/site-packages/tinytorch"
    run_path = dynamic(program)["DT_RPATH"].split(":")
    assert f"$ORIGIN/../{folder}/lib" in run_path
    assert run_path[-1] == "$ORIGIN/../lib"


@tiny.needs_compiler
def test_the_environment_comes_before_ld_library_path(wheel: Path, tmp_path: Path) -> None:
    """The environment's library is loaded although LD_LIBRARY_PATH has one of the same name."""
    prefix = tmp_path / "prefix"
    module = tmp_path / "module"
    staged = layout.lay_out_wheel(wheel, prefix, PYTHON)
    module.mkdir()
    for folder, number in ((prefix / "lib", 1), (module, 2)):
        tiny.shared(f"double lens(double x) {{ return {number}; }}", folder / "liblens.so.1")
    folder = staged.root / "tinytorch"
    tiny.extension(folder, "look", "lens(a)", module / "liblens.so.1")
    shutil.move(next(folder.glob("_C*.so")), tmp_path / f"_C{tiny.SUFFIX}")
    library = shutil.move(tmp_path / f"_C{tiny.SUFFIX}", folder / f"_C{tiny.SUFFIX}")
    layout.apply_run_paths(staged, prefix)
    assert set(dynamic(Path(library))) == {"DT_RPATH"}
    done = subprocess.run(
        [sys.executable, "-c", "from _C import look; print(look(0, 0))"],
        cwd=folder,
        env={**os.environ, "LD_LIBRARY_PATH": str(module)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "1.0"

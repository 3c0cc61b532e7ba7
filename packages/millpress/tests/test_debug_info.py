"""Debug information is separated: the library is as if compiled without it, and gdb's file has it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from millpress import debug_info, elf_edit
from millpress.elf_edit import ElfEdit
from press_support import compiled_wheels as tiny

pytestmark = [
    tiny.needs_compiler,
    pytest.mark.skipif(shutil.which("objcopy") is None, reason="needs objcopy"),
]
SOURCE = "static int twice(int n) { return 2 * n; }\nint tiny_six(int n) { return twice(n) + 4; }\n"


def compiled(folder: Path, *flags: str) -> Path:
    """Return a library in a new folder, compiled from a file with the same name each time."""
    folder.mkdir()
    (folder / "tiny.c").write_text(SOURCE, encoding="ascii")
    words = [
        "cc",
        "-O2",
        "-fPIC",
        "-shared",
        "-Wl,--build-id=sha1",
        f"-ffile-prefix-map={folder}=.",
    ]
    argv = [*words, *flags, "tiny.c", "-o", "libtiny.so"]
    subprocess.run(argv, cwd=folder, check=True)
    (folder / "tiny.c").unlink()
    return folder / "libtiny.so"


def sections(library: Path) -> set[str]:
    with library.open("rb") as file:
        return {section.name for section in ELFFile(file).iter_sections()}


@pytest.mark.parametrize("flag", ["-g", "-g1", "-ggdb3"])
def test_a_library_is_as_if_compiled_without_debug_information(tmp_path: Path, flag: str) -> None:
    plain = compiled(tmp_path / "plain", "-g0")
    library = compiled(tmp_path / "debug", flag)
    assert library.read_bytes() != plain.read_bytes()
    mode = library.stat().st_mode
    (tmp_path / "kept").mkdir()
    outcome = debug_info.settle_build_ids(debug_info.strip_files(library.parent, tmp_path / "kept"))
    assert library.read_bytes() == plain.read_bytes()
    assert library.stat().st_mode == mode
    assert (outcome.files, outcome.problems) == ((library,), ())
    (separated,) = outcome.separated
    assert separated.build_id == debug_info.read_build_id(plain)
    assert debug_info.read_build_id(separated.debug_file) == separated.build_id
    assert ".debug_info" in sections(separated.debug_file)
    assert ".debug_info" not in sections(library)
    assert [path.name for path in library.parent.iterdir()] == ["libtiny.so"], (
        "nothing else is left"
    )


def test_a_library_that_nobody_edited_keeps_the_build_id_of_its_linker(tmp_path: Path) -> None:
    library = compiled(tmp_path / "plain", "-g0")
    before = library.read_bytes()
    outcome = debug_info.settle_build_ids(debug_info.strip_files(library.parent))
    assert library.read_bytes() == before
    assert outcome == debug_info.StrippedFiles((library,))


def test_edits_come_before_the_build_id(tmp_path: Path) -> None:
    """Two builds in two folders, one with -g: the folders are in run paths until these are edited."""
    libraries = []
    for number, flag in enumerate(("-g0", "-g")):
        library = compiled(tmp_path / flag, flag, f"-Wl,-rpath,/the/build/{number}")
        stripped = debug_info.strip_files(library.parent)
        elf_edit.edit_file(ElfEdit(rpath=("$ORIGIN/lib",), soname="libtiny-1.so"), library)
        debug_info.settle_build_ids(stripped)
        libraries.append(library)
    assert libraries[0].read_bytes() == libraries[1].read_bytes()


def test_a_library_without_a_build_id_stays_and_is_named(tmp_path: Path) -> None:
    library = compiled(tmp_path / "debug", "-g", "-Wl,--build-id=none")
    before = library.read_bytes()
    (problem,) = debug_info.strip_files(library.parent).problems
    assert problem.startswith("libtiny.so: it has no build ID")
    assert library.read_bytes() == before


def test_a_dwz_that_cannot_run_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compiled(tmp_path / "debug", "-g")
    dwz = tmp_path / "bin/dwz"
    dwz.parent.mkdir()
    dwz.write_bytes(b"\x7fELF of another machine")
    dwz.chmod(0o755)
    monkeypatch.setenv("PATH", f"{dwz.parent}:/usr/bin:/bin")
    (tmp_path / "kept").mkdir()
    stripped = debug_info.strip_files(library.parent, tmp_path / "kept")
    assert (stripped.problems, stripped.reduced) == ((), False)
    assert ".debug_info" in sections(stripped.separated[0].debug_file)


@pytest.mark.parametrize("linker", ["gold", "lld", "mold"])
def test_a_library_of_another_linker_stays_and_is_named(tmp_path: Path, linker: str) -> None:
    if shutil.which(f"ld.{linker}") is None:
        pytest.skip(f"this machine has no {linker}")
    library = compiled(tmp_path / "debug", "-g", f"-fuse-ld={linker}")
    before = library.read_bytes()
    (problem,) = debug_info.strip_files(library.parent, tmp_path).problems
    assert "another linker" in problem
    assert library.read_bytes() == before


def test_gdb_names_the_line_of_a_function(tmp_path: Path) -> None:
    if shutil.which("gdb") is None:
        pytest.skip("this machine has no gdb")
    library = compiled(tmp_path / "debug", "-g")
    (tmp_path / "kept").mkdir()
    stripped = debug_info.strip_files(library.parent, tmp_path / "kept")
    (separated,) = debug_info.settle_build_ids(stripped).separated
    folder = tmp_path / "files" / ".build-id" / separated.build_id[:2]
    folder.mkdir(parents=True)
    shutil.copy(separated.debug_file, folder / f"{separated.build_id[2:]}.debug")
    commands = [f"set debug-file-directory {tmp_path / 'files'}", f"file {library}"]
    argv = ["gdb", "-batch", "-nx"]
    for command in [*commands, "info line tiny_six"]:
        argv += ["-ex", command]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert ' of "./tiny.c" starts at address ' in shown

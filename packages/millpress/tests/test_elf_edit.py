"""ELF files and static libraries: read, edited in place, and their run paths."""

from __future__ import annotations

import ctypes
import errno
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from millpress import elf, elf_edit
from millpress.elf import LOAD, open_elf
from millpress.elf_edit import ElfEdit, run_path
from press_support import compiled_wheels as tiny
from press_support.expected_errors import refused

EDIT = ElfEdit(
    replaced=(("libouter.so.2", "libouter-0a1b2c3d.so.2"),),
    dropped=("libm.so.6",),
    soname="libtiny-4e5f6071.so",
    rpath=("$ORIGIN", "$ORIGIN/../somewhere/else"),
)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with libtiny.so, which needs libouter.so.2, by a version, and libm."""
    folder = tmp_path_factory.mktemp("libraries")
    script = folder / "outer.map"
    script.write_text("OUTER_1 { global: outer_add; local: *; };")
    outer = "double outer_add(double a, double b) { return a + b; }"
    tiny.shared(outer, folder / "libouter.so.2", f"-Wl,--version-script={script}")
    tiny.shared(
        tiny.TINY, folder / "libtiny.so", folder / "libouter.so.2", "-lm", "-Wl,-rpath,/old"
    )
    return folder


@pytest.fixture
def library(libraries: Path, tmp_path: Path) -> Path:
    shutil.copy(libraries / "libouter.so.2", tmp_path / "libouter-0a1b2c3d.so.2")
    return Path(shutil.copy(libraries / "libtiny.so", tmp_path))


def facts(path: Path) -> elf.ElfInfo:
    info = elf.read_elf(path)
    assert info is not None
    return info


@tiny.needs_compiler
def test_an_edit_in_place_equals_one_by_patchelf(library: Path, tmp_path: Path) -> None:
    other = Path(shutil.copy(library, tmp_path / "other.so"))
    assert elf_edit.edit_in_place(EDIT, library)
    elf_edit.run_patchelf(EDIT, other)
    assert facts(library) == facts(other)
    assert facts(library).soname == "libtiny-4e5f6071.so"
    assert facts(library).versions["libouter-0a1b2c3d.so.2"] == {"OUTER_1"}


def loaded_sum(library: Path) -> str:
    """Return the sum of 1.5 and 2 that the library computes in a new process."""
    code = (
        "import ctypes, sys; add = ctypes.CDLL(sys.argv[1]).tiny_add; add.restype = ctypes.c_double; "
        "add.argtypes = [ctypes.c_double] * 2; print(add(1.5, 2))"
    )
    command = [sys.executable, "-c", code, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@tiny.needs_compiler
@pytest.mark.parametrize(
    ("old_path", "what_stays"),
    [
        ("/home/me/lib", b""),
        ("/home/me/outer_add", b"outer_add"),  # the name of a symbol shares the end
        ("/home/me/OUTER_1", b"OUTER_1"),  # of a version
        ("/home/me/libouter.so.2", b"libouter.so.2"),  # of a library
    ],
)
def test_no_byte_of_the_old_run_path_stays_that_no_other_name_has(
    libraries: Path, tmp_path: Path, old_path: str, what_stays: bytes
) -> None:
    shutil.copy(libraries / "libouter.so.2", tmp_path)
    library = tmp_path / "libtiny.so"
    tiny.shared(tiny.TINY, library, tmp_path / "libouter.so.2", f"-Wl,-rpath,{old_path}")
    assert old_path.encode() in library.read_bytes()
    symbols = elf.undefined_symbols(library), elf.defined_symbols(library)
    needed, versions = facts(library).needed, facts(library).versions
    assert elf_edit.edit_in_place(ElfEdit(rpath=("$ORIGIN",)), library)
    content = library.read_bytes()
    assert b"/home/me" not in content
    assert what_stays in content
    assert (elf.undefined_symbols(library), elf.defined_symbols(library)) == symbols
    assert (facts(library).needed, facts(library).versions) == (needed, versions)
    assert loaded_sum(library) == "3.5\n"


@tiny.needs_compiler
def test_the_loader_accepts_an_edited_library(library: Path) -> None:
    assert elf_edit.edit_in_place(EDIT, library)
    # libtiny asks for the version by the library's new name, and finds it by its new run path
    assert loaded_sum(library) == "3.5\n"


@tiny.needs_compiler
def test_everything_else_stays_where_it_is(library: Path) -> None:
    before = library.read_bytes()
    with open_elf(library) as image:
        writes = elf_edit.plan_writes(image, EDIT)
    assert writes is not None
    assert elf_edit.edit_in_place(EDIT, library)
    after = bytearray(library.read_bytes())
    for at, data in writes:
        after[at : at + len(data)] = before[at : at + len(data)]
    assert after[: len(before)] == before


@tiny.needs_compiler
def test_pyelftools_reads_the_same_as_millpress(library: Path) -> None:
    assert elf_edit.edit_in_place(EDIT, library)
    with library.open("rb") as file:
        image: Any = ELFFile(file)
        dynamic = next(image.iter_segments("PT_DYNAMIC"))
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]
        (path,) = (tag.runpath for tag in dynamic.iter_tags("DT_RUNPATH"))
        needs = {
            need.name for need, _ in image.get_section_by_name(".gnu.version_r").iter_versions()
        }
        symbols = {symbol.name for symbol in image.get_section_by_name(".dynsym").iter_symbols()}
    assert tuple(needed) == facts(library).needed
    assert path.split(":") == list(facts(library).rpath)
    assert needs == facts(library).versions.keys()
    assert elf.defined_symbols(library) | elf.undefined_symbols(library) <= symbols
    assert {"tiny_add", "tiny_scale"} <= elf.defined_symbols(library)
    assert "outer_add" in elf.undefined_symbols(library)


@tiny.needs_compiler
def test_the_table_of_segments_stays_and_is_in_order(library: Path) -> None:
    assert elf_edit.edit_in_place(EDIT, library)
    with open_elf(library) as edited:
        assert edited.header.segments_offset == 64
        loaded = [header for header in edited.segments if header.kind == LOAD]
    assert loaded == sorted(loaded, key=lambda segment: segment.address)
    with library.open("rb") as file:
        image: Any = ELFFile(file)
        notes = [note for header in image.iter_segments("PT_NOTE") for note in header.iter_notes()]
    assert "NT_GNU_BUILD_ID" in [note["n_type"] for note in notes]


@tiny.needs_compiler
@pytest.mark.skipif(shutil.which("strip") is None, reason="needs strip")
def test_strip_leaves_it_whole(library: Path) -> None:
    assert elf_edit.edit_in_place(EDIT, library)
    subprocess.run(["strip", "--strip-unneeded", library], check=True)
    assert facts(library).soname == "libtiny-4e5f6071.so"
    assert loaded_sum(library) == "3.5\n"


@tiny.needs_compiler
def test_it_can_be_edited_again(library: Path) -> None:
    assert elf_edit.edit_in_place(EDIT, library)
    assert elf_edit.edit_in_place(ElfEdit(rpath=()), library)
    assert elf_edit.edit_in_place(ElfEdit(rpath=("$ORIGIN",)), library)
    assert facts(library).rpath == ("$ORIGIN",)
    assert facts(library).soname == "libtiny-4e5f6071.so"
    assert ctypes.CDLL(str(library)).tiny_scale is not None


@tiny.needs_compiler
@pytest.mark.skipif(shutil.which("strip") is None, reason="needs strip")
@pytest.mark.parametrize("times", range(1, 6))
def test_strip_leaves_it_whole_however_often_it_was_edited(library: Path, times: int) -> None:
    for number in range(times):
        edit = replace(
            EDIT if number == 0 else ElfEdit(), rpath=("$ORIGIN", "$ORIGIN/" + "x" * number)
        )
        assert elf_edit.edit_in_place(edit, library)
    subprocess.run(["strip", library], check=True)
    assert facts(library).rpath == ("$ORIGIN", "$ORIGIN/" + "x" * (times - 1))
    assert loaded_sum(library) == "3.5\n"


@tiny.needs_compiler
def test_an_error_of_the_disk_names_the_library(library: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (library.stat().st_size, before[1]))
    try:
        with pytest.raises(OSError, check=lambda error: error.errno == errno.EFBIG) as caught:
            elf_edit.edit_in_place(EDIT, library)
        assert caught.value.filename == str(library)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@tiny.needs_compiler
def test_versions_of_a_library_that_is_needed_twice_add_up(tmp_path: Path) -> None:
    code = """
        #include <math.h>
        #include <stdlib.h>
        double both(double x) { return exp(x) + atoi("3"); }
    """
    library = tiny.shared(code, tmp_path / "libboth.so", "-lm")
    before = elf.read_elf(library)
    assert before is not None
    elf_edit.run_patchelf(ElfEdit(replaced=(("libm.so.6", "libc.so.6"),)), library)
    after = elf.read_elf(library)
    assert after is not None
    assert after.versions == {
        "libc.so.6": before.versions["libm.so.6"] | before.versions["libc.so.6"]
    }


def test_programs_are_left_to_patchelf(tmp_path: Path) -> None:
    program = tmp_path / "program"
    source = tmp_path / "program.c"
    source.write_text("int main(void) { return 0; }")
    assert tiny.COMPILER is not None
    subprocess.run([tiny.COMPILER, "-o", program, source], check=True)
    before = program.read_bytes()
    edit = ElfEdit(rpath=("$ORIGIN",))
    assert not elf_edit.edit_in_place(edit, program)
    assert program.read_bytes() == before
    program.chmod(0o555)
    elf_edit.edit_file(edit, program)
    assert facts(program).rpath == edit.rpath
    assert program.stat().st_mode & 0o777 == 0o555


def test_a_file_that_cannot_be_edited_is_as_writable_as_before(tmp_path: Path) -> None:
    damaged = tmp_path / "libdamaged.so"
    damaged.write_bytes(b"\x7fELF")
    damaged.chmod(0o555)
    with refused("damaged-library"):
        elf_edit.edit_file(ElfEdit(rpath=("$ORIGIN",)), damaged)
    assert damaged.stat().st_mode & 0o777 == 0o555


def filled(library: Path, spare: int) -> None:
    """Leave so many free entries at the end of the dynamic section; the others say what nobody knows."""
    with open_elf(library) as image:
        table = next(segment for segment in image.segments if segment.kind == 2)
        used = len(image.dynamic)
    data = bytearray(library.read_bytes())
    for number in range(used, table.size // 16 - spare):
        tag = (0x6FFFFEF5 + 0x1000 + number).to_bytes(8, sys.byteorder)
        data[table.offset + number * 16 : table.offset + number * 16 + 16] = tag + bytes(8)
    library.write_bytes(data)


@tiny.needs_compiler
def test_a_full_dynamic_section_is_left_to_patchelf(tmp_path: Path) -> None:
    library = tiny.shared(tiny.TINY, tmp_path / "libfull.so")
    full = Path(shutil.copy(library, tmp_path / "libfuller.so"))
    filled(library, 2)
    assert elf_edit.edit_in_place(ElfEdit(rpath=("$ORIGIN",)), library)
    assert facts(library).rpath == ("$ORIGIN",)
    filled(full, 1)
    before = full.read_bytes()
    assert not elf_edit.edit_in_place(ElfEdit(rpath=("$ORIGIN",)), full)
    assert full.read_bytes() == before
    elf_edit.run_patchelf(ElfEdit(rpath=("$ORIGIN",)), full)
    assert facts(full) == facts(library)


@tiny.needs_compiler
def test_section_headers_behind_the_table_of_segments_are_not_overwritten(library: Path) -> None:
    data = bytearray(library.read_bytes())
    with open_elf(library) as image:
        header = image.header
    segments_end = header.segments_offset + 56 * header.segment_count
    sections_end = header.sections_offset + 64 * header.section_count
    segments_table = data[header.segments_offset : segments_end]
    sections_table = data[header.sections_offset : sections_end]
    tables = segments_table + sections_table
    end = -(-len(data) // 8) * 8
    # where the header has the offsets of both tables
    for place, number in ((32, end), (40, end + len(segments_table))):
        data[place : place + 8] = number.to_bytes(8, sys.byteorder)
    library.write_bytes(bytes(data).ljust(end, b"\0") + tables)
    before = library.read_bytes()
    assert not elf_edit.edit_in_place(EDIT, library)
    assert library.read_bytes() == before


@tiny.needs_compiler
def test_a_further_dynamic_entry_is_followed_by_dt_null(tmp_path: Path) -> None:
    library = tiny.shared(tiny.TINY, tmp_path / "libtiny.so")
    with open_elf(library) as image:
        table = next(segment for segment in image.segments if segment.kind == 2)
        behind = table.offset + 16 * (len(image.dynamic) + 1)
    data = bytearray(library.read_bytes())
    unread_tag = 0x6FFFFEF5 + 0x1000
    data[behind : behind + 8] = unread_tag.to_bytes(8, sys.byteorder)
    library.write_bytes(data)
    assert elf_edit.edit_in_place(ElfEdit(rpath=("$ORIGIN",)), library)
    with open_elf(library) as image:
        assert image.dynamic[-1][0] == 29


@tiny.needs_compiler
# where the header has the offsets of the tables of segments and sections
@pytest.mark.parametrize("offset", [32, 40])
def test_a_table_behind_the_end_of_the_file_is_refused(library: Path, offset: int) -> None:
    content = bytearray(library.read_bytes())
    content[offset : offset + 8] = b"\xff" * 8
    library.write_bytes(content)
    with refused("damaged-library"):
        elf_edit.edit_in_place(EDIT, library)


@tiny.needs_compiler
def test_a_wrong_number_of_needed_versions_is_not_believed(library: Path) -> None:
    versions = facts(library).versions
    content = bytearray(library.read_bytes())
    with open_elf(library) as image:
        table = image.first_segment(elf.DYNAMIC)
        assert table is not None
        tags = [tag for tag, _ in image.dynamic]
    entry = table.offset + 16 * tags.index(0x6FFFFFFF)  # DT_VERNEEDNUM
    content[entry + 8 : entry + 16] = (1 << 40).to_bytes(8, sys.byteorder)
    library.write_bytes(content)
    assert versions != {}
    assert facts(library).versions == versions


@tiny.needs_compiler
@pytest.mark.parametrize("length", [4, 20, 100, 1000])
def test_a_file_that_is_cut_short_is_refused(library: Path, length: int) -> None:
    library.write_bytes(library.read_bytes()[:length])
    with refused("damaged-library"):
        elf_edit.edit_in_place(EDIT, library)
    with refused("damaged-library"):
        elf.read_elf(library)


ROOT = Path("/stage")
LIB = ROOT / "torch/lib"
BUNDLE = ROOT / "torchvision.libs"


@pytest.mark.parametrize(
    ("file", "libraries", "expected"),
    [
        ("torch/_C.cpython-310-x86_64-linux-gnu.so", [LIB], ("$ORIGIN", "$ORIGIN/lib")),
        ("torch/lib/libtorch_cpu.so", [LIB], ("$ORIGIN",)),
        ("torch/bin/torch_shm_manager", [LIB], ("$ORIGIN", "$ORIGIN/../lib")),
        (
            "functorch/_C.cpython-310-x86_64-linux-gnu.so",
            [LIB],
            ("$ORIGIN", "$ORIGIN/../torch/lib"),
        ),
        ("torchvision/_C.so", [BUNDLE], ("$ORIGIN", "$ORIGIN/../torchvision.libs")),
        ("torchvision.libs/libjpeg-01234567.so.62", [BUNDLE], ("$ORIGIN",)),
    ],
)
def test_the_run_path_depends_on_the_folder_of_the_file(
    file: str, libraries: list[Path], expected: tuple[str, ...]
) -> None:
    assert run_path(ROOT / file, (), uses_wheel=True, root=ROOT, libraries=libraries) == expected


def test_paths_of_the_build_go_and_those_that_move_along_stay() -> None:
    present = (
        "/build/lib",
        "/home/me/.pyenv/versions/3.10.13/lib",
        "$ORIGIN/../../nvidia/cublas/lib",
        "${ORIGIN}/../lib",
        "$ORIGIN/../../../elsewhere",
        "build/lib",
    )
    edited = run_path(
        LIB / "libtorch_cuda.so", present, uses_wheel=True, root=ROOT, libraries=[LIB]
    )
    assert edited == (
        "$ORIGIN",
        "$ORIGIN/../../nvidia/cublas/lib",
    )


def test_a_file_that_needs_nothing_of_the_wheel_is_left_alone() -> None:
    assert run_path(LIB / "libstub.so", (), uses_wheel=False, root=ROOT, libraries=[LIB]) == ()


def static_library(path: Path, count: int) -> Path:
    """Compile a static library of some objects, each with a section ".marked"."""
    objects = []
    for number in range(count):
        source = path.with_name(f"an_object_with_a_long_name_{number}.c")
        source.write_text('__attribute__((section(".marked"))) char mark[64] = {1};')
        objects.append(source.with_suffix(".o"))
        subprocess.run(["cc", "-c", "-o", objects[-1], source], check=True)
    # without a table of symbols, so that the first member is an object
    subprocess.run(["ar", "rcS", path, *objects], check=True)
    return path


@tiny.needs_compiler
def test_every_object_is_read(tmp_path: Path) -> None:
    path = static_library(tmp_path / "lib.a", 2)
    text = tmp_path / "readme"
    text.write_text("odd")  # members begin at even places
    subprocess.run(["ar", "rs", path, text], check=True, capture_output=True)
    subprocess.run(["ar", "q", path, text], check=True)
    assert elf.has_magic(path, elf.AR_MAGIC)
    counts = []
    for image in elf.static_objects(path):
        counts.append(len(list(image.sections_named(".marked"))))
    assert counts == [1, 1]
    text.write_bytes(b"\x7fELF")
    assert not elf.has_magic(text, elf.AR_MAGIC)


@tiny.needs_compiler
def test_an_object_may_have_more_sections_than_its_header_can_count(tmp_path: Path) -> None:
    many = 65_536
    source, path = tmp_path / "many.s", tmp_path / "many.o"
    lines = [f'.section .text.f{number},"ax"\n.byte 1\n' for number in range(many)]
    source.write_text("".join([*lines, '.section .marked,"a"\n.byte 2\n']))
    subprocess.run(["gcc", "-c", source, "-o", path], check=True)
    with open_elf(path) as image:
        assert image.header.section_count == 0
        assert len(image.sections) > many
        (marked,) = image.sections_named(".marked")
        assert image.data[marked.offset : marked.end] == b"\2"


@tiny.needs_compiler
@pytest.mark.parametrize("cut", [-8, 90])
def test_a_damaged_static_library_is_refused(tmp_path: Path, cut: int) -> None:
    path = static_library(tmp_path / "lib.a", 1)
    path.write_bytes(path.read_bytes()[:cut])
    with refused("damaged-library"):
        list(elf.static_objects(path))
    path.write_bytes(elf.AR_MAGIC + b"nothing" * 20)
    with refused("damaged-library"):
        list(elf.static_objects(path))


@pytest.mark.parametrize("size", [b"-60", b"abc", b""])
def test_a_member_of_a_static_library_has_a_size(tmp_path: Path, size: bytes) -> None:
    path = tmp_path / "lib.a"
    header = b"member.o/".ljust(48) + size.ljust(10) + b"`\n"
    path.write_bytes(elf.AR_MAGIC + header)
    with refused("damaged-library"):
        next(elf.static_members(path))

"""Raw wheels are repaired: libraries are bundled, and run paths set."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest
from millpress import bundling, elf
from millpress.bundling import hashed_name, system_search
from millpress.repair import repair_staged, repair_wheel
from millpress.staging import stage_wheel
from press_support import compiled_wheels as tiny
from press_support.expected_errors import refused

pytestmark = tiny.needs_compiler


def facts(path: Path) -> elf.ElfInfo:
    info = elf.read_elf(path)
    assert info is not None
    return info


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_outside_libraries_are_bundled_with_those_that_they_need(
    raw: tiny.Raw, tmp_path: Path
) -> None:
    staged = stage_wheel(raw.torch, tmp_path)
    # libouter is found by libtiny's run path, libinner only in `folders`
    repaired = repair_staged(staged, tiny.PLATFORM, folders=[raw.outside])
    lib = tmp_path / "tinytorch" / "lib"
    inner, outer = (library.name for library in repaired.bundled)
    assert re.fullmatch(r"libinner-[0-9a-f]{8}\.so\.1", inner)
    assert re.fullmatch(r"libouter-[0-9a-f]{8}\.so\.2", outer)
    assert facts(lib / "libtiny.so").needed[0] == outer
    assert facts(lib / outer).needed[0] == inner
    assert [facts(lib / name).soname for name in (inner, outer)] == [inner, outer]
    # the versions of its symbols are looked up under the new name too
    assert facts(lib / "libtiny.so").versions[outer] == {"OUTER_1"}


def test_run_paths_lead_to_folders_of_the_wheel_only(raw: tiny.Raw, tmp_path: Path) -> None:
    repaired = repair_staged(stage_wheel(raw.torch, tmp_path), tiny.PLATFORM, folders=[raw.outside])
    package = tmp_path / "tinytorch"
    assert facts(package / f"_C{tiny.SUFFIX}").rpath == ("$ORIGIN", "$ORIGIN/lib")
    assert facts(package / "lib" / "libtiny.so").rpath == ("$ORIGIN",)
    assert {facts(tmp_path / library.path).rpath for library in repaired.bundled} == {("$ORIGIN",)}


def test_the_result_describes_each_bundled_library(raw: tiny.Raw, tmp_path: Path) -> None:
    repaired = repair_staged(stage_wheel(raw.torch, tmp_path), tiny.PLATFORM, folders=[raw.outside])
    outer = next(library for library in repaired.bundled if library.name.startswith("libouter"))
    source = raw.outside / "libouter.so.2"
    assert outer.source == source
    assert outer.sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    assert outer.name == f"libouter-{outer.sha256[:8]}.so.2"
    assert outer.path == f"tinytorch/lib/{outer.name}"


def test_the_interpreters_library_is_not_needed(raw: tiny.Raw, tmp_path: Path) -> None:
    repaired = repair_staged(stage_wheel(raw.torch, tmp_path), tiny.PLATFORM, folders=[raw.outside])
    extension = facts(tmp_path / "tinytorch" / f"_C{tiny.SUFFIX}")
    assert not any("libpython" in name for name in extension.needed)
    assert not any("libpython" in path.name for path in tmp_path.rglob("*"))
    assert any(tiny.LIBPYTHON in note for note in repaired.notes)


def test_a_second_repair_edits_nothing(raw: tiny.Raw, tmp_path: Path) -> None:
    staged = stage_wheel(raw.torch, tmp_path)
    before = contents(tmp_path)
    repair_staged(staged, tiny.PLATFORM, folders=[raw.outside])
    repaired = contents(tmp_path)
    assert repaired != before
    assert repair_staged(staged, tiny.PLATFORM).bundled == ()
    assert contents(tmp_path) == repaired


def test_a_dependent_wheel_does_not_bundle_libraries_of_its_base(
    raw: tiny.Raw, tmp_path: Path
) -> None:
    staged = stage_wheel(raw.vision, tmp_path)
    repaired = repair_staged(
        staged, tiny.PLATFORM, folders=[raw.outside], provided=tiny.shared_library_names(raw.torch)
    )
    (lens,) = repaired.bundled
    assert lens.path == f"tinyvision.libs/{lens.name}"
    extension = facts(tmp_path / "tinyvision" / f"_C{tiny.SUFFIX}")
    assert extension.needed[:2] == ("libtiny.so", lens.name)
    assert extension.rpath == ("$ORIGIN", "$ORIGIN/../tinyvision.libs")


def test_a_missing_library_is_named_with_its_user(raw: tiny.Raw, tmp_path: Path) -> None:
    staged = stage_wheel(raw.vision, tmp_path)
    with refused("library-not-found") as caught:
        repair_staged(staged, tiny.PLATFORM, provided=tiny.shared_library_names(raw.torch))
    assert "liblens.so.1, which tinyvision/_C" in str(caught.value)


def test_the_folder_of_a_library_can_be_written_into_its_user(
    raw: tiny.Raw, tmp_path: Path
) -> None:
    """The message of the error advises it."""
    staged = stage_wheel(raw.torch, tmp_path)
    for file in (*staged.libraries.iterdir(), *(tmp_path / "tinytorch").glob("*.so")):
        file.unlink()
    user = staged.libraries / "libuser.so"
    lens = raw.outside / "liblens.so.1"
    tiny.shared("", user, lens)
    with refused("library-not-found") as caught:
        repair_staged(staged, tiny.PLATFORM)
    assert "LDFLAGS=-Wl,-rpath,FOLDER" in str(caught.value)
    tiny.shared("", user, lens, f"-Wl,-rpath,{raw.outside}")
    bundled = repair_staged(staged, tiny.PLATFORM).bundled
    assert lens.name in [library.source.name for library in bundled]
    assert facts(user).rpath == ("$ORIGIN",)


def test_symbols_newer_than_the_tag_are_refused_with_the_tag_that_holds(
    raw: tiny.Raw, tmp_path: Path
) -> None:
    staged = stage_wheel(raw.torch, tmp_path)
    with refused("newer-than-tag") as caught:
        repair_staged(staged, f"manylinux_2_5_{tiny.ARCH}", folders=[raw.outside])
    assert "libtiny.so needs GLIBC_2.17 of libc.so.6, which is newer" in str(caught.value)
    assert re.search(
        rf"as compiled meet manylinux_2_\d+_{tiny.ARCH}: .* `--plat auto`", str(caught.value)
    )


def test_the_result_has_the_oldest_tag_that_holds(raw: tiny.Raw, tmp_path: Path) -> None:
    repaired = repair_staged(stage_wheel(raw.torch, tmp_path), tiny.PLATFORM, folders=[raw.outside])
    match = re.fullmatch(rf"manylinux_2_(\d+)_{tiny.ARCH}", repaired.lowest_tag or "")
    assert match
    assert 17 <= int(match[1]) <= int(tiny.PLATFORM.split("_")[2])


def test_programs_that_installers_move_are_judged_too(raw: tiny.Raw, tmp_path: Path) -> None:
    staged = stage_wheel(raw.torch, tmp_path)
    program = tmp_path / "tinytorch-1.0.data" / "scripts" / "tiny"
    program.parent.mkdir(parents=True)
    tiny.shared('#include <stdlib.h>\nchar *get(void) { return secure_getenv("X"); }', program)
    for path in [*staged.root.rglob("*.so*")]:
        path.unlink()
    with refused("newer-than-tag") as caught:
        repair_staged(staged, f"manylinux_2_5_{tiny.ARCH}", folders=[raw.outside])
    assert "data/scripts/tiny needs GLIBC_2.17" in str(caught.value)


def test_a_wheel_for_another_machine_is_refused(raw: tiny.Raw, tmp_path: Path) -> None:
    other = "aarch64" if tiny.ARCH != "aarch64" else "x86_64"
    with refused("wrong-machine"):
        repair_staged(
            stage_wheel(raw.torch, tmp_path), f"manylinux_2_36_{other}", folders=[raw.outside]
        )


def test_with_the_plain_tag_libraries_that_the_loader_does_not_find_are_bundled(
    raw: tiny.Raw, tmp_path: Path
) -> None:
    repaired = repair_staged(
        stage_wheel(raw.torch, tmp_path), f"linux_{tiny.ARCH}", folders=[raw.outside]
    )
    assert [library.source.name for library in repaired.bundled] == [
        "libinner.so.1",
        "libouter.so.2",
    ]
    assert repaired.lowest_tag is None


def test_with_the_plain_tag_libraries_that_the_loader_finds_are_not_bundled(
    raw: tiny.Raw, tmp_path: Path
) -> None:
    machine = facts(raw.outside / "liblens.so.1").machine
    promised = bundling.platform_target(tiny.PLATFORM)
    candidates = {}  # libraries of this machine that manylinux does not promise
    for name, path in system_search().cached:
        info = elf.read_elf(path)
        if info is not None and info.machine == machine and not promised.provides(name):
            candidates[name] = path
    name, path = next(iter(candidates.items()))
    staged = stage_wheel(raw.torch, tmp_path)
    tiny.shared("", staged.libraries / "libuser.so", path)
    repaired = repair_staged(staged, f"linux_{tiny.ARCH}", folders=[raw.outside])
    assert facts(staged.libraries / "libuser.so").needed[0] == (facts(path).soname or name)
    assert not [library for library in repaired.bundled if library.source == path.resolve()]


def test_a_tag_that_is_not_of_linux_is_refused(raw: tiny.Raw, tmp_path: Path) -> None:
    with refused("invalid-platform-tag"):
        repair_staged(stage_wheel(raw.torch, tmp_path), "solaris_2_11")


def test_the_oldest_tag_of_a_musl_wheel_is_not_searched_for(raw: tiny.Raw, tmp_path: Path) -> None:
    stem = raw.torch.name.rpartition("-")[0]
    wheel = tmp_path / f"{stem}-musllinux_1_2_{tiny.ARCH}.whl"
    shutil.copy(raw.torch, wheel)
    with refused("invalid-platform-tag"):
        repair_wheel(wheel, tmp_path / "dist", folders=[raw.outside])


def test_on_windows_nothing_is_done(raw: tiny.Raw, tmp_path: Path) -> None:
    repaired = repair_staged(stage_wheel(raw.torch, tmp_path), "win_amd64")
    assert repaired.notes[0].startswith("Windows")


def test_a_library_that_is_a_link_is_bundled_once(raw: tiny.Raw, tmp_path: Path) -> None:
    folder = tmp_path / "linked"
    folder.mkdir()
    for name in ("libinner.so.1", "libouter.so.2"):
        shutil.copy(raw.outside / name, folder / f"{name}.5.6")
        (folder / name).symlink_to(f"{name}.5.6")
    staged = stage_wheel(raw.torch, tmp_path / "stage")
    (staged.libraries / "libsecond.so").write_bytes((staged.libraries / "libtiny.so").read_bytes())
    raw.outside.rename(raw.outside.with_name("away"))
    try:
        repaired = repair_staged(staged, tiny.PLATFORM, folders=[folder])
    finally:
        raw.outside.with_name("away").rename(raw.outside)
    assert [library.source.name for library in repaired.bundled] == [
        "libinner.so.1.5.6",
        "libouter.so.2.5.6",
    ]
    assert all(re.search(r"\.so\.[12]$", library.name) for library in repaired.bundled)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libfoo.so.1", "libfoo-01234567.so.1"),
        ("libglib-2.0.so.0", "libglib-2.0-01234567.so.0"),
        ("libonnx.so", "libonnx-01234567.so"),
    ],
)
def test_hashed_names_keep_the_version(name: str, expected: str) -> None:
    assert hashed_name(name, "0123456789abcdef") == expected

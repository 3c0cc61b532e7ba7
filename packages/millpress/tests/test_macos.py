"""A real wheel for macOS repaired, on Linux with LLVM's tools or on macOS with Xcode's."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from millpress import elf, macos
from millpress.errors import RepairError
from millpress.staging import MACHO_MAGIC, StagedWheel, stage_wheel
from press_support.expected_errors import refused

# delocate uses what it has deprecated itself
pytestmark = pytest.mark.filterwarnings("ignore:This function has been replaced:DeprecationWarning")


NAME = "pykdtree-1.4.3-cp311-cp311-macosx_14_0_arm64.whl"  # 0.3 MB: an extension and libomp
LLVM = "14"
OTOOL = """#!/bin/bash
words=()
for word; do [ "$word" = -m ] || words+=("$word"); done
exec llvm-otool-{version} "${{words[@]}}"
"""


def install_tools(folder: Path) -> None:
    """Put LLVM's tools under Apple's names.

    Signing is left out: nothing loads the result here.
    """
    folder.mkdir()
    (folder / "otool").write_text(OTOOL.format(version=LLVM))
    (folder / "codesign").write_text("#!/bin/sh\nexit 0\n")
    change = shutil.which(f"llvm-install-name-tool-{LLVM}")
    if change is None or shutil.which(f"llvm-otool-{LLVM}") is None:
        pytest.skip(f"llvm-{LLVM} is not installed")
    (folder / "install_name_tool").symlink_to(change)
    for name in ("otool", "codesign"):
        (folder / name).chmod(0o755)


@pytest.fixture(scope="module")
def downloaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("delocate")
    folder = tmp_path_factory.mktemp("wheel")
    words = ["download", "-q", "--no-deps", "--only-binary=:all:", "--platform=macosx_14_0_arm64"]
    words += ["--python-version=3.11", "--dest", str(folder), "pykdtree==1.4.3"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False
    )
    if not (folder / NAME).exists():
        pytest.skip(f"PyPI does not answer: {done.stderr[-200:]}")
    return folder / NAME


@pytest.fixture
def staged(downloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StagedWheel:
    """Undo delocate's work: the library lies outside, and its user knows the path there."""
    if sys.platform != "darwin":
        install_tools(tmp_path / "tools")
        monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "stage").mkdir()
    staged = stage_wheel(downloaded, tmp_path / "stage")
    package = staged.root / "pykdtree"
    outside = tmp_path / "outside" / "libomp.dylib"
    outside.parent.mkdir()
    (package / ".dylibs" / "libomp.dylib").rename(outside)
    extension = next(package.glob("*.so"))
    words = ["-change", "@loader_path/.dylibs/libomp.dylib", str(outside), str(extension)]
    subprocess.run(["install_name_tool", *words], check=True)
    return staged


def needed(path: Path) -> list[str]:
    from delocate.tools import get_install_names

    return list(get_install_names(str(path)))


def test_an_outside_library_is_bundled(staged: StagedWheel, tmp_path: Path) -> None:
    (library,) = macos.repair_for_macos(staged, "macosx_14_0_arm64", frozenset())
    assert library.path == "pykdtree/.dylibs/libomp.dylib"
    assert library.source == tmp_path / "outside" / "libomp.dylib"
    extension = next((staged.root / "pykdtree").glob("*.so"))
    assert needed(extension) == ["@loader_path/.dylibs/libomp.dylib", "/usr/lib/libSystem.B.dylib"]
    assert str(tmp_path).encode() not in (staged.root / library.path).read_bytes()


def test_a_library_of_the_base_package_is_not_bundled(staged: StagedWheel) -> None:
    assert macos.repair_for_macos(staged, "macosx_14_0_arm64", frozenset({"libomp.dylib"})) == ()
    assert not (staged.root / "pykdtree" / ".dylibs").exists()


def test_a_missing_library_is_named(staged: StagedWheel, tmp_path: Path) -> None:
    (tmp_path / "outside" / "libomp.dylib").unlink()
    with refused("library-not-found") as caught:
        macos.repair_for_macos(staged, "macosx_14_0_arm64", frozenset())
    assert "libomp.dylib" in str(caught.value)


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        (
            "macosx_11_0_arm64",
            r"kdtree\S+\.so needs macOS 14\.0, and the tag says 11\.0.*DEPLOYMENT_TARGET",
        ),
        ("macosx_14_0_x86_64", "is built for arm64, not for x86_64"),
    ],
)
def test_a_tag_that_the_files_contradict_is_refused(
    downloaded: Path, tmp_path: Path, tag: str, message: str
) -> None:
    with pytest.raises(RepairError, match=message):
        macos.require_macos_tag(stage_wheel(downloaded, tmp_path), tag)


def test_missing_xcode_tools_are_reported(
    downloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stage").mkdir()
    staged = stage_wheel(downloaded, tmp_path / "stage")
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("xcode-tools-missing"):
        macos.repair_for_macos(staged, "macosx_14_0_arm64", frozenset())


def test_the_slices_of_a_file_are_read(downloaded: Path, tmp_path: Path) -> None:
    staged = stage_wheel(downloaded, tmp_path)
    library = staged.root / "pykdtree/.dylibs/libomp.dylib"
    assert elf.has_magic(library, *MACHO_MAGIC)
    assert macos.read_slices(library) == {"arm64": (14, 0)}
    assert not elf.has_magic(staged.root / "pykdtree/__init__.py", *MACHO_MAGIC)


def test_a_fat_file_with_wide_offsets_is_judged(downloaded: Path, tmp_path: Path) -> None:
    staged = stage_wheel(downloaded, tmp_path)
    library = staged.root / "pykdtree/.dylibs/libomp.dylib"
    thin = library.read_bytes()
    header = struct.pack(">II", 0xCAFEBABF, 1)
    header += struct.pack(">IIQQII", 0x0100000C, 0, 0x4000, len(thin), 14, 0)
    library.write_bytes(header.ljust(0x4000, b"\0") + thin)
    with pytest.raises(RepairError, match=r"libomp\.dylib is built for arm64, not for x86_64"):
        macos.require_macos_tag(staged, "macosx_14_0_x86_64")


def test_of_a_universal_file_only_the_machines_own_part_is_judged() -> None:
    slices = {"x86_64": (10, 13), "arm64": (11, 0)}
    assert list(macos.slice_problems("libomp.dylib", slices, (10, 15), "x86_64")) == []
    assert list(macos.slice_problems("libomp.dylib", slices, (10, 9), "x86_64"))


@pytest.fixture
def compiled(tmp_path: Path) -> StagedWheel:
    """Return a wheel with one file, which begins like a Mach-O file."""
    (tmp_path / "spam").mkdir()
    (tmp_path / "spam" / "_c.so").write_bytes(bytes.fromhex("cffaedfe"))
    dist_info = tmp_path / "spam-1.0.dist-info"
    return StagedWheel("spam-1.0.whl", tmp_path, dist_info, "spam", "1.0", "spam")


@pytest.mark.parametrize(
    ("tag", "slices", "clause"),
    [
        # nobody builds for Apple silicon before macOS 11: the tag speaks of Intel
        ("macosx_10_13_universal2", {"x86_64": (10, 13), "arm64": (11, 0)}, None),
        ("macosx_10_13_universal2", {"arm64": (11, 0)}, "is built for arm64, not for x86_64"),
        ("macosx_10_13_universal2", {"x86_64": (10, 15), "arm64": (11, 0)}, "needs macOS 10.15"),
        ("macosx_11_0_universal2", {"x86_64": (10, 13), "arm64": (12, 0)}, "needs macOS 12.0"),
    ],
)
def test_a_universal_tag_promises_both_machines(
    compiled: StagedWheel,
    monkeypatch: pytest.MonkeyPatch,
    tag: str,
    slices: dict[str, tuple[int, int]],
    clause: str | None,
) -> None:
    monkeypatch.setattr(macos, "read_slices", lambda _path: slices)
    if clause is None:
        macos.require_macos_tag(compiled, tag)
    else:
        with refused("newer-than-tag") as caught:
            macos.require_macos_tag(compiled, tag)
        assert clause in str(caught.value)


@pytest.mark.parametrize("tag", ["macosx_11", "macosx_10_9_intel", "macosx_11_0_amr64"])
def test_an_invalid_tag_is_refused(compiled: StagedWheel, tag: str) -> None:
    with refused("invalid-platform-tag"):
        macos.require_macos_tag(compiled, tag)


def test_slices_for_arm64_and_arm64e_are_kept_apart(tmp_path: Path) -> None:
    pytest.importorskip("macholib")
    offsets = {0: 0x1000, 2: 0x2000}  # by subtype: arm64 and arm64e
    content = struct.pack(">II", 0xCAFEBABE, len(offsets))
    for subtype, offset in offsets.items():
        content += struct.pack(">5I", 0x0100000C, subtype, offset, 56, 12)
    for subtype, offset in offsets.items():
        macos_version = (11 + subtype) << 16
        header = struct.pack("<8I", 0xFEEDFACF, 0x0100000C, subtype, 6, 1, 24, 0, 0)
        build_version = struct.pack("<6I", 0x32, 24, 1, macos_version, macos_version, 0)
        content = content.ljust(offset, b"\0") + header + build_version
    (tmp_path / "lib.dylib").write_bytes(content)
    slices = macos.read_slices(tmp_path / "lib.dylib")
    assert slices == {"arm64": (11, 0), "arm64e": (13, 0)}


def test_a_folder_of_libraries_that_the_package_brings_stays(
    compiled: StagedWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    delocating = pytest.importorskip("delocate.delocating")
    own_library = compiled.root / "spam" / ".dylibs" / "libown.dylib"
    own_library.parent.mkdir()
    own_library.write_bytes(b"")
    monkeypatch.setattr(delocating, "delocate_path", lambda *_, **__: {})
    monkeypatch.setattr(macos, "XCODE_TOOLS", ())
    monkeypatch.setattr(macos, "read_slices", lambda _path: {"arm64": (11, 0)})
    assert macos.repair_for_macos(compiled, "macosx_11_0_arm64", frozenset()) == ()
    assert own_library.exists()


def test_a_damaged_file_is_refused(compiled: StagedWheel) -> None:
    pytest.importorskip("macholib")
    with refused("damaged-library"):
        macos.require_macos_tag(compiled, "macosx_11_0_arm64")


@pytest.mark.parametrize(
    ("library", "bundled"),
    [
        ("/usr/lib/libSystem.B.dylib", False),
        ("/System/Library/Frameworks/Accelerate.framework/Accelerate", False),
        ("/opt/homebrew/opt/libomp/lib/libomp.dylib", True),
        ("/venv/lib/python3.10/site-packages/torch/lib/libtorch.dylib", False),
    ],
)
def test_only_outside_libraries_are_bundled(library: str, bundled: bool) -> None:
    assert macos.must_bundle(library, frozenset({"libtorch.dylib"})) is bundled

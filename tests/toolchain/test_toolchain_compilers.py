"""Which compiler it really is: real ones, and scripts before them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.toolchain.test_cache import script
from torchmill.core.stat_cache import StatCache
from torchmill.toolchain import compiler_identity


def identity(compiler: str) -> str:
    return compiler_identity.compiler_identity(compiler, StatCache(Path("no memory")).digest)


def test_compilers_are_found_as_a_build_finds_them(tmp_path: Path) -> None:
    cc, cxx = script(tmp_path / "bin/cc"), script(tmp_path / "own/g++")
    path = f"{tmp_path}/bin"
    assert compiler_identity.chosen_compilers({"PATH": path}) == {cc}
    assert compiler_identity.chosen_compilers({"PATH": path, "CC": "", "CXX": f"nowhere {cxx} -m64"}) == {
        cc,
        cxx,
    }
    assert compiler_identity.chosen_compilers({"PATH": path, "CXX": "'"}) == {cc}


def test_a_real_compiler_is_more_than_its_driver() -> None:
    gxx = shutil.which("g++")
    if gxx is None:
        pytest.skip("there is no g++")
    said = subprocess.run([gxx, "-print-prog-name=cc1plus"], capture_output=True, text=True, check=True)
    assert Path(said.stdout.strip()).resolve() in compiler_identity._behind(gxx)


def test_another_place_is_the_same_compiler_and_another_one_behind_it_is_not(tmp_path: Path) -> None:
    found = []
    for place, behind in (("a", "1"), ("b", "1"), ("c", "2")):
        script(tmp_path / place / "cc1plus", f"# {behind}")
        asked = 'case "$1" in *cc1plus) echo "$(dirname "$0")/cc1plus";; esac'
        found.append(identity(script(tmp_path / place / "c++", asked)))
    assert found[0] == found[1] != found[2]


def test_what_is_no_compiler_is_known_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "c++"
    file.write_text("no program")
    file.chmod(0o755)
    before = identity(str(file))
    file.write_text("nor this")
    assert identity(str(file)) != before
    assert identity(os.fspath(tmp_path / "gone")) not in {"", before}


def test_the_libraries_of_clang_belong_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program is small; what compiles is in libraries."""
    library = tmp_path / "libclang-cpp.so.14"
    script(
        tmp_path / "ldd",
        f'echo "  libc.so.6 => /lib/libc.so.6 (0x0)"; echo "  {library.name} => {library} (0x0)"',
    )
    clang = script(tmp_path / "clang", f'case "$1" in *=clang) echo {tmp_path}/clang;; esac')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    library.write_text("1")
    before = identity(clang)
    library.write_text("2")
    assert identity(clang) != before

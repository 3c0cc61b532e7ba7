"""Who installed bundled libraries, and their licences."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from packageurl import PackageURL

from torchmill.wheel.pack import repair
from torchmill.wheel.pack.bundling import BundledLibrary
from torchmill.wheel.pack.repair import LibraryOwner
from torchmill.wheel.pack.staging import StagedWheel


def staged(root: Path) -> StagedWheel:
    info = root / "torch-1.0.dist-info"
    info.mkdir(parents=True)
    return StagedWheel("torch-1.0-cp310-cp310-linux_x86_64.whl", root, info, "torch", "1.0", "torch")


def library(path: Path) -> BundledLibrary:
    return BundledLibrary(f"{path.stem}-0a1b2c3d.so", f"torch/lib/{path.stem}-0a1b2c3d.so", path, "0a1b2c3d")


def owner(path: Path) -> LibraryOwner | None:
    return repair.find_owners([path])[path]


def test_each_owner_gets_a_folder_and_the_lack_of_one_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "COPYING"
    text.write_text("free")
    owners = {"libgood.so": LibraryOwner("good", (text,)), "libbare.so": LibraryOwner("bare", ())}
    monkeypatch.setattr(repair, "find_owners", lambda paths: {path: owners.get(path.name) for path in paths})
    wheel = staged(tmp_path / "stage")
    came = [library(tmp_path / name) for name in ("libgood.so", "libbare.so", "libstray.so")]
    (note,) = repair.copy_licences(wheel, came)
    assert (wheel.dist_info / "licenses/bundled/good/COPYING").read_text() == "free"
    assert "no licence file was found for libbare.so, libstray.so" in note
    assert repair.copy_licences(wheel, came[:1]) == ()


def test_what_pip_installed_is_found_by_its_record(tmp_path: Path) -> None:
    info = tmp_path / "lib/python3.11/site-packages/mkl-2022.2.1.dist-info"
    info.mkdir(parents=True)
    (info / "LICENSE.txt").write_text("Intel's")
    (info / "RECORD").write_text("../../libmkl_core.so.2,sha256=x,1\nmkl-2022.2.1.dist-info/LICENSE.txt,,\n")
    found = owner(tmp_path / "lib" / "libmkl_core.so.2")
    assert found == LibraryOwner("mkl-2022.2.1", (info / "LICENSE.txt",))
    assert owner(tmp_path / "lib" / "libmkl_core.so") is None


def test_what_debian_installed_is_found_by_its_package_manager() -> None:
    if shutil.which("dpkg-query") is None:
        pytest.skip("no dpkg here")
    (libc, *_) = sorted(Path("/usr/lib").glob("*/libc.so.6"))
    found = owner(libc.resolve())
    assert found is not None
    assert found.name == "libc6"


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs Debian or one of its children")
def test_a_library_of_the_system_is_of_a_package_of_dpkg() -> None:
    library = next(Path("/usr/lib").glob("*/libz.so.1")).resolve()
    purl = PackageURL.from_string(repair.library_purls([library])[str(library)])
    shown = ("dpkg-query", "--show", "--showformat=${Version} ${Architecture}", purl.name)
    said = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    assert purl.type == "deb"
    assert f"{purl.version} {purl.qualifiers['arch']}" in said


def test_a_library_that_pip_installed_is_of_its_project(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.10" / "site-packages"
    library = site / "nvidia" / "cublas" / "lib" / "libcublas.so.11"
    info = site / "nvidia_cublas_cu11-11.10.3.66.dist-info"
    for folder in (library.parent, info):
        folder.mkdir(parents=True)
    library.write_bytes(b"x")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cublas-cu11\nVersion: 11.10.3.66\n")
    (info / "RECORD").write_text("nvidia/cublas/lib/libcublas.so.11,,\n")
    assert repair.library_purls([library]) == {str(library): "pkg:pypi/nvidia-cublas-cu11@11.10.3.66"}


def test_what_nobody_knows_is_left_out(tmp_path: Path) -> None:
    own = tmp_path / "libown.so"
    own.write_bytes(b"x")
    assert repair.library_purls([own, tmp_path / "absent.so"]) == {}

"""The packages that libraries of this machine belong to."""

import shutil
import subprocess
from pathlib import Path

import pytest
from packageurl import PackageURL

from torchmill.wheel.pack import licences


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs Debian or one of its children")
def test_a_library_of_the_system_is_of_a_package_of_dpkg() -> None:
    library = next(Path("/usr/lib").glob("*/libz.so.1")).resolve()
    purl = PackageURL.from_string(licences.library_purls([library])[str(library)])
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
    assert licences.library_purls([library]) == {str(library): "pkg:pypi/nvidia-cublas-cu11@11.10.3.66"}


def test_what_nobody_knows_is_left_out(tmp_path: Path) -> None:
    own = tmp_path / "libown.so"
    own.write_bytes(b"x")
    assert licences.library_purls([own, tmp_path / "absent.so"]) == {}

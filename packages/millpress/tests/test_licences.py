"""The packages that installed bundled libraries, and their licences."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from millpress import licences
from millpress.licences import LicensedComponent
from millpress.staging import StagedWheel
from packageurl import PackageURL


def staged(root: Path) -> StagedWheel:
    info = root / "torch-1.0.dist-info"
    info.mkdir(parents=True)
    return StagedWheel(
        "torch-1.0-cp310-cp310-linux_x86_64.whl", root, info, "torch", "1.0", "torch"
    )


def owner(path: Path) -> LicensedComponent | None:
    return licences.find_owners([path])[path]


def purl_of(path: Path) -> PackageURL | None:
    holder = owner(path)
    return holder.purl if holder else None


def test_each_holder_has_a_folder_and_missing_licences_are_noted(tmp_path: Path) -> None:
    text = tmp_path / "COPYING"
    text.write_text("free")
    wheel = staged(tmp_path / "stage")
    holders = {
        "bundled library:torch/lib/libgood.so": LicensedComponent("good", (text,)),
        "bundled library:torch/lib/libbare.so": LicensedComponent("bare", ()),
        "static library:libstray.a": None,
        "submodule:third_party/bare": LicensedComponent("third_party/bare", ()),
    }
    copied, (note,) = licences.copy_licences(wheel, holders)
    file = "licenses/bundled/good/COPYING"
    assert copied == {"bundled library:torch/lib/libgood.so": {"licence": "", "files": [file]}}
    assert (wheel.dist_info / file).read_text() == "free"
    assert "no licence file was found for libbare.so, libstray.a:" in note
    assert licences.copy_licences(wheel, {}) == ({}, ())


def test_licence_files_of_the_same_name_are_all_copied(tmp_path: Path) -> None:
    wheel = staged(tmp_path / "stage")
    texts = {"licenses/LICENSE": "own", "licenses/vendored/LICENSE": "another's", "COPYING": "all"}
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    holder = LicensedComponent("good-1", tuple(tmp_path / name for name in texts))
    copied, _ = licences.copy_licences(wheel, {"bundled library:torch/lib/libgood.so": holder})
    names = ["COPYING", "licenses-LICENSE", "licenses-vendored-LICENSE"]
    files = [f"licenses/bundled/good-1/{name}" for name in names]
    assert copied["bundled library:torch/lib/libgood.so"]["files"] == files
    assert [(wheel.dist_info / file).read_text() for file in files] == ["all", "own", "another's"]


def test_licence_files_whose_paths_give_one_name_are_all_copied(tmp_path: Path) -> None:
    wheel = staged(tmp_path / "stage")
    names = ("fmt/LICENSE", "LICENSE", "fmt-LICENSE")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    component = LicensedComponent("good", tuple(tmp_path / name for name in names))
    copied, _ = licences.copy_licences(wheel, {"submodule:good": component})
    files = copied["submodule:good"]["files"]
    assert sorted((wheel.dist_info / file).read_text() for file in files) == sorted(names)


def test_a_submodule_has_the_licence_files_at_its_top(tmp_path: Path) -> None:
    folder = tmp_path / "third_party" / "fmt"
    (folder / "src").mkdir(parents=True)
    for name in ("LICENSE.rst", "NOTICE", "license_check.py", "README.md", "src/LICENSE"):
        (folder / name).write_text("x")
    holder = licences.find_submodule(tmp_path, "third_party/fmt")
    assert [file.name for file in holder.files] == ["LICENSE.rst", "NOTICE"]
    assert licences.find_submodule(tmp_path, "third_party/empty").files == ()


MIT = (
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this software … "
    'THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY'
)
BSD = "Redistributions of source code must retain … Redistributions in binary form must reproduce … {} DISCLAIMED"
THIRD = "Neither the name of X nor … may be used to endorse or promote products derived from it"


@pytest.mark.parametrize(
    ("texts", "licence"),
    [
        ([MIT], "MIT"),
        ([BSD.format("")], "BSD-2-Clause"),
        ([BSD.format(THIRD)], "BSD-3-Clause"),
        ([MIT, MIT], "MIT"),
        ([MIT, BSD.format("")], ""),  # either, or both
        ([f"{MIT}\n{MIT}"], ""),
        ([MIT + " and more" * 300], ""),
        (["All rights reserved."], ""),
        ([], ""),
    ],
)
def test_a_licence_is_identified_only_if_it_is_certain(
    tmp_path: Path, texts: list[str], licence: str
) -> None:
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"LICENSE.{number}")
        files[-1].write_text(text)
    assert licences.identify_licence(files) == licence


def test_a_library_of_a_package_of_pip_is_found_in_its_record(tmp_path: Path) -> None:
    info = tmp_path / "lib/python3.11/site-packages/mkl-2022.2.1.dist-info"
    info.mkdir(parents=True)
    (info / "LICENSE.txt").write_text("Intel's")
    (info / "RECORD").write_text(
        "../../libmkl_core.so.2,sha256=x,1\nmkl-2022.2.1.dist-info/LICENSE.txt,,\n"
    )
    holder = owner(tmp_path / "lib" / "libmkl_core.so.2")
    assert holder == LicensedComponent("mkl-2022.2.1", (info / "LICENSE.txt",))
    assert owner(tmp_path / "lib" / "libmkl_core.so") is None


@pytest.mark.parametrize("site", ["lib64/python3.11/site-packages", "lib/python3.11/dist-packages"])
def test_packages_of_distributions_pythons_are_searched(tmp_path: Path, site: str) -> None:
    info = tmp_path / site / "mkl-2022.2.1.dist-info"
    (info / "licenses" / "vendor").mkdir(parents=True)
    text = info / "licenses" / "vendor" / "MIT.txt"
    text.write_text("free")
    library = tmp_path / "lib" / "libmkl_core.so.2"
    recorded = os.path.relpath(library, info.parent)
    (info / "RECORD").write_text(f"{recorded},sha256=x,1\n")
    assert owner(library) == LicensedComponent("mkl-2022.2.1", (text,))


def test_a_library_of_a_debian_package_is_found_by_dpkg() -> None:
    if shutil.which("dpkg-query") is None:
        pytest.skip("no dpkg here")
    (libc, *_) = sorted(Path("/usr/lib").glob("*/libc.so.6"))
    holder = owner(libc.resolve())
    assert holder is not None
    assert holder.name == "libc6"


@pytest.mark.skipif(
    shutil.which("dpkg-query") is None, reason="needs Debian or one of its children"
)
def test_the_purl_of_a_debian_package_has_its_version() -> None:
    library = next(Path("/usr/lib").glob("*/libz.so.1")).resolve()
    purl = PackageURL.from_string(str(purl_of(library)))
    query = ("dpkg-query", "--show", "--showformat=${Version} ${Architecture}", purl.name)
    output = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    assert purl.type == "deb"
    assert f"{purl.version} {purl.qualifiers['arch']}" in output


def test_the_purl_of_a_package_of_pip_has_its_version(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.10" / "site-packages"
    library = site / "nvidia" / "cublas" / "lib" / "libcublas.so.11"
    info = site / "nvidia_cublas_cu11-11.10.3.66.dist-info"
    for folder in (library.parent, info):
        folder.mkdir(parents=True)
    library.write_bytes(b"x")
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nvidia-cublas-cu11\nVersion: 11.10.3.66\n"
    )
    (info / "RECORD").write_text("nvidia/cublas/lib/libcublas.so.11,,\n")
    assert str(purl_of(library)) == "pkg:pypi/nvidia-cublas-cu11@11.10.3.66"


def test_a_record_that_cannot_be_read_is_skipped(tmp_path: Path) -> None:
    library = tmp_path / "lib" / "libfoo.so"
    record = tmp_path / "lib" / "python3.10" / "site-packages" / "closed-1.dist-info" / "RECORD"
    record.mkdir(parents=True)  # even root cannot read a folder as a file
    library.write_bytes(b"x")
    assert owner(library) is None


def test_a_library_of_no_package_has_no_owner(tmp_path: Path) -> None:
    library = tmp_path / "libown.so"
    library.write_bytes(b"x")
    absent = tmp_path / "absent.so"
    assert licences.find_owners([library, absent]) == {library: None, absent: None}

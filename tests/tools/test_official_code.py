"""Device code is read in wheels on an index, without downloading them, and written as facts."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from tests.support import fatbins
from tests.support.changed_facts import change_facts
from tests.support.index_server import Index, serving, wheel
from tests.support.refusals import refused
from tests.support.silent_progress import SilentBar
from tools import code_files, official_code_page
from tools.official_code import (
    IndexReader,
    Reading,
    count_fatbins,
    own_targets,
    read_release,
    read_wheel_code,
)
from tools.remote_wheel import RemoteWheel, read_remote_wheels
from torchmill.config.facts import Facts
from torchmill.config.facts_reader import read_facts
from torchmill.config.wheel_code import FeatureLibrary, LibraryReading, PackageCode, WheelCode
from torchmill.fetch.package_index import IndexFile, project_files

PLATFORM = "manylinux_2_28_x86_64"
CUDA = "base/lib/libtorch_cuda.so"


def library(tmp_path: Path, *fat: bytes, padding: int = 0, data: bytes = b"") -> bytes:
    """Return a library with fatbins in their section, and `data` in another one."""
    sections = {".nv_fatbin": b"".join(fat), ".data": data + bytes(padding)}
    return fatbins.library(tmp_path / "made.so", sections).read_bytes()


def fat(*archs: int, ptx: int = 0) -> bytes:
    pieces = [fatbins.piece(arch) for arch in archs]
    return fatbins.fatbin(*pieces, *([fatbins.piece(ptx, fatbins.PTX)] if ptx else []))


def with_library(content: bytes, name: str = CUDA, requires: tuple[str, ...] = ()) -> bytes:
    stream = io.BytesIO(wheel("base", "1.0.0", version_py="cuda = '12.8'\n", requires=[*requires]))
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        archive.writestr(f"{name}.1", content)  # a link, which a wheel stores as a copy
    return stream.getvalue()


def wheels_on(index: Index, cache: Path) -> tuple[list[RemoteWheel], dict[str, IndexFile]]:
    with requests.Session() as session:
        files = project_files(session, index.url, "base")
        return list(read_remote_wheels(files, cache, SilentBar())), {
            file.name: file for file in files
        }


def readings(index: Index, cache: Path) -> list[Reading]:
    wheels, files = wheels_on(index, cache)
    with requests.Session() as session:
        return read_release(wheels, files, cache, session)


def test_fatbins_are_counted_by_their_targets(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(library(tmp_path, fat(70, 86), fat(70, 86), fat(90, ptx=90)))
    assert count_fatbins(path, everywhere=False) == {"7.0;8.6": 2, "9.0;9.0 PTX": 1}
    path.write_bytes(b"MZ" + fat(70) + b"more" + fat(70))
    assert count_fatbins(path, everywhere=False) == {"7.0": 2}, "a library of Windows"
    path.write_bytes(b"MZ without any")
    assert count_fatbins(path, everywhere=False) == {}


def test_fatbins_outside_their_section_are_found(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    lookalike = fatbins.fatbin(b"no piece" * 8)
    path.write_bytes(library(tmp_path, fat(75), data=b"1234" + fat(80) + lookalike + fat(90, 100)))
    assert count_fatbins(path, everywhere=True) == {"7.5": 1, "8.0": 1, "9.0;10.0": 1}
    assert count_fatbins(path, everywhere=False) == {"7.5": 1}


def test_a_wheel_is_read_once_and_in_parts(tmp_path: Path) -> None:
    index = Index()
    index.add(
        f"base-1.0.0-cp310-cp310-{PLATFORM}.whl", with_library(library(tmp_path, fat(70, 86)))
    )
    with serving(index):
        _, files = wheels_on(index, tmp_path)
        file = files[f"base-1.0.0-cp310-cp310-{PLATFORM}.whl"]
        with requests.Session() as session:
            code = read_wheel_code(file, tmp_path, session)
            request_count = len(index.requests)
            assert read_wheel_code(file, tmp_path, session) == code
        assert len(index.requests) == request_count
    assert [line for line in index.requests if "/files/" in line and "bytes=" not in line] == []
    assert list(code) == [CUDA], "the copy is not read"
    assert code[CUDA][1] == {"7.0;8.6": 1}


def test_damaged_content_is_refused(tmp_path: Path) -> None:
    index = Index()
    content = bytearray(with_library(library(tmp_path, fat(70, 86))))
    start = content.index(CUDA.encode()) + len(CUDA) + 40
    content[start : start + 8] = b"\xff" * 8
    index.add(f"base-1.0.0-cp310-cp310-{PLATFORM}.whl", bytes(content))
    with serving(index):
        _, files = wheels_on(index, tmp_path)
        with requests.Session() as session, refused("wheel-unreadable"):
            read_wheel_code(files[f"base-1.0.0-cp310-cp310-{PLATFORM}.whl"], tmp_path, session)
    assert not list(tmp_path.glob("*.code.json"))


def test_wheels_that_differ_by_pages_are_one_reading(tmp_path: Path) -> None:
    index = Index()
    pages = 1 << 12
    many_pages = 1 << 17
    for python, padding in (("cp310", 0), ("cp311", pages), ("cp312", many_pages)):
        content = with_library(library(tmp_path, fat(70, 86), padding=padding))
        index.add(f"base-1.0.0-{python}-{python}-{PLATFORM}.whl", content)
    index.add(
        f"base-1.0.0-cp313-cp313-{PLATFORM}.whl",
        with_library(library(tmp_path, fat(90), padding=2 * many_pages)),
    )
    with serving(index):
        first, other = readings(index, tmp_path)
    assert [name.split("-")[2] for name in first.files] == ["cp310", "cp312"], (
        "the second is like the first"
    )
    assert [name.split("-")[2] for name in other.files] == ["cp313"]
    assert (first.fatbins, other.fatbins) == ({CUDA: {"7.0;8.6": 1}}, {CUDA: {"9.0": 1}})


def test_a_wheel_without_device_code_is_identified_by_its_largest_library(tmp_path: Path) -> None:
    index = Index()
    index.add(
        "base-1.0.0-cp310-cp310-win_amd64.whl", with_library(b"MZ" * 900, "base/lib/torch_cpu.dll")
    )
    with serving(index):
        (reading,) = readings(index, tmp_path)
    assert (reading.fatbins, reading.sizes) == (
        {"base/lib/torch_cpu.dll": {}},
        {"base/lib/torch_cpu.dll": {1800}},
    )


@pytest.mark.parametrize(
    ("fatbins_of", "expected"),
    [
        ({"a": {"7.0;8.6": 9, "9.0": 1}, "b": {"5.0": 3}}, "7.0;8.6"),
        ({"a": {"3.7;5.0;3.7 PTX": 2}}, "3.7+PTX;5.0"),
        ({"a": {"9.0;9.0a;10.3f": 2}}, "9.0;9.0a;10.3f"),
        (
            {"a": {"3.5": 9}, "torch/lib/libcaffe2_detectron_ops_gpu.so": {"3.5;3.5 PTX": 1}},
            "3.5+PTX",
        ),
        ({"a": {"8.0": 1}, "torchvision.libs/libnvjpeg.93286a98.so.12": {"9.0": 5}}, "8.0"),
        ({"a": {}}, ""),
        ({}, ""),
    ],
)
def test_own_targets_are_those_of_the_largest_library(
    fatbins_of: dict[str, dict[str, int]], expected: str
) -> None:
    assert (
        own_targets(
            {
                name: LibraryReading(name, (1,), fatbins_found)
                for name, fatbins_found in fatbins_of.items()
            }
        )
        == expected
    )


def test_packages_of_libraries_are_found_with_their_exact_versions(
    small_facts: Facts, tmp_path: Path
) -> None:
    index = Index()
    required = (
        "nvidia-nccl-cu12==2.1; platform_machine == 'x86_64'",
        "nvidia-nccl-cu12==9.9; platform_machine == 'x'",
    )
    content = with_library(
        library(tmp_path, fat(70)),
        requires=(*required, "cuda-toolkit[cublas]==1.0", "nvidia-nvtx==1"),
    )
    index.add(f"base-1.0.0-cp310-cp310-{PLATFORM}.whl", content)
    meta = wheel(
        "cuda_toolkit",
        "1.0",
        requires=["nvidia-cublas==3.1.*; extra == 'cublas'", "nvidia-cufft; extra == 'x'"],
    )
    index.add("cuda_toolkit-1.0-py3-none-any.whl", meta)
    for name, version in (
        ("nvidia_cublas", "3.1.4"),
        ("nvidia_cublas", "3.1.5"),
        ("nvidia_nccl_cu12", "2.1"),
    ):
        content_of_library = with_library(
            library(tmp_path, fat(70), fat(80)), "nvidia/lib/libx.so.1"
        )
        index.add(f"{name}-{version}-py3-none-{PLATFORM}.whl", content_of_library)
    facts = change_facts(small_facts, official={"wheel_code": (), "package_code": ()})
    with serving(index):
        wheels, _ = wheels_on(index, tmp_path)
        with requests.Session() as session:
            reader = IndexReader(facts, index.url, tmp_path, session)
            (reading,) = reader.releases("base", wheels, SilentBar())
            packages = reader.libraries([reading], SilentBar())
            older = (replace(reading, date="2020-01-01"),)
            again = IndexReader(
                change_facts(facts, official={"wheel_code": older}),
                index.url,
                tmp_path,
                session,
            )
            (dated,) = again.releases("base", wheels, SilentBar())
    assert reading.required_packages == ("nvidia-cublas==3.1.5", "nvidia-nccl-cu12==2.1")
    assert (reading.cuda, reading.kernel_targets, reading.arch) == ("12.8", "7.0", "x86_64")
    assert [(package.name, dict(package.code)) for package in packages] == [
        ("nvidia-cublas", {"libx.so.1": "7.0;8.0"}),
        ("nvidia-nccl-cu12", {"libx.so.1": "7.0;8.0"}),
    ]
    assert dated.date == "2020-01-01", "an unchanged reading keeps its date"


def test_written_readings_are_read_back(shipped: Facts, tmp_path: Path) -> None:
    wheels = [reading for reading in shipped.official.wheel_code if reading.package == "torch"][:4]
    plain = WheelCode(
        "torch",
        "9.0",
        "amd64",
        ("a.whl",),
        "2026-01-01",
        {"x.dll": LibraryReading("x.dll", (3, 4), {})},
    )
    for name in ("arches", "toolkits"):
        (tmp_path / f"{name}.toml").write_text(
            (shipped.patches.parent / f"{name}.toml").read_text("utf-8"), "utf-8"
        )
    (tmp_path / "packages").mkdir()
    torch = (shipped.patches.parent / "packages" / "torch.toml").read_text("utf-8")
    (tmp_path / "packages" / "torch.toml").write_text(torch.partition("[[rule]]")[0], "utf-8")
    (tmp_path / "releases").mkdir()
    release = (shipped.patches.parent / "releases" / "1.13.1.toml").read_text("utf-8")
    (tmp_path / "releases" / "1.13.1.toml").write_text(
        release.partition("[torchvision]")[0], "utf-8"
    )
    package = PackageCode(
        "nvidia-nccl-cu12", "2.1", "x86_64", "b.whl", "2026-01-01", {"libnccl.so.2": "7.0;7.0 PTX"}
    )
    quoted = FeatureLibrary(r"lib\d*", 'the "fast" kernels', r"C:\docs")
    features = (*shipped.official.feature_libraries, quoted)
    facts = replace(shipped, official=replace(shipped.official, feature_libraries=features))
    code_files.write_wheel_code(tmp_path, "torch", [*wheels, plain])
    code_files.write_package_code(tmp_path, facts, [package])
    again = read_facts(tmp_path)
    assert list(again.official.wheel_code) == [*wheels, plain]
    assert again.official.package_code == (package,)
    assert again.official.feature_libraries == features


def test_the_page_has_a_row_for_each_reading(shipped: Facts) -> None:
    pages = official_code_page.code_pages(shipped)
    lines = [
        line for line in pages["code-torch.md"].splitlines() if line.startswith("| 1.3.1 | x86_64")
    ]
    assert len(lines) == 1
    assert "| 3.7+PTX;5.0;6.0;6.1;7.0;7.5 | 3.7 5.0 5.2 6.0 6.1 7.0 7.5 |" in lines[0]
    assert "none: without CUDA" in pages["code-torch.md"]

"""Toolkits and libraries from NVIDIA's packages on the package index."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.index_server import Index, gone_index, serving
from tests.support.nvidia_wheels import put, wheel
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from torchmill.config.facts_reader import read_facts
from torchmill.config.toolkit import ToolkitKind, ToolkitSource
from torchmill.fetch.download import http_session
from torchmill.fetch.package_index import IndexFile, parse_html_page
from torchmill.fetch.toolkit import pypi
from torchmill.fetch.toolkit.provision import ProvisionContext, install_from_providers
from torchmill.fetch.toolkit.pypi import place_wheel_member, platform_runs, usable_wheels
from torchmill.fetch.toolkit.request import ProviderOffer, ProviderRefusal, ToolkitRequest
from torchmill.host.programs import make_runner
from torchmill.host.provisioned import TOOLKIT, ProvisionRecord, format_provision_record

ARCH = platform.machine()
TAG = f"manylinux1_{ARCH}"
CUDA_H = """
#define cuMemAlloc cuMemAlloc_v2
#define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)
CUresult CUDAAPI cuInit(unsigned int Flags);
CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize);
"""
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
PARTS: Mapping[str, Mapping[str, str]] = {
    "nvidia_cuda_nvcc": {
        "bin/nvcc": NVCC,
        "bin/nvcc.profile": "TOP = ..",
        "include/fatbinary_section.h": "",
    },
    "nvidia_cuda_runtime": {
        "include/cuda.h": CUDA_H,
        "include/cuda_runtime_api.h": "",
        "lib/libcudart.so.13": "library",
        "lib/libcudart_static.a": "archive",
    },
    "nvidia_nvvm": {"nvvm/bin/cicc": "#!/bin/sh\n", "lib/libnvvm.so.4": "library"},
}

pytestmark = pytest.mark.skipif(not platform.libc_ver()[1], reason="the wheels are for glibc")


def source(kind: ToolkitKind, *packages: str, cuda: str | None = None) -> list[ToolkitSource]:
    versions = ("13.0",) if kind == "toolkit" else ()
    return [ToolkitSource("pypi", kind, versions, packages, (ARCH,), (), cuda, "")]


def test_the_password_of_an_index_is_neither_shown_nor_recorded() -> None:
    """Links of a page are relative to its address, which may contain a login."""
    (file,) = parse_html_page(
        '<a href="../x-1-py3-none-any.whl#sha256=0">x</a>', "http://user:secret@127.0.0.1:1/x/"
    )
    (usable,) = usable_wheels("x", [file], ARCH, (2, 17))
    with refused("index-unreadable") as caught, http_session() as session:
        pypi.wheel_requirements_of(usable, session)
    assert "http://127.0.0.1:1/x-1-py3-none-any.whl" in str(caught.value)
    assert "secret" not in str(caught.value)
    record = ProvisionRecord(TOOLKIT, "13.0", "13.0.88", "pypi", (usable.piece(),))
    assert "secret" not in format_provision_record(record, ARCH, "")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Serve a toolkit of three wheels and the one that requires them; configure pip's index."""
    index = Index()
    requires = [
        f'nvidia-cuda-nvcc==13.0.88.*; sys_platform == "linux" and extra == "{extra}"'
        for extra in "an"
    ]
    requires += [
        'nvidia-cuda-runtime==13.0.96.*; sys_platform == "linux" and extra == "a"',
        'nvidia-nvvm<14,>=13.0.88; extra == "a"',
        'nvidia-npp==13.0.1.2.*; extra == "npp"',
        'nvidia-windows==1; sys_platform == "win32" and extra == "a"',
    ]
    name = "cuda_toolkit-13.0.2"
    put(index, f"{name}-py2.py3-none-any.whl", wheel("x", {}, tuple(requires), name))
    for part, version in (
        ("nvidia_cuda_nvcc", "13.0.88"),
        ("nvidia_cuda_runtime", "13.0.96"),
        ("nvidia_nvvm", "13.0.88"),
    ):
        content = wheel("nvidia/cu13", PARTS[part], name=f"{part}-{version}")
        put(index, f"{part}-{version}-py3-none-{TAG}.whl", content)
        put(index, f"{part}-{version}-py3-none-win_amd64.whl", b"another system")
        put(index, f"{part}-99-py3-none-{TAG}.whl", b"another version")
    with serving(index):
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


def toolkit(cache: Path, *packages: str) -> ProviderOffer:
    """Return the offer of a toolkit; fail if there is none."""
    request = ToolkitRequest("toolkit", "13.0", None, ARCH)
    answer = pypi.offer(request, source("toolkit", *packages), cache, SilentProgress())
    assert isinstance(answer, ProviderOffer), answer
    return answer


PINNED = ("cuda-toolkit[a]==13.0.2", "nvidia-nvvm==13.0.88")


@pytest.mark.usefixtures("index")
def test_a_toolkit_consists_of_the_listed_wheels(tmp_path: Path) -> None:
    offer = toolkit(tmp_path, *PINNED)
    assert [(piece.name, piece.version) for piece in offer.pieces] == [
        ("cuda-toolkit", "13.0.2"),
        ("nvidia-nvvm", "13.0.88"),
        ("nvidia-cuda-nvcc", "13.0.88"),
        ("nvidia-cuda-runtime", "13.0.96"),
    ]
    assert {piece.file.rpartition("-")[2] for piece in offer.pieces} == {"any.whl", f"{TAG}.whl"}
    assert (offer.full, offer.provider, offer.request.version) == ("13.0.2", "pypi", "13.0")


@pytest.mark.usefixtures("index")
def test_an_extra_adds_only_its_own_requirements(tmp_path: Path) -> None:
    offer = toolkit(tmp_path, "cuda-toolkit[n]==13.0.2")
    assert [piece.name for piece in offer.pieces] == ["cuda-toolkit", "nvidia-cuda-nvcc"]


@pytest.mark.usefixtures("index")
def test_a_toolkit_becomes_one_cuda_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    toolkit(tmp_path, *PINNED).fill(home)
    output = subprocess.run([home / "bin/nvcc"], capture_output=True, text=True, check=True).stdout
    assert "release 13.0" in output
    assert not os.access(home / "bin/nvcc.profile", os.X_OK)
    assert (home / "lib64/libcudart.so").resolve().name == "libcudart.so.13"
    for pattern in ("lib/libcudart_static.a", "targets/*-linux/lib/libcudart_static.a"):
        (library,) = home.glob(pattern)
        assert library.read_text() == "archive"
    (header,) = home.glob("targets/*-linux/include/cuda_runtime_api.h")
    assert header.samefile(home / "include/cuda_runtime_api.h")
    assert os.access(home / "nvvm/bin/cicc", os.X_OK)
    assert (home / "licenses/nvidia_nvvm-13.0.88/License.txt").read_text() == "terms"
    assert not list(home.rglob("*.py"))


@pytest.mark.usefixtures("index")
def test_a_toolkit_is_installed_into_the_cache(tmp_path: Path) -> None:
    shop = ProvisionContext(
        {"pypi": pypi.offer},
        [*source("toolkit", *PINNED)],
        tmp_path,
        make_runner(os.environ),
        SilentProgress(),
    )
    brought = install_from_providers(ToolkitRequest("toolkit", "13.0", None, ARCH), shop)
    assert brought.home == tmp_path / "toolkits" / f"13.0-{ARCH}"
    assert (brought.record.full, len(brought.record.pieces)) == ("13.0.2", 4)
    stubs = brought.home / "lib64/stubs/libcuda.so"
    assert str(tmp_path).encode() not in stubs.read_bytes(), "it contains no path of its folder"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.usefixtures("index")
def test_a_program_links_with_the_stub_of_the_driver(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    toolkit(tmp_path, *PINNED).fill(home)
    code = tmp_path / "program.c"
    code.write_text("int cuInit(int); int cuMemcpyHtoD_v2_ptds(); int cuMemAlloc_v2();\n")
    with code.open("a") as file:
        file.write("int main() { return cuInit(0) + cuMemcpyHtoD_v2_ptds() + cuMemAlloc_v2(); }\n")
    stubs = home / "lib64/stubs"
    subprocess.run(["cc", code, "-o", tmp_path / "program", f"-L{stubs}", "-lcuda"], check=True)
    needed = (tmp_path / "program").read_bytes()
    assert b"libcuda.so.1\0" in needed
    assert [path.name for path in stubs.iterdir()] == ["libcuda.so"]


def library(index: Index, cache: Path, version: str) -> ProviderOffer | ProviderRefusal:
    """Request cuDNN from an index with several versions, and return the answer."""
    for name in ("8.5.0.96", "8.5.0.96-2", "8.9.7.29", "9.0.0.312.post1", "9.26.0.dev1"):
        put(index, f"nvidia_cudnn_cu11-{name}-py3-none-{TAG}.whl", name.encode())
    put(index, f"nvidia_cudnn_cu11-8.9.9.9-py3-none-{TAG}.whl", b"withdrawn", yanked="broken")
    request = ToolkitRequest("cudnn", version, "11", ARCH)
    answer = pypi.offer(
        request, source("cudnn", "nvidia-cudnn-cu11", cuda="11"), cache, SilentProgress()
    )
    assert isinstance(answer, ProviderOffer | ProviderRefusal)
    return answer


@pytest.mark.parametrize(
    ("beginning", "file", "exact"),
    [
        ("8.5.0.96", "8.5.0.96-2", "8.5.0.96"),
        ("8.5", "8.5.0.96-2", "8.5.0.96"),
        ("8", "8.9.7.29", "8.9.7.29"),
        ("9.0.0.312", "9.0.0.312.post1", "9.0.0.312"),
        ("", "9.0.0.312.post1", "9.0.0.312"),
    ],
)
def test_a_library_is_the_newest_with_the_requested_beginning(
    beginning: str, file: str, exact: str, index: Index, tmp_path: Path
) -> None:
    answer = library(index, tmp_path, beginning)
    assert isinstance(answer, ProviderOffer)
    assert [piece.file for piece in answer.pieces] == [
        f"nvidia_cudnn_cu11-{file}-py3-none-{TAG}.whl"
    ]
    assert answer.request == ToolkitRequest("cudnn", exact, "11", ARCH)


def test_available_versions_are_named_in_a_refusal(index: Index, tmp_path: Path) -> None:
    same_major = library(index, tmp_path, "8.5.1")
    assert isinstance(same_major, ProviderRefusal)
    assert same_major.reason == "it has 8.5.0.96, 8.9.7.29"
    other_major = library(index, tmp_path, "7.6.5")
    assert isinstance(other_major, ProviderRefusal)
    assert (other_major.reason, other_major.versions) == (
        "it has 8.5.0.96 to 9.0.0.312",
        ("8.5.0.96", "8.9.7.29", "9.0.0.312"),
    )


def test_a_library_is_installed_in_lib(index: Index, tmp_path: Path) -> None:
    files = {"include/nccl.h": "", "include/__init__.py": "", "lib/libnccl.so.2": "library"}
    put(index, f"nvidia_nccl_cu11-2.14.3-py3-none-{TAG}.whl", wheel("nvidia/nccl", files))
    request = ToolkitRequest("nccl", "2.14.3", "11", ARCH)
    answer = pypi.offer(
        request, source("nccl", "nvidia-nccl-cu11", cuda="11"), tmp_path, SilentProgress()
    )
    assert isinstance(answer, ProviderOffer)
    home = tmp_path / "home"
    home.mkdir()
    answer.fill(home)
    files_of_home = [path for path in home.rglob("*") if not path.is_dir()]
    assert sorted(str(path.relative_to(home)) for path in files_of_home) == [
        "include/nccl.h",
        "lib/libnccl.so",
        "lib/libnccl.so.2",
        "licenses/x-1/License.txt",
    ]


def test_a_wheel_that_is_not_the_listed_one_is_refused(index: Index, tmp_path: Path) -> None:
    offer = toolkit(tmp_path, *PINNED)
    name = next(
        name for name in index.files if name.startswith("nvidia_nvvm-13.0.88-py3-none-many")
    )
    home = tmp_path / "home"
    home.mkdir()
    content = index.files[name]
    for changed, code in (
        (content[:-7] + b"changed", "wrong-digest"),
        (content + b"more", "download-too-long"),
    ):
        index.files[name] = changed
        with refused(code):
            offer.fill(home)
    assert not list(tmp_path.rglob(name)), "a wrong file is deleted"


@pytest.mark.parametrize("length", [100, None])
def test_a_broken_download_is_resumed(index: Index, tmp_path: Path, length: int | None) -> None:
    """Also one that was killed after the last byte, of which the host has no more to send."""
    offer = toolkit(tmp_path, *PINNED)
    name = next(
        name for name in index.files if name.startswith("nvidia_nvvm-13.0.88-py3-none-many")
    )
    part = tmp_path / f"downloads/13.0-x86_64/{name}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(index.files[name][:length])
    arrived = part.stat().st_size
    home = tmp_path / "home"
    home.mkdir()
    offer.fill(home)  # without a version from the server, the digest decides
    assert f"GET /files/{name} bytes={arrived}-" in index.requests
    assert (home / "nvvm/bin/cicc").read_text() == PARTS["nvidia_nvvm"]["nvvm/bin/cicc"]


def test_a_part_of_another_file_is_downloaded_anew(index: Index, tmp_path: Path) -> None:
    offer = toolkit(tmp_path, *PINNED)
    name = next(
        name for name in index.files if name.startswith("nvidia_nvvm-13.0.88-py3-none-many")
    )
    part = tmp_path / f"downloads/13.0-x86_64/{name}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"of another")
    home = tmp_path / "home"
    home.mkdir()
    with refused("wrong-digest"):
        offer.fill(home)
    offer.fill(home)
    assert (home / "nvvm/bin/cicc").is_file()


def refusal_reason(cache: Path) -> str:
    """Return why the index has no toolkit."""
    request = ToolkitRequest("toolkit", "13.0", None, ARCH)
    answer = pypi.offer(request, source("toolkit", *PINNED), cache, SilentProgress())
    assert isinstance(answer, ProviderRefusal), answer
    return answer.reason


def test_a_part_that_the_index_lacks_is_named(index: Index, tmp_path: Path) -> None:
    for name in [name for name in index.files if name.startswith("nvidia_cuda_runtime-13")]:
        del index.files[name]
    assert refusal_reason(tmp_path).startswith(
        f"it has no nvidia-cuda-runtime==13.0.96.* for {ARCH} and glibc 2."
    )


def test_a_list_with_another_digest_is_refused(index: Index, tmp_path: Path) -> None:
    name = "cuda_toolkit-13.0.2-py2.py3-none-any.whl"
    index.files[name] = wheel("x", {}, ("nvidia-other",), "cuda_toolkit-13.0.2")
    assert refusal_reason(tmp_path) == f"its {name} is not the file that the index lists"


def test_a_file_without_a_digest_is_refused(index: Index, tmp_path: Path) -> None:
    name = next(
        name for name in index.files if name.startswith("nvidia_nvvm-13.0.88-py3-none-many")
    )
    index.attributes[name] = {"url": f"../../files/{name}"}
    assert (
        refusal_reason(tmp_path)
        == f"its index lists no sha256 of {name}, so that it could not be checked"
    )


def test_an_unreachable_index_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with gone_index() as gone:
        monkeypatch.setenv("PIP_INDEX_URL", gone.url)
        assert "/simple/cuda-toolkit/ cannot be read (connection refused)" in refusal_reason(
            tmp_path
        )


def test_toolkits_of_pypi_are_pinned() -> None:
    sources = read_facts(Path(__file__).parents[2] / "build_configs").toolkit_sources
    toolkits = [
        toolkit for toolkit in sources if (toolkit.provider, toolkit.kind) == ("pypi", "toolkit")
    ]
    assert toolkits
    for toolkit in toolkits:
        pins = [Requirement(package).specifier for package in toolkit.packages]
        assert all(str(pin).startswith("==") for pin in pins), toolkit.versions
        assert str(pins[0]).startswith(f"=={toolkit.versions[0]}.")


@pytest.mark.parametrize(
    ("platform", "fits"),
    [
        ("manylinux1_x86_64", True),
        ("manylinux2014_x86_64", True),
        ("manylinux_2_27_x86_64", True),
        ("manylinux_2_28_x86_64", False),
        ("linux_x86_64", True),
        ("any", True),
        ("manylinux2014_aarch64", False),
        ("musllinux_1_2_x86_64", False),
        ("win_amd64", False),
    ],
)
def test_platform_tags_are_compared_with_arch_and_glibc(platform: str, fits: bool) -> None:
    assert platform_runs(platform, "x86_64", (2, 27)) is fits


def file(version: str, tag: str = "manylinux2014_x86_64", *, yanked: bool = False) -> IndexFile:
    return IndexFile(f"a-{version}-py3-none-{tag}.whl", "", None, None, yanked)


def test_the_best_wheel_comes_last() -> None:
    files = [
        file("2.10"),
        file("2.9"),
        file("2.10-2"),
        file("3.0rc1"),
        file("2.11", yanked=True),
        file("2.12", "manylinux2014_aarch64"),
        IndexFile("a-2.13.tar.gz", "", None, None, yanked=False),
    ]
    wheels = usable_wheels("a", files, "x86_64", (2, 17))
    assert [(str(wheel.version), wheel.build) for wheel in wheels] == [
        ("2.9", 0),
        ("2.10", 0),
        ("2.10", 2),
    ]


@pytest.mark.parametrize(
    ("member", "place"),
    [
        ("nvidia/cu13/lib/libcudart.so.13", "lib64/libcudart.so.13"),
        ("nvidia/cublas/include/cublas_v2.h", "include/cublas_v2.h"),
        ("cusparselt/lib/libcusparseLt.so.0", "lib64/libcusparseLt.so.0"),
        ("nvidia/cuda_cupti/extras/CUPTI/include/cupti.h", "include/cupti.h"),
        ("nvidia/cu13/bin/crt/link.stub", "bin/crt/link.stub"),
        ("nvidia/cuda_nvcc/nvvm/lib64/libnvvm.so", "nvvm/lib64/libnvvm.so"),
        ("nvidia/cu13/lib/cmake/cub/cub-config.cmake", "lib64/cmake/cub/cub-config.cmake"),
        ("nvidia/cu13/include/cccl/lib/x.h", "include/cccl/lib/x.h"),
        ("a-1.dist-info/licenses/License.txt", "licenses/a-1/License.txt"),
        ("cusparselt/LICENSE.txt", "licenses/cusparselt/LICENSE.txt"),
        ("a-1.dist-info/RECORD", None),
        ("nvidia/__init__.py", None),
        ("nvidia/cudnn/include/__init__.py", None),
        ("nvidia/cu13/.metadata/sizes.txt", None),
        ("nvidia/cu13/include/", None),
        ("lib/nothing/of/a/package.so", None),
        ("nvidia/cu13/lib/../../../../outside", None),
    ],
)
def test_members_of_wheels_are_placed(member: str, place: str | None) -> None:
    assert place_wheel_member(member, "lib64") == place


def test_a_separate_library_keeps_lib() -> None:
    assert place_wheel_member("nvidia/nccl/lib/libnccl.so.2", "lib") == "lib/libnccl.so.2"

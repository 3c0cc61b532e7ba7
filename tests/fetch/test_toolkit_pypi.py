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
HERE = f"manylinux1_{ARCH}"
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


def test_the_password_of_an_index_is_in_no_message_and_in_no_record() -> None:
    """Links of a page are relative to its address, with the user and password that it was asked with."""
    (file,) = parse_html_page(
        '<a href="../x-1-py3-none-any.whl#sha256=0">x</a>', "http://user:secret@127.0.0.1:1/x/"
    )
    (found,) = usable_wheels("x", [file], ARCH, (2, 17))
    with refused("index-unreadable") as caught, http_session() as session:
        pypi.wheel_requirements_of(found, session)
    assert "http://127.0.0.1:1/x-1-py3-none-any.whl" in str(caught.value)
    assert "secret" not in str(caught.value)
    record = ProvisionRecord(TOOLKIT, "13.0", "13.0.88", "pypi", (found.piece(),))
    assert "secret" not in format_provision_record(record, ARCH, "")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Serve an index with a toolkit of three parts and what names them, and let pip use it."""
    made = Index()
    requires = [
        f'nvidia-cuda-nvcc==13.0.88.*; sys_platform == "linux" and extra == "{one}"' for one in "an"
    ]
    requires += [
        'nvidia-cuda-runtime==13.0.96.*; sys_platform == "linux" and extra == "a"',
        'nvidia-nvvm<14,>=13.0.88; extra == "a"',
        'nvidia-npp==13.0.1.2.*; extra == "npp"',
        'nvidia-windows==1; sys_platform == "win32" and extra == "a"',
    ]
    name = "cuda_toolkit-13.0.2"
    put(made, f"{name}-py2.py3-none-any.whl", wheel("x", {}, tuple(requires), name))
    for part, version in (
        ("nvidia_cuda_nvcc", "13.0.88"),
        ("nvidia_cuda_runtime", "13.0.96"),
        ("nvidia_nvvm", "13.0.88"),
    ):
        content = wheel("nvidia/cu13", PARTS[part], name=f"{part}-{version}")
        put(made, f"{part}-{version}-py3-none-{HERE}.whl", content)
        put(made, f"{part}-{version}-py3-none-win_amd64.whl", b"another system")
        put(made, f"{part}-99-py3-none-{HERE}.whl", b"another version")
    with serving(made):
        monkeypatch.setenv("PIP_INDEX_URL", made.url)
        yield made


def toolkit(cache: Path, *packages: str) -> ProviderOffer:
    """Return the offer of a toolkit; fail where there is none."""
    wanted = ToolkitRequest("toolkit", "13.0", None, ARCH)
    answer = pypi.offer(wanted, source("toolkit", *packages), cache, SilentProgress())
    assert isinstance(answer, ProviderOffer), answer
    return answer


PINNED = ("cuda-toolkit[a]==13.0.2", "nvidia-nvvm==13.0.88")


@pytest.mark.usefixtures("index")
def test_a_toolkit_is_what_its_list_names(tmp_path: Path) -> None:
    offer = toolkit(tmp_path, *PINNED)
    assert [(piece.name, piece.version) for piece in offer.pieces] == [
        ("cuda-toolkit", "13.0.2"),
        ("nvidia-nvvm", "13.0.88"),
        ("nvidia-cuda-nvcc", "13.0.88"),
        ("nvidia-cuda-runtime", "13.0.96"),
    ]
    assert {piece.file.rpartition("-")[2] for piece in offer.pieces} == {"any.whl", f"{HERE}.whl"}
    assert (offer.full, offer.provider, offer.request.version) == ("13.0.2", "pypi", "13.0")


@pytest.mark.usefixtures("index")
def test_an_extra_brings_only_its_own(tmp_path: Path) -> None:
    offer = toolkit(tmp_path, "cuda-toolkit[n]==13.0.2")
    assert [piece.name for piece in offer.pieces] == ["cuda-toolkit", "nvidia-cuda-nvcc"]


@pytest.mark.usefixtures("index")
def test_a_toolkit_becomes_one_cuda_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    toolkit(tmp_path, *PINNED).fill(home)
    said = subprocess.run([home / "bin/nvcc"], capture_output=True, text=True, check=True).stdout
    assert "release 13.0" in said
    assert not os.access(home / "bin/nvcc.profile", os.X_OK)
    assert (home / "lib64/libcudart.so").resolve().name == "libcudart.so.13"
    for same in ("lib/libcudart_static.a", "targets/*-linux/lib/libcudart_static.a"):
        (found,) = home.glob(same)
        assert found.read_text() == "archive"
    (header,) = home.glob("targets/*-linux/include/cuda_runtime_api.h")
    assert header.samefile(home / "include/cuda_runtime_api.h")
    assert os.access(home / "nvvm/bin/cicc", os.X_OK)
    assert (home / "licenses/nvidia_nvvm-13.0.88/License.txt").read_text() == "terms"
    assert not list(home.rglob("*.py"))


@pytest.mark.usefixtures("index")
def test_a_toolkit_is_brought_into_the_cache(tmp_path: Path) -> None:
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
    assert str(tmp_path).encode() not in stubs.read_bytes(), "it was made elsewhere"


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
    """Return what is answered to a wish for cuDNN; the index has several."""
    for name in ("8.5.0.96", "8.5.0.96-2", "8.9.7.29", "9.0.0.312.post1", "9.26.0.dev1"):
        put(index, f"nvidia_cudnn_cu11-{name}-py3-none-{HERE}.whl", name.encode())
    put(index, f"nvidia_cudnn_cu11-8.9.9.9-py3-none-{HERE}.whl", b"withdrawn", yanked="broken")
    wanted = ToolkitRequest("cudnn", version, "11", ARCH)
    answer = pypi.offer(
        wanted, source("cudnn", "nvidia-cudnn-cu11", cuda="11"), cache, SilentProgress()
    )
    assert isinstance(answer, ProviderOffer | ProviderRefusal)
    return answer


@pytest.mark.parametrize(
    ("asked", "file", "exact"),
    [
        ("8.5.0.96", "8.5.0.96-2", "8.5.0.96"),
        ("8.5", "8.5.0.96-2", "8.5.0.96"),
        ("8", "8.9.7.29", "8.9.7.29"),
        ("9.0.0.312", "9.0.0.312.post1", "9.0.0.312"),
        ("", "9.0.0.312.post1", "9.0.0.312"),
    ],
)
def test_a_library_is_the_newest_that_begins_as_asked(
    asked: str, file: str, exact: str, index: Index, tmp_path: Path
) -> None:
    answer = library(index, tmp_path, asked)
    assert isinstance(answer, ProviderOffer)
    assert [piece.file for piece in answer.pieces] == [
        f"nvidia_cudnn_cu11-{file}-py3-none-{HERE}.whl"
    ]
    assert answer.request == ToolkitRequest("cudnn", exact, "11", ARCH)


def test_versions_that_there_are_stand_for_one_that_is_not(index: Index, tmp_path: Path) -> None:
    near = library(index, tmp_path, "8.5.1")
    assert isinstance(near, ProviderRefusal)
    assert near.reason == "it has 8.5.0.96, 8.9.7.29"
    far = library(index, tmp_path, "7.6.5")
    assert isinstance(far, ProviderRefusal)
    assert (far.reason, far.versions) == (
        "it has 8.5.0.96 to 9.0.0.312",
        ("8.5.0.96", "8.9.7.29", "9.0.0.312"),
    )


def test_a_library_lies_in_lib(index: Index, tmp_path: Path) -> None:
    files = {"include/nccl.h": "", "include/__init__.py": "", "lib/libnccl.so.2": "library"}
    put(index, f"nvidia_nccl_cu11-2.14.3-py3-none-{HERE}.whl", wheel("nvidia/nccl", files))
    wanted = ToolkitRequest("nccl", "2.14.3", "11", ARCH)
    answer = pypi.offer(
        wanted, source("nccl", "nvidia-nccl-cu11", cuda="11"), tmp_path, SilentProgress()
    )
    assert isinstance(answer, ProviderOffer)
    home = tmp_path / "home"
    home.mkdir()
    answer.fill(home)
    found = sorted(str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir())
    assert found == [
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
    assert not list(tmp_path.rglob(name)), "what is wrong is not kept for the next try"


@pytest.mark.parametrize("length", [100, None])
def test_a_download_goes_on_where_it_broke(
    index: Index, tmp_path: Path, length: int | None
) -> None:
    """Also one that was killed when all had arrived, of which the host has no more."""
    offer = toolkit(tmp_path, *PINNED)
    name = next(
        name for name in index.files if name.startswith("nvidia_nvvm-13.0.88-py3-none-many")
    )
    part = tmp_path / f"downloads/pypi/{name}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(index.files[name][:length])
    arrived = part.stat().st_size
    home = tmp_path / "home"
    home.mkdir()
    offer.fill(home)  # the index says no version of a file: its digest has to do
    assert f"GET /files/{name} bytes={arrived}-" in index.asked
    assert (home / "nvvm/bin/cicc").read_text() == PARTS["nvidia_nvvm"]["nvvm/bin/cicc"]


def test_a_download_that_began_as_another_file_comes_anew(index: Index, tmp_path: Path) -> None:
    offer = toolkit(tmp_path, *PINNED)
    name = next(
        name for name in index.files if name.startswith("nvidia_nvvm-13.0.88-py3-none-many")
    )
    part = tmp_path / f"downloads/pypi/{name}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"of another")
    home = tmp_path / "home"
    home.mkdir()
    with refused("wrong-digest"):
        offer.fill(home)
    offer.fill(home)
    assert (home / "nvvm/bin/cicc").is_file()


def lacking(cache: Path) -> str:
    """Return why there is no toolkit."""
    wanted = ToolkitRequest("toolkit", "13.0", None, ARCH)
    answer = pypi.offer(wanted, source("toolkit", *PINNED), cache, SilentProgress())
    assert isinstance(answer, ProviderRefusal), answer
    return answer.reason


def test_a_part_that_the_index_lacks_is_named(index: Index, tmp_path: Path) -> None:
    for name in [name for name in index.files if name.startswith("nvidia_cuda_runtime-13")]:
        del index.files[name]
    assert lacking(tmp_path).startswith(
        f"it has no nvidia-cuda-runtime==13.0.96.* for {ARCH} and glibc 2."
    )


def test_a_list_that_is_not_the_listed_file_is_refused(index: Index, tmp_path: Path) -> None:
    name = "cuda_toolkit-13.0.2-py2.py3-none-any.whl"
    index.files[name] = wheel("x", {}, ("nvidia-other",), "cuda_toolkit-13.0.2")
    assert lacking(tmp_path) == f"its {name} is not the file that the index lists"


def test_a_file_without_a_digest_is_not_taken(index: Index, tmp_path: Path) -> None:
    name = next(
        name for name in index.files if name.startswith("nvidia_nvvm-13.0.88-py3-none-many")
    )
    index.attributes[name] = {"url": f"../../files/{name}"}
    assert lacking(tmp_path) == f"its index lists no sha256 of {name}, which could not be checked"


def test_an_index_that_does_not_answer_has_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with gone_index() as gone:
        monkeypatch.setenv("PIP_INDEX_URL", gone.url)
        assert "/simple/cuda-toolkit/ cannot be read (connection refused)" in lacking(tmp_path)


def test_toolkits_of_pypi_are_pinned() -> None:
    known = read_facts(Path(__file__).parents[2] / "build_configs").toolkit_sources
    toolkits = [one for one in known if (one.provider, one.kind) == ("pypi", "toolkit")]
    assert toolkits
    for one in toolkits:
        pins = [Requirement(package).specifier for package in one.packages]
        assert all(str(pin).startswith("==") for pin in pins), one.versions
        assert str(pins[0]).startswith(f"=={one.versions[0]}.")


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
def test_a_wheel_is_for_a_machine_and_its_c_library(platform: str, fits: bool) -> None:
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
    found = usable_wheels("a", files, "x86_64", (2, 17))
    assert [(str(wheel.version), wheel.build) for wheel in found] == [
        ("2.9", 0),
        ("2.10", 0),
        ("2.10", 2),
    ]


@pytest.mark.parametrize(
    ("member", "where"),
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
def test_members_go_where_a_toolkit_has_them(member: str, where: str | None) -> None:
    assert place_wheel_member(member, "lib64") == where


def test_a_library_of_its_own_keeps_lib() -> None:
    assert place_wheel_member("nvidia/nccl/lib/libnccl.so.2", "lib") == "lib/libnccl.so.2"

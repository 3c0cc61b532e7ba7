"""Installing from the first provider that has it."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.machines import made_up_programs, script
from tests.support.made_up_providers import ARCH, MadeUp, shop, source, toolkit, toolkit_request
from tests.support.refusals import refused
from torchmill.config.toolkit import ProviderPackage
from torchmill.fetch.toolkit.provision import bytes_taken, install_from_providers
from torchmill.host.provisioned import list_provisioned

pytestmark = made_up_programs

KNOWN = [source(name) for name in ("conda", "debian", "pypi")]


def test_the_first_provider_that_has_it_is_used(tmp_path: Path) -> None:
    conda, debian, pypi = MadeUp("conda"), MadeUp("debian", {"11.8": toolkit}), MadeUp("pypi")
    installed = install_from_providers(
        toolkit_request(), shop(tmp_path, KNOWN, conda, debian, pypi)
    )
    assert installed == list_provisioned(tmp_path, ARCH)["11.8"]
    assert (installed.record.provider, installed.record.full) == ("debian", "11.8.89")
    assert [piece.file for piece in installed.record.pieces] == ["11.8.pkg"]
    assert (len(conda.requests), len(debian.requests), len(pypi.requests)) == (1, 1, 0)
    assert list((tmp_path / "downloads").iterdir()) == [], "downloads are deleted"
    assert install_from_providers(toolkit_request(), shop(tmp_path, KNOWN, conda)) == installed
    assert len(conda.requests) == 1, "it is installed"


def test_the_error_lists_the_reason_of_each_provider(tmp_path: Path) -> None:
    sources = [source("conda"), source("debian", "toolkit", "11.8")]
    debian = MadeUp("debian")
    with refused("no-provider") as raised:
        install_from_providers(
            toolkit_request("11.7"),
            shop(tmp_path, sources, MadeUp("conda"), debian, MadeUp("pypi")),
        )
    assert str(raised.value).splitlines()[1:4] == [
        "  conda: its host cannot be reached (no answer in 5 s)",
        "  debian: it has CUDA 11.8",
        "  pypi: it has no toolkit",
    ]
    assert debian.requests == [], "the facts rule it out"


def test_a_library_is_installed_under_its_exact_version(tmp_path: Path) -> None:
    def cudnn(folder: Path) -> None:
        for name in ("include/cudnn.h", "lib/libcudnn.so"):
            (folder / name).parent.mkdir()
            (folder / name).touch()

    sources = [source("pypi", "cudnn", cuda="11")]
    first = install_from_providers(
        toolkit_request("8.5", "cudnn", "11"),
        shop(tmp_path, sources, MadeUp("pypi", {"8.5.0.96": cudnn})),
    )
    assert first.name == "cudnn-8.5.0.96-cu11"
    unable = MadeUp("pypi", {"8.5.0.96": partial(pytest.fail, "it is installed")})
    assert (
        install_from_providers(toolkit_request("", "cudnn", "11"), shop(tmp_path, sources, unable))
        == first
    )


@pytest.mark.parametrize(
    "missing", ["bin/nvcc", "include/cuda_runtime_api.h", "lib64/libcudart.so"]
)
def test_an_incomplete_toolkit_does_not_appear(tmp_path: Path, missing: str) -> None:
    def torn(folder: Path) -> None:
        toolkit(folder)
        (folder / missing).unlink()

    with refused("incomplete-toolkit"):
        install_from_providers(
            toolkit_request(), shop(tmp_path, KNOWN, MadeUp("debian", {"11.8": torn}))
        )
    assert list_provisioned(tmp_path, ARCH) == {}
    assert (tmp_path / f"downloads/11.8-{ARCH}/11.8.pkg").is_file(), "kept for the next try"


def test_an_installation_leaves_the_downloads_of_others(tmp_path: Path) -> None:
    """Two versions of a library may be made from the same file, which both have downloaded."""

    def nccl(folder: Path) -> None:
        for name in ("include/nccl.h", "lib/libnccl.so"):
            (folder / name).parent.mkdir()
            (folder / name).touch()

    def install_other_while_reading(folder: Path) -> None:
        (archive,) = tmp_path.glob("downloads/*/shared.pkg")
        other = MadeUp("pypi", {"2.21": nccl}, file_name="shared.pkg")
        install_from_providers(
            toolkit_request("2.21", "nccl", "12"), shop(tmp_path, sources, other)
        )
        assert archive.read_bytes() == b"downloaded"
        nccl(folder)

    sources = [source("pypi", "nccl", cuda="12")]
    provider = MadeUp("pypi", {"2.20": install_other_while_reading}, file_name="shared.pkg")
    install_from_providers(toolkit_request("2.20", "nccl", "12"), shop(tmp_path, sources, provider))
    assert sorted(list_provisioned(tmp_path, ARCH)) == ["nccl-2.20-cu12", "nccl-2.21-cu12"]
    assert list((tmp_path / "downloads").iterdir()) == []


def test_an_interruption_says_how_to_resume(tmp_path: Path) -> None:
    def stopped(folder: Path) -> None:
        toolkit(folder)
        raise KeyboardInterrupt

    with refused("interrupted"):
        install_from_providers(
            toolkit_request(), shop(tmp_path, KNOWN, MadeUp("debian", {"11.8": stopped}))
        )
    assert list_provisioned(tmp_path, ARCH) == {}


def test_an_nvcc_that_does_not_run_as_its_version_is_refused(tmp_path: Path) -> None:
    def foreign(folder: Path) -> None:
        toolkit(folder)
        script(folder / "bin", "nvcc", "echo wrong machine; exit 126")

    for put in (partial(toolkit, version="11.7"), foreign):
        with refused("nvcc-does-not-run"):
            install_from_providers(
                toolkit_request(), shop(tmp_path, KNOWN, MadeUp("debian", {"11.8": put}))
            )
    assert list_provisioned(tmp_path, ARCH) == {}


def test_a_host_compiler_is_found_by_its_name(tmp_path: Path) -> None:
    def gcc(folder: Path) -> None:
        script(folder / "bin", "g++-11", "true")

    sources = [source("debian", "compiler", "gcc-11")]
    installed = install_from_providers(
        toolkit_request("gcc-11", "compiler"),
        shop(tmp_path, sources, MadeUp("debian", {"gcc-11": gcc})),
    )
    assert installed.home == tmp_path / f"toolkits/gcc-11-{ARCH}"
    sources = [source("debian", "compiler", "gcc-12")]
    with refused("incomplete-toolkit"):
        install_from_providers(
            toolkit_request("gcc-12", "compiler"),
            shop(tmp_path, sources, MadeUp("debian", {"gcc-12": gcc})),
        )


def test_a_toolkit_that_cannot_fit_is_not_downloaded(tmp_path: Path) -> None:
    huge = MadeUp("debian", {"11.8": partial(pytest.fail, "begun")}, size=2**60)
    with refused("disk-full"):
        install_from_providers(toolkit_request(), shop(tmp_path / "not" / "yet", KNOWN, huge))


def test_unpacked_packages_take_more_room_than_downloads() -> None:
    def one(provider: str) -> ProviderPackage:
        return ProviderPackage(provider, "nvcc", "1", "nvcc", "", "0", 1000)

    assert bytes_taken([one("debian")]) > bytes_taken([one("pypi")]) > 2000
    assert bytes_taken([one("debian"), one("pypi")]) == bytes_taken([one("debian")]) + bytes_taken(
        [one("pypi")]
    )

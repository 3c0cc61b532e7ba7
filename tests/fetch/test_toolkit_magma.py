"""MAGMA from packages: its name, its GPU code, and its files."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.support.fatbins import piece
from tests.support.made_up_magma import header, install, static
from tests.support.made_up_providers import ARCH, MadeUp, shop, source
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.served_gpus import unserved_capabilities
from torchmill.fetch.toolkit.layout import placer
from torchmill.fetch.toolkit.provision import ProvisionContext, install_from_providers
from torchmill.fetch.toolkit.request import ToolkitRequest
from torchmill.host.provisioned import list_provisioned

NAME = "magma-2.6.1-cu118-7.0_8.6+PTX"
MAGMA = source("conda", "magma", cuda="11.8")


def magma_request(version: str = "2.6.1", listed: str = "") -> ToolkitRequest:
    return ToolkitRequest("magma", version, "11.8", ARCH, listed)


def offering(
    cache: Path, facts: Facts, put: Callable[[Path], None] = install, *codes: str
) -> ProvisionContext:
    sources = [replace(MAGMA, capabilities=codes)]
    return replace(
        shop(cache, sources, MadeUp("conda", {"2.6.1": put})),
        find_unserved=partial(unserved_capabilities, facts),
    )


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("include/magma_v2.h", "include/magma_v2.h"),
        ("usr/include/magma.h", "include/magma.h"),
        ("lib/libmagma.a", "lib/libmagma.a"),
        ("usr/lib/x86_64-linux-gnu/libmagma.a", "lib/libmagma.a"),
        ("usr/lib/libmagma.so.2", None),
        ("lib/libmagma_sparse.a", None),
        ("usr/include/magma.mod", None),
        ("lib/pkgconfig/magma.pc", None),
    ],
)
def test_headers_and_the_static_library_are_placed(path: str, place: str | None) -> None:
    assert placer("magma")(path) == place


def test_its_name_lists_the_capabilities(tmp_path: Path, shipped: Facts) -> None:
    installed = install_from_providers(magma_request("2.6"), offering(tmp_path, shipped))
    assert (installed.name, list_provisioned(tmp_path, ARCH)) == (NAME, {NAME: installed})
    assert (installed.record.kind, installed.record.version, installed.home.name) == (
        "magma",
        "2.6.1",
        f"{NAME}-{ARCH}",
    )
    unable = offering(tmp_path, shipped, lambda _: pytest.fail("it is kept"))
    assert install_from_providers(magma_request(listed="7.5;8.9"), unable) == installed
    assert install_from_providers(magma_request(""), unable) == installed


def test_magmas_of_other_capabilities_are_installed_beside_it(
    tmp_path: Path, shipped: Facts
) -> None:
    first = install_from_providers(magma_request(), offering(tmp_path, shipped))

    def older(folder: Path) -> None:
        install(folder)
        (folder / "lib/libmagma.a").unlink()
        static(folder / "lib/libmagma.a", (piece(61),))

    second = install_from_providers(magma_request(listed="6.1"), offering(tmp_path, shipped, older))
    assert (
        {first.name, second.name}
        == set(list_provisioned(tmp_path, ARCH))
        == {NAME, "magma-2.6.1-cu118-6.1"}
    )


def test_magma_without_the_capabilities_is_not_downloaded(tmp_path: Path, shipped: Facts) -> None:
    unable = offering(tmp_path, shipped, lambda _: pytest.fail("it does not serve"), "5.0", "7.0")
    with refused("no-provider") as raised:
        install_from_providers(magma_request(listed="7.0;8.0"), unable)
    assert "\n  conda: it has code for 5.0;7.0, but none for 8.0\n" in str(raised.value)
    assert "`-- --set MAGMA_HOME=FOLDER`" in str(raised.value)


def test_magma_that_proves_to_lack_capabilities_is_not_kept(tmp_path: Path, shipped: Facts) -> None:
    with refused("magma-lacks-capability"):
        install_from_providers(magma_request(listed="5.0;7.0"), offering(tmp_path, shipped))
    assert list_provisioned(tmp_path, ARCH) == {}


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (
            lambda folder: (folder / "include/magma_types.h").write_text(header("2.7.0")),
            "wrong-magma-version",
        ),
        (lambda folder: (folder / "include/magma_types.h").unlink(), "wrong-magma-version"),
        (lambda folder: static(folder / "lib/libmagma.a", ()), "magma-without-gpu-code"),
        (lambda folder: (folder / "lib/libmagma.a").unlink(), "incomplete-toolkit"),
    ],
)
def test_a_wrong_or_incomplete_magma_is_refused(
    tmp_path: Path, shipped: Facts, spoil: Callable[[Path], object], code: str
) -> None:
    def spoilt(folder: Path) -> None:
        install(folder)
        if code == "magma-without-gpu-code":
            (folder / "lib/libmagma.a").unlink()  # ar would add to it
        spoil(folder)

    with refused(code):
        install_from_providers(magma_request(), offering(tmp_path, shipped, spoilt))
    assert list_provisioned(tmp_path, ARCH) == {}


def test_a_magma_without_a_version_is_not_to_be_requested_by_version(
    tmp_path: Path, shipped: Facts
) -> None:
    def install_unversioned(folder: Path) -> None:
        install(folder)
        (folder / "include/magma_types.h").unlink()

    with refused("wrong-magma-version") as caught:
        install_from_providers(magma_request(), offering(tmp_path, shipped, install_unversioned))
    assert "use another provider (`--from`)" in str(caught.value)

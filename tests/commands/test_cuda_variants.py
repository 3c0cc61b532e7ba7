"""Wheels for several CUDA toolkits as variants of one release: uv chooses by driver and GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from press_support import written_wheels

from tests.support import gpu_libraries, variant_clients
from tests.support.fatbins import PTX, fatbin, piece
from tests.support.made_index import Home, install, served
from tests.support.refusals import refused
from torchmill.commands import verify
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout
from torchmill.plan import variant_choice
from torchmill.wheel import dist_files, variant_metadata

TAG = "py3-none-manylinux_2_28_x86_64"
LIBRARY = "torch/lib/libtorch_cuda.so"
PLAIN = f"torch-2.15.0-{TAG}.whl"
# The code of each wheel, by the label of its version: CUDA 13 has none for GPUs before 7.5.
CUDAS = {
    "+cu126": ("12.6", (50, 60, 70, 75, 80, 86, 90)),
    "": ("12.8", (70, 75, 80, 86, 90, 100, 120)),
    "+cu130": ("13.0", (75, 80, 86, 90, 100, 120)),
}


def written(home: Home, label: str, cuda: str, *pieces: bytes) -> Path:
    """Write a wheel that was made with a CUDA toolkit, with some code for GPUs."""
    library = gpu_libraries.shared(home.path / f"code{label}" / "lib.so", [fatbin(*pieces)])
    version_module = f"cuda: str = '{cuda}'\n" if cuda else "cuda = None\n"
    files = {LIBRARY: library.read_bytes(), "torch/version.py": version_module.encode()}
    return written_wheels.made(home.dist, "torch", f"2.15.0{label}", TAG, files=files)


@pytest.fixture
def home(tmp_path: Path, shipped: Facts) -> Home:
    home = Home(tmp_path, shipped)
    for label, (cuda, numbers) in CUDAS.items():
        written(home, label, cuda, *(piece(number) for number in numbers))
    return home


def properties(home: Home) -> dict[str, Any]:
    """Return what each variant in the index needs, by its label."""
    content = home.variants_file("torch").read_bytes()
    variants = variant_metadata.parse_metadata(content, "torch")
    return {label: variant.features for label, variant in variants.items()}


def test_each_cuda_is_a_variant_for_its_drivers_and_gpus(home: Home) -> None:
    data = home.told(variants=True)
    needs = properties(home)
    assert set(needs) == {"cu126", "cu128", "cu130", "null"}
    drivers = {
        label: features.get(("nvidia", variant_choice.LOWER_BOUND), ())
        for label, features in needs.items()
    }
    # 12.6 has all drivers of its major version, 12.8 only those that would choose it
    assert drivers == {"cu126": ("12.0",), "cu128": ("12.8",), "cu130": ("13.0",), "null": ()}
    assert "70_real" in needs["cu126"]["nvidia", "sm_arch"]
    assert "70_real" not in needs["cu130"]["nvidia", "sm_arch"]
    # pip would prefer a version with a label, on any machine
    assert {cost["release"] for cost in data["wheel_variants"]} == {"torch 2.15.0"}
    assert [name for name in home.names("torch") if "+" in name] == []
    verify.verify_wheels(Layout(home.path, home.path / "cache")).require()
    again = home.told(variants=True)
    assert (again["written"], again["removed"]) == ([], [])


def test_uv_chooses_the_cuda_by_driver_and_gpu(home: Home, tmp_path: Path) -> None:
    home.index(variants=True)
    variants = variant_metadata.parse_metadata(
        home.variants_file("torch").read_bytes(), "torch"
    ).values()
    choices = {
        ("8.6", "11.8"): "null",
        ("8.6", "12.4"): "cu126",
        ("8.6", "12.8"): "cu128",
        ("8.6", "13.0"): "cu130",
        ("8.6", "13.2"): "cu130",
        ("5.2", "13.0"): "cu126",  # the last CUDA with code for it
        ("7.0", "13.0"): "cu128",
        ("12.0", "12.4"): "null",
        ("12.0", "12.8"): "cu128",
        ("13.0", "13.2"): "null",
    }
    with served(home.out) as port:
        url = f"http://127.0.0.1:{port}/"
        for (capability, driver), expected in choices.items():
            variables = variant_clients.forced(capability, driver)
            label = variant_clients.pip_install(
                tmp_path, url, "torch==2.15.0", variables, *variant_clients.PREVIEW
            )
            assert label == expected, (capability, driver)
            machine = variant_choice.machine_properties([capability], driver)
            assert variant_choice.choose_variant(variants, machine).label == expected
        install("pip", tmp_path / "pip", ["--no-deps", "--index-url", url, "torch==2.15.0"])
        assert variant_clients.installed_label(tmp_path / "pip") == ""


def test_named_gpus_get_slim_variants_of_each_cuda(home: Home, tmp_path: Path) -> None:
    home.index(variants=True, arch_list="7.0;8.0")
    needs = properties(home)
    slim = {"cu126_sm70", "cu126_sm80", "cu128_sm70", "cu128_sm80", "cu130_sm80"}
    assert set(needs) == slim | {"cu126", "cu128", "cu130", "null"}
    # a GPU that has a variant of its own gets no other of the same CUDA
    assert "80_real" not in needs["cu130"]["nvidia", "sm_arch"]
    assert "90_real" in needs["cu130"]["nvidia", "sm_arch"]
    manifest = dist_files.read_manifest(home.dist / f"torch-2.15.0-{TAG}-cu130_sm80.whl")
    assert "7.0" not in manifest["wheel_variant"]["original_gpus"]
    verify.verify_wheels(Layout(home.path, home.path / "cache")).require()
    again = home.told(variants=True, arch_list="7.0;8.0")
    assert (again["written"], again["removed"]) == ([], [])
    choices = {
        ("8.9", "13.0"): "cu130_sm80",
        ("9.0", "13.0"): "cu130",
        ("7.0", "13.0"): "cu128_sm70",
        ("7.5", "13.0"): "cu130",
        ("8.6", "12.4"): "cu126_sm80",
    }
    with served(home.out) as port:
        for (capability, driver), expected in choices.items():
            label = variant_clients.pip_install(
                tmp_path,
                f"http://127.0.0.1:{port}/",
                "torch==2.15.0",
                variant_clients.forced(capability, driver),
                *variant_clients.PREVIEW,
            )
            assert label == expected, (capability, driver)


def test_a_variant_that_was_removed_is_made_again(home: Home) -> None:
    home.index(variants=True, arch_list="8.0")
    for label in ("cu130", "cu130_sm80"):
        wheel = home.dist / f"torch-2.15.0-{TAG}-{label}.whl"
        content = wheel.read_bytes()
        wheel.unlink()
        home.index(variants=True, arch_list="8.0")
        assert wheel.read_bytes() == content


def test_all_gpus_may_have_variants_of_their_own(home: Home) -> None:
    every = "5.0;6.0;7.0;7.5;8.0;9.0;10.0;12.0"
    home.index(variants=True, arch_list=every)
    assert "cu130" not in properties(home)
    again = home.told(variants=True, arch_list=every)
    assert (again["written"], again["removed"]) == ([], [])


def test_gpus_that_no_wheel_has_code_for_are_refused(home: Home) -> None:
    with refused("capability-not-in-wheel"):
        home.index(variants=True, arch_list="8.0;3.5")


def test_ptx_alone_is_no_code_of_a_release(tmp_path: Path, shipped: Facts) -> None:
    """The driver would have to compile it: another CUDA of the release may have the code itself."""
    home = Home(tmp_path, shipped)
    written(home, "", "12.6", piece(80), piece(90, kind=PTX))
    written(home, "+cu130", "13.0", piece(80), piece(120))
    home.index(variants=True)
    needs = properties(home)
    assert needs["cu126"]["nvidia", "sm_arch"] == tuple(f"{number}_real" for number in (80, 86, 89))
    assert "120_real" in needs["cu130"]["nvidia", "sm_arch"]


def test_the_cuda_of_a_wheel_may_be_in_its_version_alone(tmp_path: Path, shipped: Facts) -> None:
    """That of PyPI's torchvision, whose file name has no label, and whose module asks torch."""
    home = Home(tmp_path, shipped)
    library = gpu_libraries.shared(tmp_path / "lib.so", [fatbin(piece(80))]).read_bytes()
    version = b"__version__ = '0.29.2+cu132'\nif _check():\n    cuda = _check()\n"
    files = {"torchvision/_C.so": library, "torchvision/version.py": version}
    written_wheels.made(home.dist, "torchvision", "0.29.2", TAG, files=files)
    home.index(variants=True, arch_list="8.0")
    (wheel,) = home.dist.glob("*-cu132_sm80.whl")
    variant = variant_metadata.read_variant(wheel)
    assert variant is not None
    assert variant.features["nvidia", variant_choice.LOWER_BOUND] == ("13.0",)


def test_a_wheel_without_cuda_may_be_the_one_for_pip(tmp_path: Path, shipped: Facts) -> None:
    home = Home(tmp_path, shipped)
    files = {"torch/version.py": b"cuda = None\n"}
    written_wheels.made(home.dist, "torch", "2.15.0", TAG, files=files)
    for label in ("+cu126", "+cu130"):
        cuda, numbers = CUDAS[label]
        written(home, label, cuda, *(piece(number) for number in numbers))
    home.index(variants=True)
    assert set(properties(home)) == {"cu126", "cu130", "null"}


def test_a_cuda_that_is_there_twice_is_named(home: Home) -> None:
    written(home, "+cu128", "12.8", piece(80))
    data = home.told(variants=True)
    assert any("cu128" in warning and PLAIN in warning for warning in data["warnings"])
    assert set(properties(home)) == {"cu126", "cu128", "cu130", "null"}


def test_labels_without_a_wheel_for_pip_stay_versions(tmp_path: Path, shipped: Facts) -> None:
    home = Home(tmp_path, shipped)
    for label in ("+cu126", "+cu130"):
        cuda, numbers = CUDAS[label]
        written(home, label, cuda, *(piece(number) for number in numbers))
    home.index(variants=True)
    assert sorted(home.names("torch")) == [
        f"torch-2.15.0{label}-{TAG}.whl" for label in ("+cu126", "+cu130")
    ]

"""The matrix of an extension names wheels that exist, and what can be built."""

import pytest

from torchmill.commands import package_matrix as view
from torchmill.config.facts import Facts
from torchmill.plan.package_matrix import (
    NO_RELEASE,
    TorchCell,
    newest_pure_wheel,
    package_matrix,
)


def cells_of(facts: Facts, package: str, arch: str = "x86_64") -> dict[tuple[str, str], TorchCell]:
    cells = package_matrix(facts, facts.packages[package], arch)
    return {(cell.torch.version, cell.variant): cell for cell in cells}


@pytest.mark.parametrize(
    ("package", "torch", "variant", "mark"),
    [
        ("flash-attn", "2.11.0", "cu130", "tried"),
        ("flash-attn", "2.15.0", "cu130", "?"),
        ("flash-attn", "2.15.0", "cpu", "no"),
        ("flash-attn", "2.8.0", "cu128", "said?"),
        ("flash-attn", "1.12.1", "cu113", "said"),
        ("xformers", "2.11.0", "cu128", "wheel?"),
        ("xformers", "2.9.1", "cu128", "wheel"),
        ("torch-scatter", "2.8.0", "cu126", "said+"),
    ],
)
def test_a_mark_tells_of_wheels_and_of_builds(
    shipped: Facts, package: str, torch: str, variant: str, mark: str
) -> None:
    assert view.cell_mark(cells_of(shipped, package)[torch, variant]) == mark


def test_a_torch_without_a_release_may_have_wheels(shipped: Facts) -> None:
    cell = cells_of(shipped, "xformers")["2.9.1", "cu128"]
    assert (cell.release, cell.reason, cell.pythons) == (None, NO_RELEASE, ())
    assert cell.wheels["3.12"].arguments == "xformers==0.0.33.post2"
    assert "3.13t" not in cell.wheels, "its wheels are of the stable ABI"


def test_only_toolkits_of_the_official_torch_count(shipped: Facts) -> None:
    # 0.0.35 goes with every torch from 2.10 on, but with CUDA 12 alone.
    variants = {variant for torch, variant in cells_of(shipped, "xformers") if torch == "2.15.0"}
    assert "cu128" not in variants


def test_the_newest_torch_comes_first_and_cpu_before_toolkits(shipped: Facts) -> None:
    keys = list(cells_of(shipped, "torch-scatter"))
    newest = shipped.releases["torch"][-1]
    assert keys[0] == (newest.version, "cpu")


def test_other_machines_have_their_own_wheels(shipped: Facts) -> None:
    cell = cells_of(shipped, "torch-scatter", "aarch64")["2.8.0", "cpu"]
    assert cell.wheels["3.12"].file.endswith("-linux_aarch64.whl")
    assert not cells_of(shipped, "flash-attn", "aarch64")["2.8.0", "cu129"].wheels


def test_wheels_without_compiled_code_are_no_wheels_of_a_toolkit(shipped: Facts) -> None:
    wheel = newest_pure_wheel(shipped, shipped.packages["gsplat"])
    assert wheel is not None
    assert wheel.file == "gsplat-1.5.3-py3-none-any.whl"
    assert not cells_of(shipped, "gsplat")["2.15.0", "cu130"].wheels


@pytest.mark.parametrize("package", ["flash-attn", "xformers", "gsplat", "mmcv"])
def test_the_tables_fit_a_terminal(shipped: Facts, package: str) -> None:
    text = str(view.show_package_matrix(shipped, shipped.packages[package], "x86_64"))
    tables, _, _ = text.partition("invoke ")
    assert max(len(line) for line in tables.splitlines()) <= 80


def test_every_extension_has_a_view_and_data(shipped: Facts) -> None:
    for package in shipped.packages.values():
        if package.editions:
            text = str(view.show_package_matrix(shipped, package, "x86_64"))
            assert text.startswith(f"{package.name} on x86_64")
            entries = view.wheels_as_data(shipped, package, "x86_64")
            wheels = [wheel for entry in entries for wheel in entry["wheels"]]
            assert all(wheel["command"].startswith("pip install ") for wheel in wheels)

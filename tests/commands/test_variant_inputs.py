"""Wrong input of wheel variants: each kind is named, or a client gets a wheel that runs anywhere."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from press_support import written_wheels

from tests.support import documented_wheels, gpu_libraries, variant_clients
from tests.support.fatbins import PTX, fatbin, piece
from tests.support.made_index import Home, served
from tests.support.refusals import refused
from torchmill.commands import slim
from torchmill.commands.explain_variant import explain_variant
from torchmill.config.facts import Facts
from torchmill.config.wheel_variants import VariantProperty, WheelVariant
from torchmill.core.paths import Layout
from torchmill.wheel import variant_metadata

PLATFORM = "manylinux_2_28_x86_64"
LIBRARY = "torch/lib/libtorch_cuda.so"
TAG = f"py3-none-{PLATFORM}"


def fat_wheel(home: Home, *pieces: bytes) -> Path:
    library = gpu_libraries.shared(home.path / "code" / "lib.so", [fatbin(*pieces)])
    files = {LIBRARY: library.read_bytes(), "torch/version.py": b"cuda = '13.2'\n"}
    return written_wheels.made(home.dist, "torch", "2.15.0", TAG, files=files)


def variant_wheel(home: Home, tag: str, variant: WheelVariant) -> Path:
    """Write a variant for a Python by hand."""

    def add(members: dict[str, bytes]) -> None:
        content = variant_metadata.compose_metadata([variant])
        documented_wheels.add(members, "torch-2.15.0.dist-info/variant.json", content)

    wheel = written_wheels.made(home.path / "made", "torch", "2.15.0", tag, change=add)
    home.dist.mkdir(exist_ok=True)
    return wheel.rename(home.dist / f"{wheel.stem}-{variant.label}.whl")


def test_two_variants_with_one_label_are_refused(tmp_path: Path, small_facts: Facts) -> None:
    """The wheels for two Pythons use one label for different machines."""
    home = Home(tmp_path, small_facts)
    for python, number in (("cp310", 86), ("cp311", 90)):
        tag = f"{python}-{python}-{PLATFORM}"
        written_wheels.made(home.dist, "torch", "2.15.0", tag)
        code = VariantProperty("nvidia", "sm_arch", f"{number}_real")
        variant_wheel(home, tag, WheelVariant("gpu", (code,)))
    with refused("variant-label-twice") as caught:
        home.index(variants=True)
    assert "86_real" in str(caught.value)
    assert "90_real" in str(caught.value)
    assert not home.out.exists() or not list(home.out.glob("**/*.html"))


def test_two_labels_for_the_same_machines_are_refused(tmp_path: Path, small_facts: Facts) -> None:
    home = Home(tmp_path, small_facts)
    written_wheels.made(home.dist, "torch", "2.15.0", TAG)
    code = VariantProperty("nvidia", "sm_arch", "86_real")
    for label in ("first", "second"):
        variant_wheel(home, TAG, WheelVariant(label, (code,)))
    with refused("variant-twice"):
        home.index(variants=True)


def test_without_ptx_newer_gpus_get_the_null_variant(tmp_path: Path, shipped: Facts) -> None:
    home = Home(tmp_path, shipped)
    fat_wheel(home, piece(80), piece(90))
    with refused("capability-not-in-wheel") as caught:
        home.index(variants=True, arch_list="9.0;10.0")
    assert "10.0" in str(caught.value)
    assert list(home.dist.glob("*-cu132*")) == []  # refused before any of them is written
    home.index(variants=True, arch_list="9.0")
    with served(home.out) as port:
        for capability, expected in (("9.0", "cu132_sm90"), ("10.0", "null"), ("8.0", "null")):
            label = variant_clients.pip_install(
                tmp_path,
                f"http://127.0.0.1:{port}/",
                "torch==2.15.0",
                variant_clients.forced(capability),
                *variant_clients.PREVIEW,
            )
            assert label == expected, capability


def test_with_ptx_alone_a_variant_is_for_newer_drivers(tmp_path: Path, shipped: Facts) -> None:
    """The same wheel with PTX has a variant for a GPU that has no code of its own."""
    home = Home(tmp_path, shipped)
    fat_wheel(home, piece(80), piece(90, kind=PTX))
    home.index(variants=True, arch_list="8.0;9.0")
    (sm90,) = home.dist.glob("*-cu132_sm90.whl")
    variant = variant_metadata.read_variant(sm90)
    assert variant is not None
    assert variant.features["nvidia", "cuda_version_lower_bound"] == ("13.2",)


def changed_metadata(home: Home, change: dict[str, Any]) -> None:
    """Change the metadata of variants in an index by hand, and the digests on its pages."""
    file = home.variants_file("torch")
    old = file.read_bytes()
    new = json.dumps(json.loads(old) | change).encode()
    file.write_bytes(new)
    for page in home.out.glob("**/index.*"):
        text = page.read_text("utf-8")
        page.write_text(text.replace(sha256(old).hexdigest(), sha256(new).hexdigest()))


@pytest.fixture
def indexed(tmp_path: Path, shipped: Facts) -> Home:
    home = Home(tmp_path, shipped)
    fat_wheel(home, piece(80), piece(90))
    home.index(variants=True, arch_list="9.0")
    return home


def test_an_index_of_another_draft_is_refused(indexed: Home) -> None:
    changed_metadata(indexed, {"$schema": "https://example.org/v9.json"})
    layout = Layout(indexed.path, indexed.path / "cache")
    with refused("unknown-variant-draft") as caught:
        explain_variant(indexed.facts, layout, "torch", str(indexed.out))
    assert "example.org/v9.json" in str(caught.value)


def test_an_index_with_another_provider_is_refused(indexed: Home) -> None:
    names = {"namespace": ["other", "nvidia", "x86_64", "aarch64"]}
    providers = {"other": {"requires": ["other-variant-provider"]}}
    changed_metadata(indexed, {"default-priorities": names, "providers": providers})
    layout = Layout(indexed.path, indexed.path / "cache")
    with refused("unknown-variant-provider") as caught:
        explain_variant(indexed.facts, layout, "torch", str(indexed.out))
    assert "'other'" in str(caught.value)


def test_a_client_without_the_provider_gets_the_null_variant(indexed: Home, tmp_path: Path) -> None:
    """No provider of uv has such a namespace: it installs none, and leaves the variant out."""
    changed_metadata(
        indexed,
        {
            "default-priorities": {"namespace": ["other"]},
            "providers": {"other": {"requires": ["other-variant-provider"]}},
            "variants": {"cu132_sm90": {"other": {"gpu": ["h100"]}}, "null": {}},
        },
    )
    with served(indexed.out) as port:
        label = variant_clients.pip_install(
            tmp_path,
            f"http://127.0.0.1:{port}/",
            "torch==2.15.0",
            variant_clients.forced("9.0"),
            *variant_clients.PREVIEW,
        )
    assert label == "null"


def test_a_wheel_that_is_no_wheel_is_named(tmp_path: Path, shipped: Facts) -> None:
    home = Home(tmp_path, shipped)
    wheel = fat_wheel(home, piece(80))
    wheel.write_bytes(wheel.read_bytes()[:-100])
    with refused("damaged-wheel"):
        home.index(variants=True, arch_list="8.0")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, shipped: Facts) -> None:
    """Variants are written beside their wheels; a file is where that folder should be."""
    home = Home(tmp_path, shipped)
    wheel = fat_wheel(home, piece(80), piece(90))
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    layout = Layout(tmp_path, tmp_path / "cache")
    with refused("not-writable"):
        slim.slim_wheels(
            shipped, layout, wheel=[str(wheel), "9.0"], variants=True, out=str(blocked / "out")
        )

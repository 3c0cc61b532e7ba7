"""Variants for processors: uv's own providers for x86-64 and aarch64, and what may be a variant."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import described_python, documented_wheels, variant_clients
from tests.support.made_index import Home, served
from tests.support.refusals import refused
from torchmill.config import wheel_variants
from torchmill.config.facts import Facts
from torchmill.host.processor import processor_needs
from torchmill.plan import options, variant_choice
from torchmill.wheel import dist_files, variant_metadata

ANY = "py3-none-any"
X86_64_V1 = ("fpu", "cx8", "cmov", "fxsr", "sse", "sse2", "mmx", "syscall", "lm")
X86_64_V2 = (*X86_64_V1, *["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"])
X86_64_V3 = (*X86_64_V2, *["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"])
X86_64_V4 = (*X86_64_V3, *["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
ARM_VERSIONS = ("armv8.1-a", "armv8.2-a", "armv8.3-a", "armv8.4-a")


def made(folder: Path, facts: Facts, processors: Sequence[str]) -> Home:
    """Write a wheel for any processor and those for some, and an index of them as variants."""
    home = Home(folder, facts)
    documented_wheels.built(home.dist, "1.13.1+cpu", tag=ANY)
    for name in processors:
        label = name.replace("-", ".")
        wheel = documented_wheels.built(home.dist, f"1.13.1+cpu.{label}", tag=ANY)
        manifest = dist_files.read_manifest(wheel)
        processor = {"name": name, "flags": [f"-march={name}"], "needs": []}
        documented_wheels.write(wheel, manifest | {"processor": processor})
    home.index(variants=True)
    return home


def installed(folder: Path, home: Home, python: Path) -> str:
    """Return the label of what uv installs for a Python that describes a processor."""
    with served(home.out) as port:
        return variant_clients.pip_install(
            folder,
            f"http://127.0.0.1:{port}/cpu/",
            "tinytorch==1.13.1+cpu",
            {},
            *variant_clients.PREVIEW,
            python=python,
        )


def test_uv_gives_each_level_of_x86_64_its_variant(tmp_path: Path, shipped: Facts) -> None:
    levels = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
    home = made(tmp_path, shipped, levels)
    machines = {
        "null": X86_64_V1,
        "x86_64_v2": X86_64_V2,
        "x86_64_v3": X86_64_V3,
        "x86_64_v4": X86_64_V4,
    }
    for expected, features in machines.items():
        python = described_python.x86_64(tmp_path / expected, features)
        assert installed(tmp_path, home, python) == expected
        properties = variant_choice.processor_properties("x86_64", features)
        best = properties[variant_choice.X86_64, "level"][0]
        assert best == ("v1" if expected == "null" else expected.removeprefix("x86_64_"))


def arm_features(newest: str) -> list[str]:
    """Return what a client asks of processors for a version, "8.2a", and those before it."""
    features: list[str] = []
    for version, needs in wheel_variants.arm_versions().items():
        features += needs
        if version == newest:
            return features
    raise AssertionError(newest)


def test_uv_gives_each_version_of_arm_its_variant(tmp_path: Path, shipped: Facts) -> None:
    home = made(tmp_path, shipped, ARM_VERSIONS)
    assert "tinytorch-1.13.1+cpu-py3-none-any-armv8_4_a.whl" in home.names("cpu/tinytorch")
    every = described_python.HWCAPS
    machines = {
        ("8a", described_python.NEOVERSE_V1): "null",
        ("8.1a", described_python.NEOVERSE_V1): "armv8_1_a",
        ("8.2a", described_python.NEOVERSE_N1): "armv8_2_a",
        ("8.3a", described_python.NEOVERSE_V1): "armv8_3_a",
        ("8.4a", described_python.NEOVERSE_V1): "armv8_4_a",
        ("", described_python.NEOVERSE_N1): "armv8_2_a",  # the features do not make it newer
        ("", described_python.NEOVERSE_V2): "armv8_4_a",  # it is Armv9: no more is told
        ("", described_python.UNKNOWN_CORE): "null",
    }
    for number, ((version, core), expected) in enumerate(machines.items()):
        features = arm_features(version) if version else every
        python = described_python.aarch64(tmp_path / f"machine{number}", features, core)
        assert installed(tmp_path, home, python) == expected, (version, core)


def test_each_feature_of_a_version_is_asked_for(tmp_path: Path, shipped: Facts) -> None:
    """Without one of them, uv and the model tell of an older version."""
    home = made(tmp_path, shipped, ARM_VERSIONS)
    versions = list(wheel_variants.arm_versions())
    for version, needs in list(wheel_variants.arm_versions().items())[1:]:
        before = versions[versions.index(version) - 1]
        expected = "null" if before == "8a" else f"armv{before[:-1].replace('.', '_')}_a"
        for feature in needs:
            features = [name for name in arm_features("8.4a") if name != feature]
            python = described_python.aarch64(tmp_path / feature, features)
            assert installed(tmp_path, home, python) == expected, feature
            properties = variant_choice.processor_properties("aarch64", features)
            assert properties[variant_choice.AARCH64, "version"][0] == before


@pytest.mark.parametrize("processor", wheel_variants.named_processors())
def test_a_variant_needs_no_more_than_its_property_promises(processor: str) -> None:
    """What compilers take for granted of a processor, a client has asked of the machine."""
    variant = wheel_variants.processor_variant(processor)
    assert variant is not None
    (required,) = variant.properties
    needs = set(processor_needs(required.namespace, processor))
    assert needs, "the compilers' words for it are known"
    if required.namespace == "aarch64":
        assert needs <= set(arm_features(required.value))
    else:
        promised = {"v2": X86_64_V2, "v3": X86_64_V3, "v4": X86_64_V4}[required.value]
        assert needs <= set(promised)


@pytest.mark.parametrize("processor", ["neoverse-n1", "neoverse-v1", "neoverse-n2"])
def test_no_neoverse_can_be_a_variant(tmp_path: Path, shipped: Facts, processor: str) -> None:
    """Compilers use more of each than any version that a client tells of it."""
    assert wheel_variants.processor_variant(processor) is None
    needs = set(processor_needs("aarch64", processor))
    assert not needs <= set(arm_features("8.2a" if processor == "neoverse-n1" else "8.4a"))
    home = made(tmp_path, shipped, [processor])
    data = home.told(variants=True)
    assert any(f"no provider can name {processor}" in warning for warning in data["warnings"])


def test_a_file_without_the_provider_of_arm_is_read() -> None:
    """What was written before this provider was known names two of them."""
    variant = wheel_variants.processor_variant("x86-64-v3")
    assert variant is not None
    document = json.loads(variant_metadata.compose_metadata([variant]))
    del document["providers"]["aarch64"]
    document["default-priorities"]["namespace"].remove("aarch64")
    content = json.dumps(document).encode()
    assert variant_metadata.parse_metadata(content, "torch") == {variant.label: variant}


@pytest.mark.parametrize(
    ("words", "runs"),
    [
        ([], [[]]),
        (["--jobs=2"], [["--jobs=2"]]),
        (["--cpu=x86-64-v3"], [["--cpu=x86-64-v3"]]),
        (["--cpu"], [["--cpu"]]),
        (
            ["--jobs=2", "--cpu", "any,x86-64-v3", "--network"],
            [
                ["--jobs=2", "--cpu=any", "--network"],
                ["--jobs=2", "--cpu=x86-64-v3", "--network"],
            ],
        ),
        (["--cpu=x86-64-v3, x86-64-v4"], [["--cpu=x86-64-v3"], ["--cpu=x86-64-v4"]]),
    ],
)
def test_a_list_of_processors_is_a_run_for_each(words: list[str], runs: list[list[str]]) -> None:
    assert options.split_processors(words, "nox") == runs


@pytest.mark.parametrize("names", ["any,", ",", "any,any", "x86-64-v3,,x86-64-v4"])
def test_a_list_of_processors_names_each_once(names: str) -> None:
    with refused("invalid-option"):
        options.split_processors([f"--cpu={names}"], "nox")


def test_a_plan_is_for_one_processor() -> None:
    with refused("invalid-option"):
        options.parse_words(["--cpu=any,x86-64-v3"], "invoke plan", {})
    parsed, _ = options.parse_words(["--cpu=any"], "invoke plan", {})
    assert parsed.cpu is None

"""The snippet of a project: decided from the wheels that exist, and rendered for each tool."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import wheel_places
from torchmill.config.release_lookup import find_release, paired_release, partner_releases
from torchmill.deliver.snippet import tools
from torchmill.deliver.snippet.decision import (
    MissingWheel,
    _admits_numpy_2,
    build_advice,
    decide,
)
from torchmill.deliver.snippet.model import SnippetDecision, SnippetRequest, WheelPlace, WheelStock
from torchmill.deliver.snippet.platforms import find_platforms, platform_name, platforms_marker
from torchmill.deliver.snippet.stock import find_official, offers_of_index
from torchmill.deliver.snippet.tools import python_range, requirement_lines
from torchmill.deliver.templates import toml_string
from torchmill.fetch.package_index import IndexFile

GOLDEN = Path(__file__).parents[1] / "golden" / "snippets"
SERVED = WheelPlace("torchmill", "https://wheels.example.org")
FOLDER = WheelPlace("torchmill", "file:///home/me/wheels%20of%20mine", flat=True)
LINUX = ("linux/x86_64", "linux/aarch64")
ALL = (*LINUX, "macos/arm64")
X86 = "manylinux_2_28_x86_64"
ARM = "manylinux_2_28_aarch64"
MAC = "macosx_11_0_arm64"

# The values of markers in the interpreter of each platform (PEP 508).
MACHINES: Mapping[str, dict[str, str]] = {
    "linux/x86_64": {"sys_platform": "linux", "platform_machine": "x86_64"},
    "linux/aarch64": {"sys_platform": "linux", "platform_machine": "aarch64"},
    "macos/arm64": {"sys_platform": "darwin", "platform_machine": "arm64"},
    "windows/amd64": {"sys_platform": "win32", "platform_machine": "AMD64"},
}


def wheels(
    version: str, *platform_tags: str, pythons: Sequence[str] = ("310",), name: str = "torch"
) -> list[str]:
    """Return the file names of the wheels of a version."""
    files = []
    for tag in platform_tags:
        files += [f"{name}-{version}-cp{python}-cp{python}-{tag}.whl" for python in pythons]
    return files


def stock(facts: Facts, files: Sequence[str], place: WheelPlace = SERVED) -> WheelStock:
    """Return an index with wheels of these names."""
    listed = []
    for number, file in enumerate(files, 1):
        url = f"{place.url}/{file.replace('+', '%2B')}"
        listed.append(IndexFile(file, url, None, None, False, f"{number:064x}"))
    return WheelStock("dist/", place, offers_of_index(facts, listed))


def decided(
    facts: Facts,
    offered: WheelStock,
    platforms: Sequence[str] = LINUX,
    *,
    torch: str = "1.13.1",
    packages: Sequence[str] = (),
    variant: str = "cpu",
    direct: bool = False,
) -> SnippetDecision:
    """Return the decision for a release of torch and the packages that go with it."""
    base = find_release(facts, "torch", torch)
    partners = partner_releases(facts, base, packages) if packages else ()
    arches = find_platforms(facts, platforms)
    request = SnippetRequest((base, *partners), variant, arches, "x86_64", direct)
    return decide(facts, offered, request)


def pinned(decision: SnippetDecision, platform: str, python: str = "3.10") -> dict[str, str]:
    """Return the specifier or URL of each project that an installer on a platform reads.

    Fails if two lines for one project are true there.
    """
    machine = MACHINES[platform] | {"python_version": python, "python_full_version": f"{python}.0"}
    pins: dict[str, str] = {}
    for line in requirement_lines(decision):
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(machine):
            assert requirement.name not in pins, line
            pins[requirement.name] = requirement.url or str(requirement.specifier)
    return pins


def test_one_pin_serves_both_machines(shipped: Facts) -> None:
    decision = decided(shipped, stock(shipped, wheels("1.13.1+cpu", X86, ARM)))
    assert requirement_lines(decision) == ("torch==1.13.1+cpu", "numpy<2")
    assert (decision.pythons, decision.notes) == (("3.10",), ())


def test_an_official_wheel_replaces_a_missing_one(shipped: Facts) -> None:
    decision = decided(shipped, stock(shipped, wheels("1.13.1+cpu", ARM)))
    assert requirement_lines(decision) == ("torch==1.13.1+cpu", "numpy<2")
    assert [pin.place.url for pin in decision.pins] == [
        "https://download.pytorch.org/whl/cpu",
        "https://wheels.example.org",
    ]
    (note,) = decision.notes
    assert note.startswith(
        "linux/x86_64: wheels of https://download.pytorch.org/whl/cpu; for ours,"
    )
    assert note.endswith("build with `nox -s wheel-3.10-cpu`")


def test_a_project_may_have_different_versions_by_machine(shipped: Facts) -> None:
    files = wheels("2.4.0+cu118", X86) + wheels("0.19.0+cu118", X86, name="torchvision")
    decision = decided(
        shipped, stock(shipped, files), ALL, torch="2.4.0", packages=["vision"], variant="cu118"
    )
    assert pinned(decision, "linux/x86_64") == {
        "torch": "==2.4.0+cu118",
        "torchvision": "==0.19.0+cu118",
    }
    for other in ("linux/aarch64", "macos/arm64"):
        assert pinned(decision, other) == {"torch": "==2.4.0", "torchvision": "==0.19.0"}
    assert pinned(decision, "windows/amd64") == {}
    assert any("linux/aarch64: no cu118 wheel exists" in note for note in decision.notes)


def test_a_label_is_pinned_exactly_and_never_on_macos(shipped: Facts) -> None:
    files = wheels("1.13.1+cpu", X86, ARM) + wheels("1.13.1", MAC)
    decision = decided(shipped, stock(shipped, files), ALL)
    assert pinned(decision, "linux/aarch64")["torch"] == "==1.13.1+cpu"
    assert pinned(decision, "macos/arm64")["torch"] == "==1.13.1"


def test_official_aarch64_wheels_that_cannot_be_locked_are_not_used(
    shipped: Facts,
) -> None:
    with refused("no-wheel"):
        decided(shipped, stock(shipped, wheels("1.13.1+cpu", X86)))
    newer = decided(shipped, stock(shipped, wheels("2.0.0+cpu", X86)), torch="2.0.0")
    assert pinned(newer, "linux/aarch64")["torch"] == "==2.0.0"
    labelled = decided(shipped, stock(shipped, wheels("2.6.0+cpu", X86)), torch="2.6.0")
    assert requirement_lines(labelled) == ("torch==2.6.0+cpu",)


def test_packages_of_one_platform_come_from_one_place(shipped: Facts) -> None:
    files = wheels("1.13.1+cpu", X86, ARM) + wheels("0.14.1+cpu", ARM, name="torchvision")
    with refused("no-wheel"):
        decided(shipped, stock(shipped, files), packages=["torchvision"])


def test_a_wheel_that_cannot_be_built_is_refused(shipped: Facts) -> None:
    offered = stock(shipped, wheels("1.5.0+cu92", X86, pythons=["37"]))
    with refused("no-wheel"):
        decided(shipped, offered, ["macos/arm64"], torch="1.5.0", variant="cu92")


def test_a_project_has_the_pythons_of_all_its_platforms(shipped: Facts) -> None:
    files = wheels("1.13.1+cpu", X86, pythons=["39", "310", "311"]) + wheels(
        "1.13.1+cpu", ARM, pythons=["310", "311"]
    )
    decision = decided(shipped, stock(shipped, files))
    assert decision.pythons == ("3.10", "3.11")
    command = "nox -s wheel-3.9-cpu-aarch64"
    assert decision.notes == (
        f"not for Python 3.9: no wheel of torch on linux/aarch64; build with `{command}`",
    )


def test_platforms_without_a_common_python_are_refused(shipped: Facts) -> None:
    files = wheels("1.13.1+cpu", X86, pythons=["39"]) + wheels("1.13.1+cpu", ARM)
    with refused("no-common-python"):
        decided(shipped, stock(shipped, files))


@pytest.mark.parametrize(
    ("pythons", "specifier"),
    [
        (["3.10"], ">=3.10,<3.11"),
        (["3.9", "3.10", "3.11"], ">=3.9,<3.12"),
        (["3.8", "3.10", "3.13"], ">=3.8,!=3.9.*,!=3.11.*,!=3.12.*,<3.14"),
        (["3.13t"], ">=3.13,<3.14"),
    ],
)
def test_requires_python_admits_exactly_the_pythons_with_wheels(
    pythons: list[str], specifier: str
) -> None:
    assert python_range(pythons) == specifier
    versions = SpecifierSet(specifier)
    admitted = [f"3.{minor}" for minor in range(7, 16) if f"3.{minor}.5" in versions]
    assert admitted == [python.rstrip("t") for python in pythons]


def test_a_python_without_the_gil_counts_only_if_there_is_no_other(shipped: Facts) -> None:
    files = [f"torch-2.8.0+cpu-cp313-cp313{flag}-{X86}.whl" for flag in ("", "t")]
    decision = decided(shipped, stock(shipped, files), LINUX[:1], torch="2.8.0")
    assert decision.pythons == ("3.13",)
    (pin,) = decision.pins
    assert [offer.file for offer in pin.offers] == files[:1]
    alone = decided(shipped, stock(shipped, files[1:]), LINUX[:1], torch="2.8.0")
    assert alone.pythons == ("3.13t",)


def test_numpy_is_bounded_by_the_version_that_wheels_are_compiled_with(shipped: Facts) -> None:
    for torch, numpy in {"2.2.0": "numpy<2", "2.3.0": None, "2.8.0": None}.items():
        offered = stock(shipped, wheels(f"{torch}+cpu", X86))
        assert decided(shipped, offered, LINUX[:1], torch=torch).numpy == numpy, torch


@pytest.mark.parametrize(
    ("line", "admitted"),
    [
        ("numpy", True),
        ("numpy<2.5", True),
        ("numpy>=2,<2.1", True),
        ("numpy==2.1.*", True),
        ("numpy>=2.5", True),
        ("numpy<2", False),
        ("numpy==1.26.4", False),
    ],
)
def test_a_bound_on_numpy_is_read_at_any_minor_version(line: str, admitted: bool) -> None:
    assert _admits_numpy_2(Requirement(line)) is admitted


def test_wheels_for_several_machines_are_built_on_each(shipped: Facts) -> None:
    platforms = find_platforms(shipped, ALL)
    release = find_release(shipped, "torch", "2.8.0")
    request = SnippetRequest((release,), "cpu", platforms, "x86_64")
    missing = [MissingWheel("torch", "cpu", "3.10", arch) for arch in platforms]
    assert build_advice(shipped, request, missing) == (
        "build with `nox -s wheel-3.10-cpu wheel-3.10-cpu-aarch64`, and "
        "`nox -s wheel-3.10-cpu`, on macos/arm64"
    )


def test_a_foreign_label_is_a_variant_of_its_own(shipped: Facts) -> None:
    labelled = wheels("1.13.1+git49444c3", ARM)
    (unknown,) = stock(shipped, labelled).offers
    assert unknown.variant == "git49444c3"
    decision = decided(shipped, stock(shipped, labelled), LINUX[1:], variant="git49444c3")
    assert pinned(decision, "linux/aarch64")["torch"] == "==1.13.1+git49444c3"


def test_the_official_label_is_preferred_and_the_newest_rebuild_is_taken(shipped: Facts) -> None:
    files = [
        *wheels("1.13.1+cpu", X86),
        f"torch-1.13.1+cpu-2-cp310-cp310-{X86}.whl",
        f"torch-1.13.1-cp310-cp310-{X86}.whl",
    ]
    (pin,) = decided(shipped, stock(shipped, files), LINUX[:1]).pins
    assert pin.version == "1.13.1+cpu"
    assert [offer.build for offer in pin.offers] == [(2, "")]


def test_an_extension_for_several_versions_of_torch_goes_with_the_one_in_its_label(
    shipped: Facts,
) -> None:
    scatter = paired_release(shipped, "torch-scatter", find_release(shipped, "torch", "2.11.0"))
    assert scatter is not None
    files = wheels("2.11.0+cpu", X86) + [
        f"torch_scatter-{scatter.version}+cpu.torch{torch}-cp310-cp310-{X86}.whl"
        for torch in ("2.10.0", "2.11.0")
    ]
    offered = stock(shipped, files)
    decision = decided(shipped, offered, LINUX[:1], torch="2.11.0", packages=["torch-scatter"])
    assert pinned(decision, "linux/x86_64") == {
        "torch": "==2.11.0+cpu",
        "torch-scatter": f"=={scatter.version}+cpu.torch2.11.0",
    }


def test_yanked_wheels_other_packages_and_other_files_are_no_offers(shipped: Facts) -> None:
    names = [
        "torch-1.13.1.tar.gz",
        "other-1.0-py3-none-any.whl",
        f"torch-1.13.1+cpu-cp310-cp310-{X86}.whl",
    ]
    files = [IndexFile(name, f"https://e.org/{name}", None, None, True) for name in names]
    assert offers_of_index(shipped, files) == ()


def test_a_wheel_for_every_python_serves_the_pythons_of_its_release(shipped: Facts) -> None:
    (offer,) = stock(shipped, [f"torchaudio-0.7.2-py3-none-{MAC}.whl"]).offers
    release = find_release(shipped, "torchaudio", "0.7.2")
    assert offer.pythons == release.pythons


def test_a_wheel_of_the_stable_abi_serves_no_older_and_no_free_threaded_python(
    shipped: Facts,
) -> None:
    release = find_release(shipped, "torch", "2.6.0")
    assert {"3.9", "3.13t"} <= set(release.pythons)
    (offer,) = stock(shipped, [f"torch-2.6.0+cpu-cp310-abi3-{X86}.whl"]).offers
    assert offer.pythons == ("3.10", "3.11", "3.12", "3.13")


@pytest.mark.parametrize("names", [LINUX[:1], LINUX, ALL, (*ALL, "windows/amd64")])
def test_a_marker_is_true_on_exactly_the_chosen_platforms(
    shipped: Facts, names: Sequence[str]
) -> None:
    platforms = find_platforms(shipped, names)
    for bits in range(1, 2 ** len(platforms)):
        chosen = [arch for number, arch in enumerate(platforms) if bits >> number & 1]
        marker = platforms_marker(chosen, platforms)
        requirement = Requirement(f"x ; {marker}" if marker else "x")
        matching = set()
        for name in names:
            if requirement.marker is None or requirement.marker.evaluate(MACHINES[name]):
                matching.add(name)
        assert matching == {platform_name(arch) for arch in chosen}


def test_every_string_survives_toml() -> None:
    values = ['C:\\folder "x"', "tab\tand\x7f", "größer, ©, 𝄞", "line\nbreak\x01"]
    assert tomllib.loads(f"a = [{', '.join(map(toml_string, values))}]") == {"a": values}


def _torch_and_vision(facts: Facts) -> WheelStock:
    return stock(
        facts,
        wheels("1.13.1+cpu", X86, ARM) + wheels("0.14.1+cpu", X86, ARM, name="torchvision"),
        FOLDER,
    )


def _by_machine(facts: Facts) -> SnippetDecision:
    files = wheels("2.4.0+cu118", X86, pythons=["310", "311"])
    files += wheels("0.19.0+cu118", X86, pythons=["310", "311"], name="torchvision")
    offered = stock(facts, files)
    return decided(facts, offered, ALL, torch="2.4.0", packages=["vision"], variant="cu118")


# The decisions whose snippets are golden files.
CASES: Mapping[str, Callable[[Facts], SnippetDecision]] = {
    "one_pin": lambda facts: decided(facts, _torch_and_vision(facts), packages=["vision"]),
    "official_beside_ours": lambda facts: decided(
        facts, stock(facts, wheels("1.13.1+cpu", ARM), FOLDER)
    ),
    "differs_by_machine": _by_machine,
    "macos_of_ours": lambda facts: decided(
        facts, stock(facts, wheels("1.13.1+cpu", X86, ARM) + wheels("1.13.1", MAC)), ALL
    ),
    "by_address": lambda facts: decided(
        facts,
        stock(facts, wheels("1.13.1+cpu", X86, ARM, pythons=["39", "310"]), FOLDER),
        direct=True,
    ),
}


def _rendered(facts: Facts, case: str, tool: str) -> str:
    _, render = tools.snippet_tools(facts)[tool]
    return render([CASES[case](facts)])


@pytest.mark.parametrize("tool", ["uv", "poetry", "pdm", "pip", "conda", "pixi"])
@pytest.mark.parametrize("case", [*CASES])
def test_snippets_match_the_golden_files(
    shipped: Facts, case: str, tool: str, pytestconfig: pytest.Config
) -> None:
    if (case, tool) == ("by_address", "pixi"):
        with refused("pixi-needs-one-wheel"):
            _rendered(shipped, case, tool)
        return
    _compare(f"{case}.{tool}", _rendered(shipped, case, tool), pytestconfig)


@pytest.mark.parametrize("tool", ["uv", "pixi"])
def test_two_variants_are_kept_apart(
    shipped: Facts, tool: str, pytestconfig: pytest.Config
) -> None:
    decisions = _of_variants(shipped, "cpu", "cu118")
    takes_several, render = tools.snippet_tools(shipped)[tool]
    assert takes_several
    _compare(f"two_variants.{tool}", render(decisions), pytestconfig)


def _of_variants(facts: Facts, *variants: str) -> list[SnippetDecision]:
    files = []
    for variant in variants:
        files += wheels(f"2.4.0+{variant}", X86)
    offered = stock(facts, files)
    return [
        decided(facts, offered, LINUX[:1], torch="2.4.0", variant=variant) for variant in variants
    ]


@pytest.mark.parametrize("tool", ["uv", "pixi"])
def test_a_variant_with_a_dot_gets_a_valid_name(shipped: Facts, tool: str) -> None:
    _, render = tools.snippet_tools(shipped)[tool]
    text = render(_of_variants(shipped, "cpu", "rocm6.2.4"))
    data = tomllib.loads(text)
    names = data["environments"] if tool == "pixi" else data["project"]["optional-dependencies"]
    assert names.keys() == {"cpu", "rocm6-2-4"}
    assert "-e rocm6.2.4" not in text


def _compare(name: str, text: str, pytestconfig: pytest.Config) -> None:
    tool = name.rpartition(".")[2]
    extension = {"pip": "txt", "conda": "yml"}.get(tool, "toml")
    golden = GOLDEN / f"{name}.{extension}"
    if pytestconfig.getoption("--update-golden"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(f"{text}\n", encoding="utf-8")
    assert golden.read_text(encoding="utf-8") == f"{text}\n"


@pytest.mark.parametrize("case", [*CASES])
def test_conda_brings_python_and_numpy_and_pip_the_rest(shipped: Facts, case: str) -> None:
    data = yaml.safe_load(_rendered(shipped, case, "conda"))
    assert data.keys() == {"name", "channels", "dependencies"}
    *conda_specs, pip_specs = data["dependencies"]
    names = [spec.split(" ")[0].partition("<")[0] for spec in conda_specs]
    assert names == ["python", "pip", "numpy"]
    lines = _rendered(shipped, case, "pip").splitlines()
    expected = [line for line in lines if not line.startswith(("#", "numpy"))]
    assert pip_specs["pip"] == expected


# The keys of pixi.toml that snippets use, as pixi's documentation has them.
PIXI = {
    "workspace",
    "dependencies",
    "system-requirements",
    "pypi-options",
    "pypi-dependencies",
    "target",
}
PIXI_VALUES = {"version", "index", "url", "path"}


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.pixi.toml")), ids=lambda path: path.stem)
def test_pixi_files_have_only_documented_keys(path: Path) -> None:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    assert data.keys() <= PIXI | {"feature", "environments"}
    assert data["workspace"].keys() == {"name", "channels", "platforms"}
    for part in (data, *data.get("feature", {}).values()):
        for target, table in part.get("target", {}).items():
            assert target in data["workspace"]["platforms"]
            _require_pypi(table["pypi-dependencies"])
        _require_pypi(part.get("pypi-dependencies", {}))
    features = set()
    for names in data.get("environments", {}).values():
        features.update(names)
    assert features == data.get("feature", {}).keys()


def _require_pypi(table: Mapping[str, Any]) -> None:
    for value in table.values():
        SpecifierSet(value if isinstance(value, str) else value.get("version", ""))
        assert isinstance(value, str) or value.keys() <= PIXI_VALUES


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.toml")), ids=lambda path: path.stem)
def test_a_label_is_only_ever_required_exactly(path: Path) -> None:
    project = tomllib.loads(path.read_text(encoding="utf-8")).get("project", {})
    lines = project.get("dependencies", [])
    for extra in project.get("optional-dependencies", {}).values():
        lines += extra
    for line in lines:
        for specifier in Requirement(line).specifier:
            assert specifier.operator == "==" or Version(specifier.version).local is None


def test_each_table_of_official_wheels_serves_a_release(shipped: Facts) -> None:
    toolkits = [toolkit.variant for toolkit in shipped.toolkits]
    for table in shipped.offered_wheels:
        assert set(table.packages) <= shipped.packages.keys()
        assert set(table.arches) <= shipped.arches.keys()
        assert set(table.variants) <= {"cpu", "cuda", "pypi"}
        releases = [
            release
            for release in shipped.releases["torch"]
            if table.release.contains(release.version)
        ]
        for kind in table.variants:
            variants = ["cpu"] if kind == "cpu" else toolkits
            assert any(
                table in wheel_places(shipped, release, variant, arch)
                for release, variant, arch in product(releases, variants, table.arches)
            )


def test_a_toolkit_counts_if_the_release_was_officially_built_with_it(shipped: Facts) -> None:
    torch = find_release(shipped, "torch", "2.4.0")
    arch = shipped.arches["x86_64"]
    pin = find_official(shipped, torch, "cu121", arch)
    assert pin is not None
    assert pin.version == "2.4.0+cu121"
    assert pin.place.url == "https://download.pytorch.org/whl/cu121"
    assert find_official(shipped, torch, "cu122", arch) is None

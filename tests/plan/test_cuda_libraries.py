"""Which cuDNN and NCCL a build takes: the machine's, the kept ones, or torch's own source."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet

from torchmill.config import cell_lookup, matrix
from torchmill.config.delivery_model import ToolkitSource
from torchmill.config.model import Cuda, Facts, Host, Rule, When
from torchmill.plan import cuda_libraries
from torchmill.plan.constraints import CellConstraints

LINUX = Host("x86_64", "linux", 4, 2**34, complete=True)
OFFICIAL = {
    "10.2": Cuda(cudnn="7.6.5.32", nccl="2.7.8"),
    "11.7": Cuda(cudnn="8.5.0.96", magma="2.6.1"),
    "12.4": Cuda(cudnn="9.1.0.70", nccl="2.20.5", magma="2.7.2"),
}
CUDNN = ("8.5.0.96", "8.9.5.29", "9.1.0.70")
NCCL = ("2.14.3", "2.21.5")


def source(kind: str, *versions: str, cuda: str = "11") -> ToolkitSource:
    return ToolkitSource("pypi", kind, versions, (f"nvidia-{kind}",), ("x86_64",), (), cuda, "test")


def ruled(known: Facts, *rules: Rule, official: Mapping[str, Cuda] = OFFICIAL) -> Facts:
    """Return facts of a package that takes libraries from the kept ones, and of who has these."""
    package = known.packages["base"]
    taking = [Rule(name, When(cuda=SpecifierSet(">=11"), kept=(name,)), name) for name in ("cudnn", "nccl")]
    asking = Rule("magma", When(cuda=SpecifierSet(">=0"), lacking=("magma",)), "magma")
    releases = tuple(replace(one, cuda_official=official) for one in known.releases["base"])
    return replace(
        known,
        packages={
            **known.packages,
            "base": replace(package, rules=(*package.rules, *taking, asking, *rules)),
        },
        releases={**known.releases, "base": releases},
        toolkit_sources=(source("cudnn", *CUDNN), source("nccl", *NCCL)),
    )


def asked(facts: Facts, identifier: str = "wheel-3.10-cu118") -> CellConstraints:
    return CellConstraints(
        facts, cell_lookup.find_cell(facts, identifier, "x86_64", facts.releases["base"][0])
    )


def taken(facts: Facts, host: Host = LINUX) -> dict[str, str]:
    return cuda_libraries.choose_libraries(asked(facts), host, {})


def test_the_official_builds_version_is_taken(known: Facts) -> None:
    exact = {**OFFICIAL, "11.8": Cuda(cudnn="8.5.0.96", nccl="2.14.3")}
    assert taken(ruled(known, official=exact)) == {"cudnn": "8.5.0.96", "nccl": "2.14.3"}


def test_what_no_rule_takes_from_the_kept_ones_is_not_taken(known: Facts) -> None:
    facts = ruled(known)
    assert cuda_libraries.choose_libraries(asked(facts, "wheel-3.10-cu102"), LINUX, {}) == {}
    assert cuda_libraries.choose_libraries(asked(facts, "wheel-3.10-cpu"), LINUX, {}) == {}
    assert cuda_libraries.choose_libraries(CellConstraints(known, asked(facts).cell), LINUX, {}) == {}


def test_the_nearest_toolkit_of_the_same_major_version_tells_what_is_official(known: Facts) -> None:
    def official(version: str) -> tuple[str | None, str | None, str | None]:
        cell = asked(ruled(known)).cell
        found = cuda_libraries.official_libraries(replace(cell, build=replace(cell.build, cuda=version)))
        return found.cudnn, found.nccl, found.magma

    assert official("11.8") == ("8.5.0.96", "2.7.8", "2.6.1")  # NCCL is known of none of CUDA 11
    assert official("11.0") == ("8.5.0.96", "2.7.8", "2.6.1")  # all of CUDA 11 are newer
    assert official("10.1") == ("7.6.5.32", "2.7.8", None)  # nothing older is known
    assert official("13.0") == ("9.1.0.70", "2.20.5", "2.7.2")


def test_another_of_the_same_major_version_is_taken_where_the_official_one_cannot_be_had(
    known: Facts,
) -> None:
    facts = ruled(known, official={"11.8": Cuda(cudnn="8.0.5.39")})
    assert taken(facts) == {"cudnn": "8.9.5.29"}
    kept = replace(LINUX, kept={"cudnn-8.6.0.1-cu11": "/k", "cudnn-8.7.0.1-cu12": "/l", "gcc-11": "/g"})
    assert taken(facts, kept) == {"cudnn": "8.6.0.1"}
    official = replace(LINUX, kept={"cudnn-8.0.5.39-cu11": "/k"})
    assert taken(facts, official) == {"cudnn": "8.0.5.39"}


def test_nccl_of_another_version_is_no_reason_to_leave_torchs_own_source(known: Facts) -> None:
    assert "nccl" not in taken(ruled(known, official={"11.8": Cuda(cudnn="8.5.0.96", nccl="2.10.3")}))


def test_nothing_is_taken_that_nobody_has(known: Facts) -> None:
    facts = replace(ruled(known), toolkit_sources=(source("cudnn", "8.5.0.96", cuda="12"),))
    assert taken(facts) == {}


@pytest.mark.parametrize("place", ["cudnn", "cudnn@11.8"])
def test_one_of_the_machine_that_fits_goes_first(known: Facts, place: str) -> None:
    facts = ruled(known)
    assert "cudnn" not in taken(facts, replace(LINUX, libraries={place: "8.9.7"}))
    assert "cudnn" not in taken(facts, replace(LINUX, libraries={place: ""}))
    assert taken(facts, replace(LINUX, libraries={place: "9.1.0"}))["cudnn"] == "8.5.0.96"
    assert taken(facts, replace(LINUX, libraries={"cudnn@12.4": "8.9.7"}))["cudnn"] == "8.5.0.96"


def test_a_rule_says_what_fits(known: Facts) -> None:
    needs = Rule("old", When(), "its headers changed", needs={"cudnn": SpecifierSet("<8.7")})
    host = replace(LINUX, libraries={"cudnn": "8.9.7"})
    assert taken(ruled(known, needs), host)["cudnn"] == "8.5.0.96"


@pytest.mark.parametrize("name", ["CUDNN_ROOT", "USE_CUDNN", "USE_STATIC_CUDNN"])
def test_who_speaks_of_a_library_gets_what_he_says(known: Facts, name: str) -> None:
    assert "cudnn" not in cuda_libraries.choose_libraries(asked(ruled(known)), LINUX, {name: "0"})


def test_what_a_machine_lacks_is_known_of_a_whole_one(known: Facts) -> None:
    demands = asked(ruled(known))
    assert cuda_libraries.lacking_libraries(demands, LINUX, {}) == {"magma"}
    assert cuda_libraries.lacking_libraries(demands, replace(LINUX, complete=False), {}) == frozenset()
    assert (
        cuda_libraries.lacking_libraries(demands, replace(LINUX, libraries={"magma": "2.6.1"}), {})
        == frozenset()
    )
    assert cuda_libraries.lacking_libraries(demands, LINUX, {"MAGMA_HOME": "/opt/magma"}) == frozenset()


def test_a_wheel_requires_what_the_official_one_of_the_same_toolkit_does(known: Facts) -> None:
    lines = ("nvidia-cudnn-cu11==8.5.0.96", "nvidia-cublas-cu11==11.10.3.66", "nvidia-cusparselt-cu11==0.4")
    facts = ruled(known, official={"11.8": Cuda(cudnn="8.5.0.96", requires=lines)})
    assert cuda_libraries.required_nvidia_packages(asked(facts), {"cudnn": "8.5.0.96"}) == lines[:2]
    assert (
        cuda_libraries.required_nvidia_packages(asked(facts), {"cudnn": "8.5.0.96", "cusparselt": "0.4"})
        == lines
    )
    assert (
        cuda_libraries.required_nvidia_packages(asked(facts), {"cudnn": "8.9.5.29"}) == ()
    )  # it was compiled against another
    assert cuda_libraries.required_nvidia_packages(asked(facts), {}) == ()
    nearest = ruled(known, official={"11.7": Cuda(cudnn="8.5.0.96", requires=lines)})
    assert cuda_libraries.required_nvidia_packages(asked(nearest), {"cudnn": "8.5.0.96"}) == ()


def test_the_shipped_rules_take_them_for_torch_on_linux(shipped: Facts) -> None:
    release = matrix.find_release(shipped, "torch", "v1.13.1")
    wheel = cell_lookup.find_cell(shipped, "wheel-3.10-cu117", "x86_64", release)
    assert cuda_libraries.choose_libraries(CellConstraints(shipped, wheel), LINUX, {}) == {
        "cudnn": "8.5.0.96",
        "nccl": "2.14.3",
    }
    vision = cell_lookup.find_cell(shipped, "vision-3.10-cu117", "x86_64", release)
    assert cuda_libraries.choose_libraries(CellConstraints(shipped, vision), LINUX, {}) == {}
    windows = replace(LINUX, arch="amd64", system="windows")
    there = cell_lookup.find_cell(shipped, "wheel-3.10-cu117", "amd64", release)
    assert cuda_libraries.choose_libraries(CellConstraints(shipped, there), windows, {}) == {}

"""Builds with CUDA: toolkit, host compiler, cuDNN, NCCL and MAGMA, and the rules that follow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.support.hosts import change_host
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.release import Cuda
from torchmill.config.release_lookup import find_release
from torchmill.config.rule import Rule, When
from torchmill.config.served_gpus import unserved_capabilities
from torchmill.config.toolkit import ToolkitKind, ToolkitSource
from torchmill.host import provisioned
from torchmill.host.host import (
    Compiler,
    Host,
    HostCompilers,
    HostPlatform,
    HostResources,
    HostToolkits,
)
from torchmill.plan import (
    build_plan,
    cell_lookup,
    cuda_libraries,
    cuda_toolkit,
    host_compiler,
    matrix,
)
from torchmill.plan.arch_toolkits import find_toolkit
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import examination
from torchmill.plan.doctor.finding import CheckContext
from torchmill.plan.plan import Plan
from torchmill.plan.rules import CellConstraints


def cell(facts: Facts, identifier: str, tag: str = "v1.13.1") -> Cell:
    return cell_lookup.find_cell(facts, identifier, "x86_64", find_release(facts, "torch", tag))


def chosen(facts: Facts, identifier: str, asked: str | None, tag: str = "v1.13.1") -> str | None:
    return cuda_toolkit.choose_toolkit(facts, cell(facts, identifier, tag), asked, identifier)


def test_a_cell_takes_the_toolkit_of_its_variant(shipped: Facts) -> None:
    assert chosen(shipped, "wheel-3.10-cu117", None) == "11.7"
    assert chosen(shipped, "wheel-3.10-cu117", "11.7") == "11.7"
    assert chosen(shipped, "wheel-3.10-cpu", None) is None


def test_a_newer_one_of_the_same_major_version_stands_for_it_on_request(shipped: Facts) -> None:
    assert chosen(shipped, "wheel-3.10-cu117", "11.8") == "11.8"
    assert chosen(shipped, "vision-3.10-cu117", "11.8") == "11.8"


@pytest.mark.parametrize("asked", ["11.6", "10.2", "12.1"])
def test_an_older_one_or_another_major_version_does_not(shipped: Facts, asked: str) -> None:
    with refused("toolkit-cannot-replace"):
        chosen(shipped, "wheel-3.10-cu117", asked)


def test_what_is_no_toolkit_is_refused_with_what_is_near(shipped: Facts) -> None:
    with refused("unknown-toolkit") as caught:
        chosen(shipped, "wheel-3.10-cu117", "11.88")
    assert "11.8" in str(caught.value)
    with refused("unknown-toolkit"):  # as of the sample's facts
        find_toolkit(replace(shipped, toolkits=()), "--cuda", "11.8")


def test_a_build_without_cuda_has_no_toolkit_to_choose(shipped: Facts) -> None:
    with refused("toolkit-without-cuda"):
        chosen(shipped, "wheel-3.10-cpu", "11.8")


def test_a_release_that_does_not_build_with_it_says_so(shipped: Facts) -> None:
    with refused("toolkit-impossible") as caught:
        chosen(shipped, "wheel-3.12-cu130", "13.3", "v2.13.0")
    assert "arch_id" in str(caught.value)


def test_installed_ones_that_could_stand_in_are_named(shipped: Facts) -> None:
    wanted = cell(shipped, "wheel-3.10-cu117")
    assert cuda_toolkit.usable_toolkits(shipped, wanted, ["13.0", "11.8", "11.6", "11.7"]) == [
        "11.8"
    ]
    assert cuda_toolkit.usable_toolkits(shipped, wanted, []) == []


def test_a_named_folder_that_is_not_used_is_told(tmp_path: Path) -> None:
    ours, other = tmp_path / "cuda-11.8", tmp_path / "cuda-12.4"
    for folder in (ours, other):
        folder.mkdir()
    (tmp_path / "cuda").symlink_to(ours)
    host = Host(
        "x86_64",
        "linux",
        HostResources(4, 2**34),
        toolkits=HostToolkits(homes={"11.8": str(ours), "12.4": str(other)}),
    )

    def told(folder: Path, version: str | None = "11.8") -> str | None:
        return cuda_toolkit.describe_passed_over({"CUDA_HOME": str(folder)}, host, version)

    assert told(tmp_path / "cuda") is None  # it is the same folder
    assert told(other, None) is None  # a build without CUDA
    assert cuda_toolkit.describe_passed_over({}, host, "11.8") is None
    assert told(other) == (
        f"CUDA_HOME={other} holds CUDA 12.4; the build needs CUDA 11.8, which it takes from {ours}"
    )
    assert told(tmp_path) == (
        f"CUDA_HOME={tmp_path} holds no toolkit that can be used; the build needs CUDA 11.8, which it takes from {ours}"
    )
    assert told(other, "11.7") == (
        f"CUDA_HOME={other} holds CUDA 12.4; the build needs CUDA 11.7, which it finds nowhere"
    )
    whole = change_host(
        host,
        toolkits={"completed": {"11.8": f"{tmp_path}, completed with nvidia-cufft-cu11 10.9.0.58"}},
    )
    named = {"CUDA_HOME": str(tmp_path)}
    assert cuda_toolkit.describe_passed_over(named, whole, "11.8") is None, (
        "its own files are in the one that is used"
    )


KEPT_GCC = "/cache/toolkits/gcc-11-x86_64/bin/g++-11"


def gcc(version: str) -> Compiler:
    return Compiler("gcc", version)


def having(*versions: str, **others: Compiler) -> Host:
    """Return a machine with these gccs, of which the first is the usual one."""
    every = {f"g++-{version.partition('.')[0]}": gcc(version) for version in versions}
    usual = next(iter(every.values()), None)
    return Host(
        "x86_64",
        "linux",
        HostResources(4, 2**34),
        compilers=HostCompilers(default=usual, by_command=every | others),
        complete=True,
    )


def constraints(facts: Facts, identifier: str = "wheel-3.10-cu118") -> CellConstraints:
    cell = cell_lookup.find_cell(facts, identifier, "x86_64", find_release(facts, "base", "v1.0.0"))
    return CellConstraints(facts, cell)


def test_the_usual_compiler_stays_where_nvcc_takes_it(known: Facts) -> None:
    assert host_compiler.choose_host_compiler(
        constraints(known), having("11.4.0", "9.5.0"), {}
    ) == (
        gcc("11.4.0"),
        {},
    )


def test_the_newest_that_nvcc_takes_compiles_everything(known: Facts) -> None:
    compiler, variables = host_compiler.choose_host_compiler(
        constraints(known), having("12.2.0", "9.5.0", "11.4.0"), {}
    )
    assert compiler == gcc("11.4.0")
    assert variables == {"CC": "gcc-11", "CXX": "g++-11", "CUDAHOSTCXX": "g++-11"}


def test_one_that_was_brought_is_taken_by_its_place(known: Facts) -> None:
    host = having("12.2.0", **{KEPT_GCC: gcc("11.3.0")})
    compiler, variables = host_compiler.choose_host_compiler(constraints(known), host, {})
    assert compiler == gcc("11.3.0")
    assert variables["CC"] == "/cache/toolkits/gcc-11-x86_64/bin/gcc-11"
    alone = change_host(host, compilers={"default": None})
    assert host_compiler.choose_host_compiler(constraints(known), alone, {})[1]["CXX"] == KEPT_GCC


def test_the_release_has_a_say_too(known: Facts) -> None:
    package = known.packages["base"]
    rule = Rule("base.toml: rule 9", When(), "it is old", needs={"gcc": SpecifierSet("<10")})
    packages = {**known.packages, "base": replace(package, rules=(*package.rules, rule))}
    host = having("11.4.0", "9.5.0")
    assert host_compiler.choose_host_compiler(
        constraints(replace(known, packages=packages)), host, {}
    )[0] == gcc("9.5.0")


def test_nothing_is_chosen_where_nothing_fits(known: Facts) -> None:
    assert host_compiler.choose_host_compiler(
        constraints(known), having("13.2.0", "12.2.0"), {}
    ) == (
        gcc("13.2.0"),
        {},
    )


def test_a_build_without_cuda_has_the_usual_one(known: Facts) -> None:
    host = having("12.2.0", "11.4.0")
    assert host_compiler.choose_host_compiler(constraints(known, "wheel-3.10-cpu"), host, {}) == (
        gcc("12.2.0"),
        {},
    )


@pytest.mark.parametrize("name", host_compiler.COMPILER_VARIABLES)
def test_a_compiler_that_the_build_is_given_stays(known: Facts, name: str) -> None:
    host = having("12.2.0", "11.4.0")
    assert host_compiler.choose_host_compiler(constraints(known), host, {name: "g++-12"}) == (
        gcc("12.2.0"),
        {},
    )


def test_a_compiler_that_the_shell_names_stays(known: Facts) -> None:
    host = having("12.2.0", "11.4.0")
    named = change_host(host, programs={"paths": {"c++": "g++-12"}})
    assert host_compiler.choose_host_compiler(constraints(known), named, {})[1] == {}
    for_nvcc = change_host(host, compilers={"cuda": gcc("11.4.0")})
    assert host_compiler.choose_host_compiler(constraints(known), for_nvcc, {})[1] == {}
    usual = change_host(host, programs={"paths": {"c++": "c++"}})
    assert host_compiler.choose_host_compiler(constraints(known), usual, {})[1]["CXX"] == "g++-11"


def test_a_compiler_is_known_by_its_path_too(known: Facts) -> None:
    host = having("12.2.0", "11.4.0")
    for named in ("g++-11", "/usr/bin/g++-11"):
        assert host_compiler.choose_host_compiler(constraints(known), host, {"CXX": named})[
            0
        ] == gcc("11.4.0")


def test_a_clang_of_which_nothing_is_known_stays(known: Facts) -> None:
    clang = Compiler("clang", "14.0.6")
    host = change_host(having("11.4.0"), compilers={"default": clang})
    assert host_compiler.choose_host_compiler(constraints(known), host, {}) == (clang, {})


LINUX = Host("x86_64", "linux", HostResources(4, 2**34), complete=True)
OFFICIAL = {
    "10.2": Cuda(cudnn="7.6.5.32", nccl="2.7.8"),
    "11.7": Cuda(cudnn="8.5.0.96", magma="2.6.1"),
    "12.4": Cuda(cudnn="9.1.0.70", nccl="2.20.5", magma="2.7.2"),
}
CUDNN = ("8.5.0.96", "8.9.5.29", "9.1.0.70")
NCCL = ("2.14.3", "2.21.5")


def source(kind: ToolkitKind, *versions: str, cuda: str = "11") -> ToolkitSource:
    return ToolkitSource("pypi", kind, versions, (f"nvidia-{kind}",), ("x86_64",), (), cuda, "test")


def ruled(known: Facts, *rules: Rule, official: Mapping[str, Cuda] = OFFICIAL) -> Facts:
    """Return facts of a package that takes libraries from the kept ones, and of who has these."""
    package = known.packages["base"]
    taking = [
        Rule(name, When(cuda=SpecifierSet(">=11"), kept=(name,)), name)
        for name in ("cudnn", "nccl")
    ]
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


def taken(facts: Facts, host: Host = LINUX) -> dict[str, str]:
    return cuda_libraries.choose_libraries(constraints(facts), host, {}, "")


def test_the_official_builds_version_is_taken(known: Facts) -> None:
    exact = {**OFFICIAL, "11.8": Cuda(cudnn="8.5.0.96", nccl="2.14.3")}
    assert taken(ruled(known, official=exact)) == {"cudnn": "8.5.0.96", "nccl": "2.14.3"}


def test_what_no_rule_takes_from_the_kept_ones_is_not_taken(known: Facts) -> None:
    facts = ruled(known)
    assert (
        cuda_libraries.choose_libraries(constraints(facts, "wheel-3.10-cu102"), LINUX, {}, "") == {}
    )
    assert (
        cuda_libraries.choose_libraries(constraints(facts, "wheel-3.10-cpu"), LINUX, {}, "") == {}
    )
    assert (
        cuda_libraries.choose_libraries(
            CellConstraints(known, constraints(facts).cell), LINUX, {}, ""
        )
        == {}
    )


def test_the_nearest_toolkit_of_the_same_major_version_tells_what_is_official(known: Facts) -> None:
    def official(version: str) -> tuple[str | None, ...]:
        cell = constraints(ruled(known)).cell
        with_toolkit = CellConstraints(
            known, replace(cell, build=replace(cell.build, cuda=version))
        )
        return tuple(
            cuda_libraries.official_version(with_toolkit, name)
            for name in ("cudnn", "nccl", "magma")
        )

    assert official("11.8") == ("8.5.0.96", "2.7.8", "2.6.1")  # NCCL is known of none of CUDA 11
    assert official("11.0") == ("8.5.0.96", "2.7.8", "2.6.1")  # all of CUDA 11 are newer
    assert official("10.1") == ("7.6.5.32", "2.7.8", None)  # nothing older is known
    assert official("13.0") == ("9.1.0.70", "2.20.5", "2.7.2")


def test_another_of_the_same_major_version_is_taken_where_the_official_one_cannot_be_had(
    known: Facts,
) -> None:
    facts = ruled(known, official={"11.8": Cuda(cudnn="8.0.5.39")})
    assert taken(facts) == {"cudnn": "8.5.0.96"}  # the next one, of those of its major version
    kept = change_host(
        LINUX,
        toolkits={
            "provisioned": {"cudnn-8.6.0.1-cu11": "/k", "cudnn-8.7.0.1-cu12": "/l", "gcc-11": "/g"}
        },
    )
    assert taken(facts, kept) == {"cudnn": "8.6.0.1"}
    official = change_host(LINUX, toolkits={"provisioned": {"cudnn-8.0.5.39-cu11": "/k"}})
    assert taken(facts, official) == {"cudnn": "8.0.5.39"}


def test_it_is_the_next_one_which_still_knows_the_gpus_of_its_time(shipped: Facts) -> None:
    kepler = cell(shipped, "wheel-3.9-cu114")  # the official build has 8.3.2.44, which PyPI lacks
    assert (
        cuda_libraries.choose_libraries(CellConstraints(shipped, kepler), LINUX, {}, "")["cudnn"]
        == "8.5.0.96"
    )


@pytest.mark.parametrize(
    ("tag", "identifier", "listed", "version"),
    [
        ("v2.11.0", "wheel-3.12-cu128", "8.6", "9.17.1.4"),
        (
            "v2.11.0",
            "wheel-3.12-cu128",
            "6.1;8.6",
            "9.10.2.21",
        ),  # 9.11 left Maxwell, Pascal and Volta
        ("v2.3.1", "wheel-3.11-cu118", "3.7", "8.7.0.84"),
        ("v2.6.0", "wheel-3.11-cu118", "3.7", "9.1.0.70"),  # no cuDNN 9 has code for Kepler
    ],
)
def test_it_is_one_with_code_for_the_gpus_that_are_asked_for(
    shipped: Facts, tag: str, identifier: str, listed: str, version: str
) -> None:
    wanted = CellConstraints(shipped, cell(shipped, identifier, tag))
    there = change_host(LINUX, toolkits={"provisioned": {"cudnn-9.17.1.4-cu12": "/k"}})
    for host in (LINUX, there):
        assert cuda_libraries.choose_libraries(wanted, host, {}, listed)["cudnn"] == version


def test_nccl_of_another_version_is_no_reason_to_leave_torchs_own_source(known: Facts) -> None:
    assert "nccl" not in taken(
        ruled(known, official={"11.8": Cuda(cudnn="8.5.0.96", nccl="2.10.3")})
    )


def test_nothing_is_taken_that_nobody_has(known: Facts) -> None:
    facts = replace(ruled(known), toolkit_sources=(source("cudnn", "8.5.0.96", cuda="12"),))
    assert taken(facts) == {}


@pytest.mark.parametrize("place", ["cudnn", "cudnn@11.8"])
def test_one_of_the_machine_that_fits_goes_first(known: Facts, place: str) -> None:
    facts = ruled(known)
    assert "cudnn" not in taken(facts, change_host(LINUX, toolkits={"libraries": {place: "8.9.7"}}))
    assert "cudnn" not in taken(facts, change_host(LINUX, toolkits={"libraries": {place: ""}}))
    assert (
        taken(facts, change_host(LINUX, toolkits={"libraries": {place: "9.1.0"}}))["cudnn"]
        == "8.5.0.96"
    )
    assert (
        taken(facts, change_host(LINUX, toolkits={"libraries": {"cudnn@12.4": "8.9.7"}}))["cudnn"]
        == "8.5.0.96"
    )


def test_a_rule_says_what_fits(known: Facts) -> None:
    needs = Rule("old", When(), "its headers changed", needs={"cudnn": SpecifierSet("<8.7")})
    host = change_host(LINUX, toolkits={"libraries": {"cudnn": "8.9.7"}})
    assert taken(ruled(known, needs), host)["cudnn"] == "8.5.0.96"


@pytest.mark.parametrize(
    ("name", "value"), [("CUDNN_ROOT", "0"), ("USE_CUDNN", "0"), ("USE_STATIC_CUDNN", "1")]
)
def test_who_speaks_of_a_library_gets_what_he_says(known: Facts, name: str, value: str) -> None:
    assert "cudnn" not in cuda_libraries.choose_libraries(
        constraints(ruled(known)), LINUX, {name: value}, ""
    )


@pytest.mark.parametrize("off", ["0", "OFF"])
def test_who_wants_a_shared_library_gets_the_kept_one(known: Facts, off: str) -> None:
    settings = {"USE_STATIC_CUDNN": off}
    assert "cudnn" in cuda_libraries.choose_libraries(
        constraints(ruled(known)), LINUX, settings, ""
    )


def test_what_a_machine_lacks_is_known_of_a_whole_one(known: Facts) -> None:
    demands = constraints(ruled(known))
    assert cuda_libraries.lacking_libraries(demands, LINUX, {}) == {"magma"}
    assert (
        cuda_libraries.lacking_libraries(demands, replace(LINUX, complete=False), {}) == frozenset()
    )
    assert (
        cuda_libraries.lacking_libraries(
            demands, change_host(LINUX, toolkits={"libraries": {"magma": "2.6.1"}}), {}
        )
        == frozenset()
    )
    assert (
        cuda_libraries.lacking_libraries(demands, LINUX, {"MAGMA_HOME": "/opt/magma"})
        == frozenset()
    )


def test_a_wheel_requires_what_the_official_one_of_the_same_toolkit_does(known: Facts) -> None:
    lines = (
        "nvidia-cudnn-cu11==8.5.0.96",
        "nvidia-cublas-cu11==11.10.3.66",
        "nvidia-cusparselt-cu11==0.4",
    )
    facts = ruled(known, official={"11.8": Cuda(cudnn="8.5.0.96", requires=lines)})
    assert (
        cuda_libraries.required_nvidia_packages(constraints(facts), {"cudnn": "8.5.0.96"})
        == lines[:2]
    )
    assert (
        cuda_libraries.required_nvidia_packages(
            constraints(facts), {"cudnn": "8.5.0.96", "cusparselt": "0.4"}
        )
        == lines
    )
    assert (
        cuda_libraries.required_nvidia_packages(constraints(facts), {"cudnn": "8.9.5.29"}) == ()
    )  # it was compiled against another
    assert cuda_libraries.required_nvidia_packages(constraints(facts), {}) == ()
    nearest = ruled(known, official={"11.7": Cuda(cudnn="8.5.0.96", requires=lines)})
    assert (
        cuda_libraries.required_nvidia_packages(constraints(nearest), {"cudnn": "8.5.0.96"}) == ()
    )


def test_the_shipped_rules_take_them_for_torch_on_linux(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v1.13.1")
    wheel = cell_lookup.find_cell(shipped, "wheel-3.10-cu117", "x86_64", release)
    assert cuda_libraries.choose_libraries(CellConstraints(shipped, wheel), LINUX, {}, "") == {
        "cudnn": "8.5.0.96",
        "nccl": "2.14.3",
    }
    vision = cell_lookup.find_cell(shipped, "vision-3.10-cu117", "x86_64", release)
    assert cuda_libraries.choose_libraries(CellConstraints(shipped, vision), LINUX, {}, "") == {}
    windows = replace(LINUX, arch="amd64", system="windows")
    there = cell_lookup.find_cell(shipped, "wheel-3.10-cu117", "amd64", release)
    assert cuda_libraries.choose_libraries(CellConstraints(shipped, there), windows, {}, "") == {}


HOST_FOR_MAGMA = Host(
    "x86_64",
    "linux",
    HostResources(8, 2**35),
    platform=HostPlatform(glibc="2.36"),
    toolkits=HostToolkits(homes={"11.8": "/k/11.8"}),
    complete=True,
)
SEVENTY, BOTH = "magma-2.6.1-cu118-7.0", "magma-2.6.1-cu118-7.0_8.6+PTX"


def plan_with_magma(
    facts: Facts,
    kept: Sequence[str],
    listed: str = "7.0",
    *,
    host: Host = HOST_FOR_MAGMA,
    **said: str,
) -> Plan:
    cell = cell_lookup.find_cell(
        facts, "wheel-3.10-cu118", "x86_64", find_release(facts, "torch", "v2.1.0")
    )
    there = change_host(host, toolkits={"provisioned": {name: f"/k/{name}" for name in kept}})
    return build_plan.compute_plan(facts, cell, there, Options(arch_list=listed, settings=said))


@pytest.mark.parametrize(
    ("code", "listed", "missed"),
    [
        ("7.0;8.6", "7.0;8.6+PTX", []),
        ("7.0;8.6", "7.5;8.9", []),  # code of a lower minor version runs
        ("7.0;8.6", "8.0;9.0;9.0a", ["8.0", "9.0"]),
        ("7.0+PTX", "8.0;12.0", []),  # a driver compiles it
        ("7.0", "8.7", ["8.7"]),
        ("8.0", "8.7", ["8.7"]),  # a system on a chip
        ("7.0", "", []),
    ],
)
def test_code_serves_what_it_runs_on(
    shipped: Facts, code: str, listed: str, missed: list[str]
) -> None:
    assert unserved_capabilities(shipped, code, listed) == missed


def test_names_say_what_the_code_is_for() -> None:
    names = (BOTH, "cudnn-8.5.0.96-cu11", "magma-2.6.1-cu121-9.0", "magma-2.6.1-cu118")
    (found,) = provisioned.provisioned_magma(names, "11.8")
    assert (found.version, found.code) == ("2.6.1", "7.0;8.6+PTX")


def test_a_kept_one_that_serves_the_list_is_taken(shipped: Facts) -> None:
    made = plan_with_magma(shipped, [SEVENTY, BOTH, "magma-2.6.1-cu121-8.6"], "7.0;8.6")
    assert (made.variables["USE_MAGMA"], made.variables["MAGMA_HOME"]) == ("1", "${magma_home}")
    assert (made.cuda.libraries["magma"], made.cuda.provisioned["magma"]) == ("2.6.1", BOTH)
    assert (
        cuda_toolkit.cuda_placeholders(
            made, change_host(HOST_FOR_MAGMA, toolkits={"provisioned": {BOTH: "/k/both"}})
        )["magma_home"]
        == "/k/both"
    )
    assert not any("torch.linalg" in reason for reason in made.reasons)


@pytest.mark.parametrize("kept", [[], [SEVENTY], ["magma-2.6.1-cu121-8.6"], ["magma-2.6.1-cu118"]])
def test_else_it_is_switched_off_with_what_is_lost(shipped: Facts, kept: list[str]) -> None:
    made = plan_with_magma(shipped, kept, "8.6")
    assert made.variables["USE_MAGMA"] == "0"
    assert "MAGMA_HOME" not in made.variables
    assert "magma" not in made.cuda.libraries
    (reason,) = (one for one in made.reasons if "torch.linalg" in one)
    assert "`invoke toolkit --library magma-cuXYZ` brings one" in reason


def test_what_the_user_says_and_what_the_machine_has_goes_first(shipped: Facts) -> None:
    assert "magma" not in plan_with_magma(shipped, [SEVENTY], USE_MAGMA="0").cuda.libraries
    assert (
        plan_with_magma(shipped, [SEVENTY], MAGMA_HOME="/opt/magma").variables["MAGMA_HOME"]
        == "/opt/magma"
    )
    own = plan_with_magma(
        shipped,
        [SEVENTY],
        host=change_host(HOST_FOR_MAGMA, toolkits={"libraries": {"magma": "2.5.4"}}),
    )
    assert ("magma" not in own.cuda.libraries, "USE_MAGMA" not in own.variables) == (True, True)


def test_the_official_version_goes_before_newer_ones(shipped: Facts) -> None:
    names = ["magma-2.7.2-cu118-7.0", SEVENTY, "magma-2.10.0-cu118-7.0"]
    for theirs, version in (("2.6.1", "2.6.1"), ("2.5.2", "2.10.0"), (None, "2.10.0")):
        best = cuda_libraries.best_magma(shipped, names, "11.8", "7.0", theirs)
        assert best is not None
        assert best.version == version


def test_an_older_release_has_no_switch(shipped: Facts) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.7-cu102", "x86_64", find_release(shipped, "torch", "v1.9.0")
    )
    there = change_host(
        HOST_FOR_MAGMA, toolkits={"provisioned": {"magma-2.5.2-cu102-3.7_7.0": "/k/magma"}}
    )
    made = build_plan.compute_plan(shipped, cell, there, Options(arch_list="7.0"))
    assert (made.variables["MAGMA_HOME"], "USE_MAGMA" in made.variables) == ("${magma_home}", False)


@pytest.mark.parametrize(
    ("libraries", "said", "switch"),
    [
        ({}, {}, "0"),
        ({"cufile@12.4": ""}, {}, "0"),  # of another toolkit
        ({"cufile@12.8": ""}, {}, None),
        ({"cufile": ""}, {}, None),  # of the system, as Debian's
        ({}, {"USE_CUFILE": "1"}, "1"),
    ],
)
def test_cufile_is_switched_off_where_the_toolkit_has_none(
    shipped: Facts, libraries: dict[str, str], said: dict[str, str], switch: str | None
) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.12-cu128", "x86_64", find_release(shipped, "torch", "v2.9.1")
    )
    there = change_host(
        HOST_FOR_MAGMA, toolkits={"homes": {"12.8": "/k/12.8"}, "libraries": libraries}
    )
    made = build_plan.compute_plan(shipped, cell, there, Options(arch_list="8.0", settings=said))
    assert made.variables.get("USE_CUFILE") == switch
    assert any("torch.cuda.gds" in one.cost for one in made.official.shortfalls) == (switch == "0")
    bare = build_plan.compute_plan(
        shipped, cell, change_host(there, toolkits={"homes": {}}), Options(arch_list="8.0")
    )
    assert "USE_CUFILE" not in bare.variables  # a toolkit that is brought has its own


PROVISIONED = {"cudnn-8.5.0.96-cu11": "/k/cudnn", "nccl-2.14.3-cu11": "/k/nccl", "gcc-11": "/k/gcc"}
EQUIPPED_HOST = Host(
    "x86_64",
    "linux",
    HostResources(8, 2**35),
    platform=HostPlatform(glibc="2.36"),
    compilers=HostCompilers(
        default=Compiler("gcc", "12.2.0"),
        by_command={
            "g++": Compiler("gcc", "12.2.0"),
            "/k/gcc/bin/g++-11": Compiler("gcc", "11.3.0"),
        },
    ),
    toolkits=HostToolkits(homes={"11.8": "/k/11.8"}, provisioned=PROVISIONED),
    complete=True,
)


def plan_torch(facts: Facts, identifier: str, **options: str) -> Plan:
    cell = cell_lookup.find_cell(
        facts, identifier, "x86_64", find_release(facts, "torch", "v1.13.1")
    )
    return build_plan.compute_plan(facts, cell, EQUIPPED_HOST, Options(**options))  # type: ignore[arg-type]


def test_a_plan_with_another_toolkit_is_of_that_toolkit(shipped: Facts) -> None:
    made = plan_torch(shipped, "wheel-3.10-cu117", toolkit="11.8")
    assert (made.cuda.toolkit, made.build.cuda, made.wheel.version) == (
        "11.8",
        "11.7",
        "1.13.1+cu117",
    )
    assert made.cuda.libraries == {"cudnn": "8.5.0.96", "nccl": "2.14.3"}
    assert made.variables["CXX"] == "/k/gcc/bin/g++-11"
    assert (made.variables["USE_STATIC_CUDNN"], made.variables["USE_SYSTEM_NCCL"]) == ("0", "1")
    assert made.variables["CUDNN_ROOT"] == "${cudnn_home}"
    assert "PYTORCH_EXTRA_INSTALL_REQUIREMENTS" not in made.variables  # its objects are not 11.7's
    assert made.variables["USE_MAGMA"] == "0"


def test_the_same_toolkit_as_the_official_builds_requires_what_they_require(shipped: Facts) -> None:
    required = plan_torch(shipped, "wheel-3.10-cu117").variables[
        "PYTORCH_EXTRA_INSTALL_REQUIREMENTS"
    ]
    assert required.split("|")[1] == "nvidia-cudnn-cu11==8.5.0.96"


def test_the_folders_are_those_of_the_toolkit_and_of_the_kept_libraries(shipped: Facts) -> None:
    homes = cuda_toolkit.cuda_placeholders(
        plan_torch(shipped, "wheel-3.10-cu117", toolkit="11.8"), EQUIPPED_HOST
    )
    assert homes == {"cuda_home": "/k/11.8", "cudnn_home": "/k/cudnn", "nccl_home": "/k/nccl"}
    assert cuda_toolkit.cuda_placeholders(
        plan_torch(shipped, "wheel-3.10-cu117"), EQUIPPED_HOST
    ).keys() == {
        "cudnn_home",
        "nccl_home",
    }
    bare = change_host(EQUIPPED_HOST, toolkits={"homes": {}, "provisioned": {}})
    assert (
        cuda_toolkit.cuda_placeholders(
            plan_torch(shipped, "wheel-3.10-cu117", toolkit="11.8"), bare
        )
        == {}
    )
    assert (
        cuda_toolkit.cuda_placeholders(plan_torch(shipped, "wheel-3.10-cpu"), EQUIPPED_HOST) == {}
    )


def test_a_dependent_package_is_let_in_by_a_torch_of_another_minor_version(shipped: Facts) -> None:
    same = plan_torch(shipped, "vision-3.10-cu117", torch="PyPI")
    other = plan_torch(shipped, "vision-3.10-cu117", torch="PyPI", toolkit="11.8")
    assert not any("t_minor" in word for command in same.tree.preparation for word in command.argv)
    assert any("t_minor" in word for command in other.tree.preparation for word in command.argv)
    audio = plan_torch(shipped, "audio-3.10-cu117", toolkit="11.8")
    assert any("ta_version" in word for command in audio.tree.preparation for word in command.argv)


def test_capabilities_are_judged_by_the_toolkit_that_compiles(shipped: Facts) -> None:
    assert (
        plan_torch(shipped, "wheel-3.10-cu117", toolkit="11.8", arch_list="8.9").variables[
            "TORCH_CUDA_ARCH_LIST"
        ]
        == "8.9"
    )


X86 = 'platform_system == "Linux" and platform_machine == "x86_64"'
TRITON = {  # in METADATA of PyPI's wheels for Linux x86_64
    "v2.0.1": f"triton==2.0.0; {X86}",
    "v2.1.2": f"triton==2.1.0; {X86}",
    "v2.2.2": f'triton==2.2.0; {X86} and python_version < "3.12"',
    "v2.3.1": f'triton==2.3.1; {X86} and python_version < "3.12"',
    "v2.4.1": f'triton==3.0.0; {X86} and python_version < "3.13"',
    "v2.5.1": f'triton==3.1.0; {X86} and python_version < "3.13"',
    "v2.6.0": f"triton==3.2.0; {X86}",
    "v2.8.0": f"triton==3.4.0; {X86}",
    "v2.11.0": 'triton==3.6.0; platform_system == "Linux"',
    "v2.12.1": 'triton==3.7.1; platform_system == "Linux"',
    "v2.13.0": 'triton==3.7.1; platform_system == "Linux" and python_version < "3.15"',
    "v2.14.1": 'triton~=3.8.0; platform_system == "Linux" and python_version < "3.15"',
    "v2.15.0": 'triton~=3.9.0; platform_system == "Linux" and python_version < "3.16"',
}


@pytest.mark.parametrize("tag", TRITON)
def test_wheels_with_cuda_require_the_triton_that_the_official_ones_require(
    shipped: Facts, tag: str
) -> None:
    release = find_release(shipped, "torch", tag)
    for arch in ("x86_64", "aarch64"):
        cuda = [one for one in matrix.possible_cells(shipped, release, arch) if one.build.cuda]
        for cell in cuda:
            made = build_plan.compute_plan(
                shipped, cell, replace(EQUIPPED_HOST, arch=arch), Options()
            )
            last = made.variables.get("PYTORCH_EXTRA_INSTALL_REQUIREMENTS", "").rpartition("|")[2]
            expected = arch == "x86_64" or "x86_64" not in TRITON[tag]
            assert (
                last.startswith("triton") and Requirement(last) == Requirement(TRITON[tag])
            ) is expected
    without = next(
        one for one in matrix.possible_cells(shipped, release, "x86_64") if not one.build.cuda
    )
    made = build_plan.compute_plan(shipped, without, EQUIPPED_HOST, Options())
    assert "PYTORCH_EXTRA_INSTALL_REQUIREMENTS" not in made.variables


def test_cusparselt_of_the_official_version_is_taken_and_named_where_it_is_missing(
    shipped: Facts,
) -> None:
    cell = cell_lookup.find_cell(
        shipped, "wheel-3.12-cu126", "x86_64", find_release(shipped, "torch", "v2.7.0")
    )
    made = build_plan.compute_plan(shipped, cell, EQUIPPED_HOST, Options())
    assert (made.cuda.libraries["cusparselt"], made.variables["USE_CUSPARSELT"]) == ("0.6.3", "1")
    (found,) = (
        one
        for one in examination.examine_build(CheckContext(shipped, cell, EQUIPPED_HOST, made))
        if one.subject == "cuSPARSELt"
    )
    assert (found.verdict, found.cure) == (
        "failure",
        "invoke toolkit --library cusparselt-cu12=0.6.3",
    )
    made = build_plan.compute_plan(
        shipped, cell, EQUIPPED_HOST, Options(settings={"USE_CUSPARSELT": "0"})
    )
    assert "cusparselt" not in made.cuda.libraries
    assert "cuSPARSELt" in {one.part for one in made.official.shortfalls}


def test_nvshmem_of_the_official_version_is_taken(shipped: Facts) -> None:
    release = find_release(shipped, "torch", "v2.12.0")
    for arch, cuda, required in (
        ("x86_64", "cu126", False),
        ("x86_64", "cu130", True),
        ("aarch64", "cu130", True),
    ):
        cell = cell_lookup.find_cell(shipped, f"wheel-3.12-{cuda}", arch, release)
        made = build_plan.compute_plan(shipped, cell, replace(EQUIPPED_HOST, arch=arch), Options())
        assert (made.cuda.libraries["nvshmem"], made.variables["NVSHMEM_HOME"]) == (
            "3.4.5",
            "${nvshmem_home}",
        )
        assert (
            "nvidia-nvshmem-cu13==3.4.5" in made.variables["PYTORCH_EXTRA_INSTALL_REQUIREMENTS"]
        ) is required

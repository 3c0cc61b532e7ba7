"""Plans: what a build will do on any host, present or described."""

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.changed_facts import change_groups
from tests.support.hosts import change_host
from tests.support.plans import GIB, LINUX, MACOS, plan_base, plan_torch
from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.fetch.source.source import Source
from torchmill.host.host import Compiler, Host
from torchmill.plan import build_plan, matrix
from torchmill.plan.build_options import Options


def test_the_official_label_and_name(small_facts: Facts) -> None:
    plan = plan_base(small_facts)
    assert plan.wheel.version == "1.0.0+cpu"
    assert plan.wheel.file_name == "base-1.0.0+cpu-cp310-cp310-manylinux_2_36_x86_64.whl"
    assert plan.variables["BASE_VERSION"] == "1.0.0+cpu"


def test_macos_has_no_label(small_facts: Facts) -> None:
    plan = plan_base(small_facts, host=MACOS)
    assert plan.wheel.file_name == "base-1.0.0-cp310-cp310-macosx_11_0_arm64.whl"


def test_labels_on_request(small_facts: Facts) -> None:
    assert plan_base(small_facts, options=Options(label="git")).wheel.version == "1.0.0+git1111111"
    assert plan_base(small_facts, options=Options(label="none")).wheel.version == "1.0.0"
    with refused("unknown-commit"):
        plan_base(small_facts, tag="v2.0.0", options=Options(label="git"))


def test_requirements_of_all_rules_are_joined(small_facts: Facts) -> None:
    assert plan_base(small_facts, tag="v1.0.0").requirements == ("wheel", "numpy<2")
    assert plan_base(small_facts, tag="v2.0.0").requirements == ("wheel", "numpy")


def test_requirements_that_serve_every_python_are_in_the_kit(small_facts: Facts) -> None:
    base = change_groups(small_facts.packages["base"], setup={"kit": ("Wheel", "cmake")})
    facts = replace(small_facts, packages={**small_facts.packages, "base": base})
    plan = plan_base(facts, tag="v2.0.0")
    assert plan.tree.kit == ("wheel",), "cmake is required by no rule"
    assert plan.requirements == ("numpy",)
    assert plan.variables["PATH"] == "${kit}/bin:${venv}/bin:${PATH}"
    assert "--skip-dependency-check" in plan.commands[0].argv, (
        "`build` would not find the kit in the environment"
    )
    without_kit = plan_base(small_facts, tag="v2.0.0")
    assert without_kit.variables["PATH"] == "${venv}/bin:${PATH}"
    assert "--skip-dependency-check" not in without_kit.commands[0].argv


@pytest.mark.parametrize("python", ["3.10", "3.13t"])
def test_a_family_has_the_words_of_the_identifier_but_the_python(
    small_facts: Facts, python: str
) -> None:
    build = replace(plan_base(small_facts).build, python=python)
    assert build.family("x86_64") == "wheel-cpu"
    assert build.family("aarch64") == "wheel-cpu-x86_64"


def test_the_old_spelling_follows_from_the_release(small_facts: Facts) -> None:
    options = Options(settings={"USE_FAST": "0"})
    old = plan_base(small_facts, tag="v1.0.0", options=options).variables
    assert old["NO_CUDA"] == "1"
    assert old["NO_FAST"] == "1"
    new = plan_base(small_facts, tag="v2.0.0", options=options).variables
    assert "NO_CUDA" not in new
    assert new["USE_FAST"] == "0"


def test_the_user_has_the_last_word(small_facts: Facts) -> None:
    rule = replace(small_facts.packages["base"].rules[0], set={"USE_FAST": "0"})
    base = replace(small_facts.packages["base"], rules=(rule,))
    facts = replace(small_facts, packages={**small_facts.packages, "base": base})
    assert plan_base(facts, tag="v2.0.0").variables["USE_FAST"] == "0"
    options = Options(settings={"USE_FAST": "1"})
    assert plan_base(facts, tag="v2.0.0", options=options).variables["USE_FAST"] == "1"


@pytest.mark.parametrize(
    ("host", "options", "jobs"),
    [
        (LINUX, Options(), 8),
        (change_host(LINUX, resources={"memory": 7 * GIB}), Options(), 3),
        (change_host(LINUX, resources={"memory": 1 * GIB}), Options(), 1),
        (LINUX, Options(memory=4 * GIB), 2),
        (change_host(LINUX, resources={"memory": 7 * GIB}), Options(memory=99 * GIB), 3),
        (LINUX, Options(jobs=5), 5),
    ],
)
def test_jobs_are_bounded_by_cores_and_by_memory(
    small_facts: Facts, host: Host, options: Options, jobs: int
) -> None:
    plan = plan_base(small_facts, host=host, options=options)
    assert plan.jobs == jobs
    assert plan.variables["MAX_JOBS"] == str(jobs)


def test_capabilities_are_those_of_the_nearest_official_build(small_facts: Facts) -> None:
    for identifier in ("wheel-3.10-cu102", "wheel-3.10-cu118"):
        assert plan_base(small_facts, identifier).arch_list == "3.7;7.0"
    requested = plan_base(small_facts, "wheel-3.10-cu118", options=Options(arch_list="8.6"))
    assert requested.arch_list == "8.6"
    assert "TORCH_CUDA_ARCH_LIST" not in plan_base(small_facts, "wheel-3.10-cpu").variables


def test_capabilities_that_the_toolkit_dropped_are_left_out(shipped: Facts) -> None:
    cu118 = plan_torch(shipped, "wheel-3.10-cu118", "v2.0.1")
    assert cu118.arch_list == "3.7;5.0;6.0;7.0;7.5;8.0;8.6;9.0"
    cu121 = plan_torch(shipped, "wheel-3.10-cu121", "v2.0.1")
    assert cu121.arch_list == "5.0;6.0;7.0;7.5;8.0;8.6;9.0", "nvcc 12 refuses 3.7"


def test_a_dependent_package_requires_exactly_the_base_it_is_built_against(
    small_facts: Facts,
) -> None:
    plan = plan_base(small_facts, "vision-3.10-cpu")
    assert plan.wheel.torch == "base==1.0.0+cpu"
    assert plan.variables["BASE_PIN"] == "1.0.0+cpu"
    assert plan.requirements == ("base==1.0.0+cpu",)
    released = plan_base(small_facts, "vision-3.10-cpu", options=Options(torch="PyPI"))
    assert released.requirements == ("base===1.0.0",), "none of ours, which has a label"
    wheel = "/wheels/base-1.0.0+mine-cp310-cp310-linux_x86_64.whl"
    with_wheel = plan_base(small_facts, "vision-3.10-cpu", options=Options(torch=wheel))
    assert with_wheel.wheel.torch == "base==1.0.0+mine"
    assert with_wheel.requirements == (wheel,)


@pytest.mark.parametrize(
    ("backend", "word"),
    [
        (None, "bdist_wheel"),
        ("setuptools.build_meta:__legacy__", "bdist_wheel"),
        ("scikit_build_core.build", "--no-isolation"),
    ],
)
def test_the_source_decides_on_the_front_end(
    small_facts: Facts, backend: str | None, word: str, tmp_path: Path
) -> None:
    assert "bdist_wheel" in plan_base(small_facts).commands[0].argv
    source = Source("base", "1.0.0", "v1.0.0", "git", "url", "1" * 40, tmp_path, verified=True)
    plan = plan_base(small_facts, source=replace(source, build_backend=backend))
    assert word in plan.commands[0].argv


def test_facts_decide_on_the_front_end_before_there_is_a_source(small_facts: Facts) -> None:
    assert "--no-isolation" in plan_base(small_facts, tag="v2.0.0").commands[0].argv


def with_rules(configs: Path, rules: str) -> Facts:
    """Return the small facts with more rules for the base package."""
    file = configs / "packages" / "base.toml"
    file.write_text(file.read_text(encoding="utf-8") + dedent(rules), encoding="utf-8")
    return facts_reader.read_facts(configs)


FLAGS = """
    [[rule]]
    reason = "every build"
    set = { CXXFLAGS = "-g" }

    [[rule]]
    reason = "gcc 12 warns of more"
    when = { gcc = ">=12" }
    append = { CXXFLAGS = "-Wno-error=a" }

    [[rule]]
    reason = "gcc 13 includes less"
    when = { gcc = ">=13" }
    append = { CXXFLAGS = "-include cstdint" }
"""


def with_gcc(version: str) -> Host:
    return change_host(LINUX, compilers={"default": Compiler("gcc", version)})


def test_an_empty_requirement_is_refused_with_its_rule(configs: Path) -> None:
    facts = with_rules(
        configs,
        """
        [[rule]]
        when = { variant = "cpu" }
        reason = "it is needed"
        requires = [""]
    """,
    )
    with refused("facts-invalid") as caught:
        plan_base(facts)
    assert "'' is not a requirement" in str(caught.value)
    assert str(caught.value).startswith("base.toml: rule ")


def test_flags_of_all_rules_are_joined_and_the_users_come_last(configs: Path) -> None:
    facts = with_rules(configs, FLAGS)

    def flags(gcc: str, **settings: str) -> str:
        plan = plan_base(facts, host=with_gcc(gcc), options=Options(settings=settings))
        return plan.variables["CXXFLAGS"]

    assert flags("11.4.0") == "-g"
    assert flags("12.2.0") == "-g -Wno-error=a"
    assert flags("14.2.0") == "-g -Wno-error=a -include cstdint"
    assert flags("14.2.0", CXXFLAGS="-O1") == "-g -Wno-error=a -include cstdint -O1"
    assert flags("11.4.0", CXXFLAGS="-O1") == "-O1", "if no rule appends, a setting replaces"


def test_a_plan_gives_the_reason_for_flags_that_it_adds(configs: Path) -> None:
    facts = with_rules(configs, FLAGS)
    assert plan_base(facts, host=with_gcc("12.2.0")).reasons == ("gcc 12 warns of more",)
    assert plan_base(facts, host=with_gcc("11.4.0")).reasons == ()


def test_without_a_source_a_rule_for_checkouts_holds(configs: Path) -> None:
    facts = with_rules(
        configs,
        """
        [[rule]]
        reason = "submodules"
        when = { provider = ["git", "path"] }
        set = { A = "1" }
    """,
    )
    assert plan_base(facts).variables["A"] == "1"


def test_bundled_libraries_are_needed_unless_the_systems_are_linked(shipped: Facts) -> None:
    source = Source(
        "torch", "2.6.0", "v2.6.0", "path", "folder", None, Path("/src"), verified=False
    )
    bundled = plan_torch(shipped, "wheel-3.13-cpu", "v2.6.0", source=source)
    assert "third_party/gloo" in bundled.tree.required_folders
    of_debian = replace(source, provider="debian")
    linked = plan_torch(shipped, "wheel-3.13-cpu", "v2.6.0", source=of_debian)
    assert linked.tree.required_folders == ()
    assert "torch/system-xnnpack.patch" in linked.tree.patches
    suites = shipped.packages["torch"].source.debian.submodules.values()
    assert all("third_party/pocketfft" in fills for fills in suites), (
        "its header is copied out of what is filled in there"
    )
    commands = {command.argv[-1]: command.argv for command in linked.tree.preparation}
    copied = commands["third_party/pocketfft/"][1]
    assert copied.startswith("third_party/pocketfft/include/")


def test_a_wheel_for_the_stable_abi_serves_many_torch_and_pythons(shipped: Facts) -> None:
    releases = shipped.releases["xformers"]
    assert [release.torch for release in releases] == [
        *("2.10.0", "2.11.0", "2.12.0", "2.12.1"),
        *("2.13.0", "2.14.0", "2.14.1", "2.15.0"),
    ]
    for release in releases:
        cells = matrix.possible_cells(shipped, release, "x86_64")
        cell = next(cell for cell in cells if cell.build.variant == "cu130")
        wheel = build_plan.compute_plan(shipped, cell, LINUX, Options()).wheel
        assert wheel.file_name.startswith("xformers-0.0.35+cu130-py39-none-")
        assert wheel.torch == f"torch=={release.torch}+cu130"
        assert wheel.torch_requirement == "torch>=2.10"


@pytest.mark.parametrize("off", ["0", "OFF", "no", "False"])
def test_a_switch_is_off_however_that_is_spelled(shipped: Facts, off: str) -> None:
    settings = {"USE_CUDNN": off, "USE_NCCL": off, "USE_DISTRIBUTED": off}
    plan = plan_torch(shipped, "wheel-3.12-cu124", "v2.6.0", options=Options(settings=settings))
    shortfalls = {shortfall.part for shortfall in plan.official.shortfalls}
    assert {"cuDNN", "NCCL", "torch.distributed with gloo and TensorPipe"} <= shortfalls
    options = Options(settings={"USE_MKLDNN": off})
    old = plan_torch(shipped, "wheel-3.7-cpu", "v1.0.1", options=options)
    assert old.variables["NO_MKLDNN"] == "1"


def test_a_release_without_what_a_rule_installs_is_a_mistake_in_the_facts(shipped: Facts) -> None:
    release = change_groups(find_release(shipped, "torch", "v2.6.0"), wheel={"partners": {}})
    facts = replace(shipped, releases={**shipped.releases, "torch": (release,)})
    with refused("facts-invalid"):
        plan_torch(facts, "wheel-3.12-cu124", "v2.6.0")

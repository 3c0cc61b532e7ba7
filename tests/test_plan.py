"""Plans: what a build will do, for any host, without one."""

from dataclasses import replace

import pytest

from torchwright import lookup, matrix, plan
from torchwright.errors import ConfigError
from torchwright.model import Facts, Host, Options, Plan, Source

GIB = 1024**3
LINUX = Host("x86_64", "linux", cores=8, memory=32 * GIB, glibc="2.36")


def planned(known: Facts, name: str, tag: str, host: Host = LINUX, options: Options | None = None) -> Plan:
    release = matrix.find_release(known, "base", tag)
    cell = lookup.find(known, name, host.arch, release)
    return plan.compute(known, cell, host, options or Options())


def test_the_official_label_and_name(known: Facts) -> None:
    made = planned(known, "wheel-3.10-cpu", "v1.0.0")
    assert made.version == "1.0.0+cpu"
    assert made.wheel == "base-1.0.0+cpu-cp310-cp310-manylinux_2_36_x86_64.whl"
    assert made.set["BASE_VERSION"] == "1.0.0+cpu"


@pytest.mark.parametrize(
    ("python", "tags"),
    [("3.7", "cp37-cp37m"), ("3.10", "cp310-cp310"), ("3.13t", "cp313-cp313t")],
)
def test_python_tags(python: str, tags: str) -> None:
    assert plan.python_tag(python) == tags


def test_macos_has_no_label(known: Facts) -> None:
    mac = Host("arm64", "macos", cores=8, memory=32 * GIB)
    made = planned(known, "wheel-3.10-cpu", "v1.0.0", mac)
    assert made.wheel == "base-1.0.0-cp310-cp310-macosx_11_0_arm64.whl"


def test_labels_on_request(known: Facts) -> None:
    git = planned(known, "wheel-3.10-cpu", "v1.0.0", options=Options(label="git"))
    none = planned(known, "wheel-3.10-cpu", "v1.0.0", options=Options(label="none"))
    assert (git.version, none.version) == ("1.0.0+git1111111", "1.0.0")
    with pytest.raises(ConfigError, match="needs the commit"):
        planned(known, "wheel-3.10-cpu", "v2.0.0", options=Options(label="git"))


def test_a_host_of_unknown_glibc_promises_no_manylinux(known: Facts) -> None:
    made = planned(known, "wheel-3.10-cpu", "v1.0.0", replace(LINUX, glibc=None))
    assert made.platform_tag == "linux_x86_64"


def test_requirements_of_all_rules_are_joined(known: Facts) -> None:
    assert planned(known, "wheel-3.10-cpu", "v1.0.0").requirements == ("wheel", "numpy<2")
    assert planned(known, "wheel-3.10-cpu", "v2.0.0").requirements == ("wheel", "numpy")


def test_the_old_spelling_follows_from_the_release(known: Facts) -> None:
    user = Options(settings={"USE_FAST": "0"})
    old = planned(known, "wheel-3.10-cpu", "v1.0.0", options=user).set
    assert (old["NO_CUDA"], old["NO_FAST"]) == ("1", "1")
    new = planned(known, "wheel-3.10-cpu", "v2.0.0", options=user).set
    assert "NO_CUDA" not in new
    assert new["USE_FAST"] == "0"


def test_the_user_has_the_last_word(known: Facts) -> None:
    made = planned(known, "wheel-3.10-cpu", "v2.0.0", options=Options(settings={"USE_CUDA": "1"}))
    assert made.set["USE_CUDA"] == "1"


@pytest.mark.parametrize(
    ("host", "options", "jobs"),
    [
        (LINUX, Options(), 8),
        (replace(LINUX, memory=7 * GIB), Options(), 3),
        (replace(LINUX, memory=1 * GIB), Options(), 1),
        (LINUX, Options(memory=4 * GIB), 2),
        (LINUX, Options(jobs=5), 5),
    ],
)
def test_jobs_are_bounded_by_cores_and_by_memory(
    known: Facts, host: Host, options: Options, jobs: int
) -> None:
    made = planned(known, "wheel-3.10-cpu", "v1.0.0", host, options)
    assert (made.jobs, made.set["MAX_JOBS"]) == (jobs, str(jobs))


def test_capabilities_are_those_of_the_nearest_official_build(known: Facts) -> None:
    assert planned(known, "wheel-3.10-cu102", "v1.0.0").set["TORCH_CUDA_ARCH_LIST"] == "3.7;7.0"
    assert planned(known, "wheel-3.10-cu118", "v1.0.0").set["TORCH_CUDA_ARCH_LIST"] == "3.7;7.0"
    asked = planned(known, "wheel-3.10-cu118", "v1.0.0", options=Options(arch_list="8.6"))
    assert asked.set["TORCH_CUDA_ARCH_LIST"] == "8.6"
    assert "TORCH_CUDA_ARCH_LIST" not in planned(known, "wheel-3.10-cpu", "v1.0.0").set


def test_capabilities_that_the_toolkit_dropped_are_left_out(shipped: Facts) -> None:
    release = matrix.find_release(shipped, "torch", "v1.13.1")
    lists = {}
    for variant in ("cu117", "cu121"):
        cell = lookup.find(shipped, f"wheel-3.10-{variant}", "x86_64", release)
        lists[variant] = plan.compute(shipped, cell, LINUX, Options()).set["TORCH_CUDA_ARCH_LIST"]
    assert lists["cu117"] == "3.7;5.0;6.0;7.0;7.5;8.0;8.6"
    assert lists["cu121"] == "5.0;6.0;7.0;7.5;8.0;8.6", "nvcc 12 refuses 3.7"


def test_the_macos_tag_follows_the_deployment_target(shipped: Facts) -> None:
    mac = Host("arm64", "macos", cores=8, memory=32 * GIB)
    cell = lookup.find(shipped, "wheel-3.12-cpu", "arm64", matrix.find_release(shipped, "torch", "v2.15.0"))
    made = plan.compute(shipped, cell, mac, Options())
    assert made.wheel == "torch-2.15.0-cp312-cp312-macosx_14_0_arm64.whl"


def test_one_wheel_for_every_python_is_named_so(shipped: Facts) -> None:
    release = matrix.find_release(shipped, "torch", "v2.15.0")
    cell = lookup.find(shipped, "vision-3.12-cpu", "x86_64", release)
    made = plan.compute(shipped, cell, LINUX, Options())
    assert made.wheel == "torchvision-0.29.2+cpu-py3-none-manylinux_2_36_x86_64.whl"


def test_a_dependent_package_requires_exactly_the_base_it_is_built_against(known: Facts) -> None:
    made = planned(known, "vision-3.10-cpu", "v1.0.0")
    assert made.torch == "base==1.0.0+cpu"
    assert made.set["BASE_PIN"] == "1.0.0+cpu"
    assert made.requirements == ("base==1.0.0+cpu",)
    released = planned(known, "vision-3.10-cpu", "v1.0.0", options=Options(torch="PyPI"))
    assert released.requirements == ("base==1.0.0",)
    wheel = "/wheels/base-1.0.0+mine-cp310-cp310-linux_x86_64.whl"
    own = planned(known, "vision-3.10-cpu", "v1.0.0", options=Options(torch=wheel))
    assert (own.torch, own.requirements) == ("base==1.0.0+mine", (wheel,))


def test_the_source_decides_the_way_in(known: Facts) -> None:
    release = matrix.find_release(known, "base", "v1.0.0")
    cell = lookup.find(known, "wheel-3.10-cpu", "x86_64", release)
    tree = Source("base", "1.0.0", "v1.0.0", "git", "somewhere", "1" * 40, path=None, verified=True)  # type: ignore[arg-type]
    assert "bdist_wheel" in plan.compute(known, cell, LINUX, Options()).compile[0].argv
    for backend, word in {
        None: "bdist_wheel",
        "setuptools.build_meta:__legacy__": "bdist_wheel",
        "scikit_build_core.build": "--no-isolation",
    }.items():
        made = plan.compute(known, cell, LINUX, Options(), replace(tree, build_backend=backend))
        assert word in made.compile[0].argv, backend


def test_facts_say_the_way_in_before_there_is_a_source(known: Facts) -> None:
    assert "--no-isolation" in planned(known, "wheel-3.10-cpu", "v2.0.0").compile[0].argv

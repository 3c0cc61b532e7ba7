"""What leads compilers to the gate, and past it: the user's own launchers, a tree of an earlier run."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.build.test_workshop import HOST, job
from torchmill.build.compile import compiler_environment, find_replaced_hooks, languages_past_gate
from torchmill.build.context import BuildContext
from torchmill.config.model import Facts, Options
from torchmill.toolchain.compiler_cache import CompilerCache
from torchmill.toolchain.guard.gate import install
from torchmill.toolchain.guard.session import GuardedBuild

CONFIGURED = """\
//CXX compiler
CMAKE_CXX_COMPILER:FILEPATH=/usr/bin/c++
CMAKE_CXX_COMPILER_AR:FILEPATH=/usr/bin/gcc-ar
CMAKE_CXX_COMPILER_LAUNCHER:STRING={cxx}
CMAKE_C_COMPILER:STRING=/usr/bin/cc
CMAKE_C_COMPILER_LAUNCHER:UNINITIALIZED={c}
"""
HOOKS = {"CCACHE_PREFIX": "/tree/gate", "CMAKE_CXX_LINKER_LAUNCHER": "/tree/gate"}


def test_nothing_is_said_where_all_hooks_hold() -> None:
    assert list(find_replaced_hooks(HOOKS, {**HOOKS, "MAX_JOBS": "6"})) == []


@pytest.mark.parametrize("name", HOOKS)
def test_what_the_user_set_is_told(name: str) -> None:
    (sentence,) = find_replaced_hooks(HOOKS, {**HOOKS, name: "distcc"})
    assert sentence.startswith(f"{name} stays 'distcc', as you set it")


def test_a_tree_that_was_configured_with_a_gate_or_the_cache_is_held() -> None:
    text = CONFIGURED.format(cxx="/usr/bin/ccache", c="/tree/gate")
    assert languages_past_gate(text, {"/tree/gate", "/usr/bin/ccache"}) == []


@pytest.mark.parametrize("launcher", ["", "/usr/bin/distcc", "/tree/gate/other"])
def test_a_tree_of_an_earlier_run_names_its_languages(launcher: str) -> None:
    assert languages_past_gate(CONFIGURED.format(cxx=launcher, c="/tree/gate"), {"/tree/gate"}) == ["CXX"]


def test_a_language_without_a_launcher_goes_past() -> None:
    assert languages_past_gate("CMAKE_CUDA_COMPILER:FILEPATH=/usr/bin/nvcc\n", {"/tree/gate"}) == ["CUDA"]


@pytest.mark.parametrize(
    "line", ["CMAKE_BUILD_TYPE:STRING=Release", "CMAKE_ASM_COMPILER:FILEPATH=/usr/bin/cc"]
)
def test_what_needs_no_gate_is_not_missed(line: str) -> None:
    assert languages_past_gate(f"{line}\n", {"/tree/gate"}) == []


@pytest.fixture
def begun(known: Facts, tmp_path: Path) -> BuildContext:
    """Return a job on a machine of four cores whose plan compiles four files at a time."""
    return job(known, tmp_path, replace(HOST, memory=2**33))


def guarded(begun: BuildContext) -> GuardedBuild:
    there = begun.tree.folder / "gate"
    hooks = install.gate_hooks(there, {})
    return GuardedBuild(there, begun.layout.root, None, hooks, {**hooks, "TORCHMILL_GATE": "/of/this/build"})


def configure(begun: BuildContext, launcher: str) -> None:
    cache = begun.tree.source / "build" / "CMakeCache.txt"
    cache.parent.mkdir(parents=True)
    cache.write_text(CONFIGURED.format(cxx=launcher, c=launcher))


def test_more_compilers_are_started_where_the_gate_holds_all(begun: BuildContext) -> None:
    noted: list[str] = []
    found = compiler_environment(begun, guarded(begun), CompilerCache(), noted.append)
    assert found["MAX_JOBS"] == "18"
    assert found["TORCHMILL_GATE"] == "/of/this/build"
    assert found["CMAKE_CXX_COMPILER_LAUNCHER"] == str(begun.tree.folder / "gate")
    assert noted == []
    configure(begun, str(begun.tree.folder / "gate"))
    assert compiler_environment(begun, guarded(begun), CompilerCache(), noted.append) == found
    assert noted == []


def test_a_launcher_in_place_of_the_cache_leads_past_the_gate_behind_it(
    begun: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    launchers = dict.fromkeys(("CMAKE_C_COMPILER_LAUNCHER", "CMAKE_CXX_COMPILER_LAUNCHER"), "/usr/bin/ccache")
    caching = {"CCACHE_DIR": "/cache", **launchers}
    cache = CompilerCache("ccache", "/usr/bin/ccache", "4.7.5", caching)
    there = begun.tree.folder / "gate"
    hooks = install.gate_hooks(there, caching)
    guard = GuardedBuild(there, begun.layout.root, None, hooks, hooks)
    noted: list[str] = []
    assert compiler_environment(begun, guard, cache, noted.append)["MAX_JOBS"] == "18"
    assert noted == []
    monkeypatch.setenv("CMAKE_CXX_COMPILER_LAUNCHER", "distcc")
    assert compiler_environment(begun, guard, cache, noted.append)["MAX_JOBS"] == "4"
    (sentence,) = noted
    assert sentence.startswith("CMAKE_CXX_COMPILER_LAUNCHER stays 'distcc', as you set it")


def test_a_build_without_a_guard_has_the_fixed_number(begun: BuildContext) -> None:
    noted: list[str] = []
    found = compiler_environment(
        begun, GuardedBuild(), CompilerCache("ccache", variables={"CCACHE_DIR": "/cache"}), noted.append
    )
    assert (found["MAX_JOBS"], found["CCACHE_DIR"]) == ("4", "/cache")
    assert not {name for name in found if name.endswith("_LAUNCHER")}


def test_the_users_launcher_stays_and_the_number_is_the_fixed_one(
    begun: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMAKE_CXX_COMPILER_LAUNCHER", "distcc")
    noted: list[str] = []
    found = compiler_environment(begun, guarded(begun), CompilerCache(), noted.append)
    assert (found["CMAKE_CXX_COMPILER_LAUNCHER"], found["MAX_JOBS"]) == ("distcc", "4")
    (sentence,) = noted
    assert sentence.endswith("so it hides compilers from the guard: compiling 4 at a time")


def test_a_tree_without_a_gate_goes_on_at_the_fixed_number(begun: BuildContext) -> None:
    configure(begun, "")
    noted: list[str] = []
    assert compiler_environment(begun, guarded(begun), CompilerCache(), noted.append)["MAX_JOBS"] == "4"
    (sentence,) = noted
    assert "was configured without a gate for CXX and C (delete it" in sentence


def test_what_the_user_asks_for_wins(begun: BuildContext) -> None:
    two = replace(begun, options=Options(jobs=2))
    assert compiler_environment(two, guarded(two), CompilerCache(), print)["MAX_JOBS"] == "10"
    own = replace(
        begun, options=Options(settings={"MAX_JOBS": "3"}), plan=replace(begun.plan, set={"MAX_JOBS": "3"})
    )
    assert compiler_environment(own, guarded(own), CompilerCache(), print)["MAX_JOBS"] == "3"


def test_a_package_that_knows_no_launchers_finds_stand_ins_first(begun: BuildContext) -> None:
    package = replace(begun.package, compilers="path")
    built = replace(begun, facts=replace(begun.facts, packages={**begun.facts.packages, "base": package}))
    found = compiler_environment(built, guarded(built), CompilerCache(), print)
    first = Path(found["PATH"].partition(":")[0])
    assert first == built.tree.folder / "bin"
    assert (first / "c++").stat().st_mode & 0o111


def with_cuda(begun: BuildContext, home: Path, compilers: str) -> BuildContext:
    """Return the job as one of CUDA, with a toolkit."""
    (home / "bin").mkdir(parents=True)
    (home / "bin/nvcc").write_text("#!/bin/sh\n")
    (home / "bin/nvcc").chmod(0o755)
    package = replace(begun.package, compilers=compilers)
    build = replace(begun.plan.build, variant="cu118", cuda="11.8")
    plan = replace(begun.plan, build=build, set={**begun.plan.set, "CUDA_HOME": str(home)})
    packages = {**begun.facts.packages, "base": package}
    return replace(begun, plan=plan, facts=replace(begun.facts, packages=packages))


@pytest.mark.parametrize(("compilers", "stands_in"), [("cmake", False), ("path", True)])
def test_nvcc_comes_by_the_gate_by_whatever_name_it_is_asked_for(
    begun: BuildContext, tmp_path: Path, compilers: str, stands_in: bool
) -> None:
    built = with_cuda(begun, tmp_path / "cuda", compilers)
    found = compiler_environment(built, guarded(built), CompilerCache(), print)
    named = Path(found["PYTORCH_NVCC"])
    assert str(built.tree.folder / "gate") in named.read_text()
    home = named.parents[1] if stands_in else tmp_path / "cuda"
    assert Path(found["CUDA_HOME"]) == home


def test_nvcc_goes_through_a_cache_that_knows_of_the_gate(begun: BuildContext, tmp_path: Path) -> None:
    built = with_cuda(begun, tmp_path / "cuda", "path")
    there = built.tree.folder / "gate"
    caching = {"CCACHE_DIR": "/cache", "CMAKE_CUDA_COMPILER_LAUNCHER": "/usr/bin/env;CCACHE_DEPEND=1;/ccache"}
    for hooks, cached in ((install.gate_hooks(there, caching), True), (install.gate_hooks(there, {}), False)):
        guard = GuardedBuild(there, built.layout.root, None, hooks, hooks)
        found = compiler_environment(built, guard, CompilerCache("ccache", "/ccache", "4.13", caching), print)
        assert ("/ccache" in Path(found["PYTORCH_NVCC"]).read_text()) is cached

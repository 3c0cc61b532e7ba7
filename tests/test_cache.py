"""The compiler cache: its variables, and hits of a real ccache under them."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from torchwright.model import Host
from torchwright.toolchain import cache

BARE = Host("x86_64", "linux", cores=2, memory=2**33)
WITH_CCACHE = replace(BARE, tools={"ccache": "/usr/bin/ccache", "sccache": "/usr/bin/sccache"})
WITH_SCCACHE = replace(BARE, tools={"sccache": "/usr/bin/sccache"})
ROOT, CACHE = Path("/root-of-trees"), Path("/kept")


def test_a_host_without_a_cache_gets_no_variables() -> None:
    assert cache.environment(BARE, ROOT, CACHE) == {}
    assert cache.statistics(BARE, CACHE) is None
    assert cache.ccache_version(BARE) is None


def test_ccache_goes_before_sccache_and_is_told_where_trees_are() -> None:
    assert cache.environment(WITH_CCACHE, ROOT, CACHE) == {
        "CCACHE_DIR": "/kept/ccache",
        "CCACHE_BASEDIR": "/root-of-trees",
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_COMPILERCHECK": "content",
        "CCACHE_SLOPPINESS": "time_macros",
        "CCACHE_MAXSIZE": "30G",
        "CMAKE_C_COMPILER_LAUNCHER": "/usr/bin/ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "/usr/bin/ccache",
    }


@pytest.mark.parametrize(("version", "cached"), [("4.7.5", False), ("4.12.3", True), ("4.13", True)])
def test_nvcc_goes_through_a_new_ccache_only(version: str, cached: bool) -> None:
    variables = cache.environment(WITH_CCACHE, ROOT, CACHE, ccache=version)
    assert ("CMAKE_CUDA_COMPILER_LAUNCHER" in variables) is cached


def test_sccache_takes_every_language() -> None:
    variables = cache.environment(WITH_SCCACHE, ROOT, CACHE)
    assert variables["SCCACHE_DIR"] == "/kept/sccache"
    launchers = {variables[f"CMAKE_{language}_COMPILER_LAUNCHER"] for language in ("C", "CXX", "CUDA")}
    assert launchers == {"/usr/bin/sccache"}


@pytest.mark.parametrize(
    ("said", "version"),
    [("ccache version 4.7.5\nFeatures: x\n", "4.7.5"), ("ccache version 4.12\n", "4.12"), ("ccache?", None)],
)
def test_the_version_is_read(said: str, version: str | None) -> None:
    assert cache.parse_version(said) == version


def test_counters_are_added_up() -> None:
    said = "cache_miss\t7\ncalled_for_link\t3\ndirect_cache_hit\t20\npreprocessed_cache_hit\t2\nodd line\n"
    assert cache.parse_statistics(said) == {"hits": 22, "misses": 7}


@pytest.fixture
def real() -> Host:
    programs = {name: shutil.which(name) for name in ("ccache", "g++")}
    if not all(programs.values()):
        pytest.skip("ccache and g++ are not both installed")
    return replace(BARE, tools={"ccache": str(programs["ccache"])})


def compile_in(tree: Path, variables: dict[str, str]) -> None:
    """Compile as a build does: in the tree, by absolute paths, with debug information."""
    (tree / "include").mkdir(parents=True)
    (tree / "include/a.h").write_text("int a();\n")
    (tree / "a.cpp").write_text('#include "a.h"\nint a() { return 1; }\n')
    subprocess.run(
        ["ccache", "g++", "-g", f"-I{tree}/include", "-c", f"{tree}/a.cpp", "-o", f"{tree}/a.o"],
        cwd=tree,
        env={"PATH": os.environ["PATH"], "CCACHE_CONFIGPATH": "/dev/null"} | variables,
        check=True,
    )


def test_the_same_file_hits_in_another_tree(real: Host, tmp_path: Path) -> None:
    variables = dict(cache.environment(real, tmp_path / "trees", tmp_path))
    assert cache.statistics(real, tmp_path) == {"hits": 0, "misses": 0}
    compile_in(tmp_path / "trees/wheel-3.10-cpu", variables)
    assert cache.statistics(real, tmp_path) == {"hits": 0, "misses": 1}
    compile_in(tmp_path / "trees/wheel-3.11-cpu", variables)
    assert cache.statistics(real, tmp_path) == {"hits": 1, "misses": 1}


def test_without_our_variables_it_would_not(real: Host, tmp_path: Path) -> None:
    variables = {"CCACHE_DIR": str(tmp_path / "ccache")}
    compile_in(tmp_path / "trees/wheel-3.10-cpu", variables)
    compile_in(tmp_path / "trees/wheel-3.11-cpu", variables)
    assert cache.statistics(real, tmp_path) == {"hits": 0, "misses": 2}


def test_a_real_ccache_tells_its_version(real: Host) -> None:
    version = cache.ccache_version(real)
    assert version is not None
    assert version.startswith(("3.", "4.", "5."))

"""Which variables of a shell get through to a build, and which are named because they do not."""

from fnmatch import fnmatchcase
from itertools import product

import pytest

from torchmill.plan import shell_seal

LINUX = shell_seal.passing_patterns("linux")


@pytest.mark.parametrize(
    "name",
    [
        # set by setup-python, EasyBuild, Spack and users' modules, and read by CMake
        "Python3_ROOT_DIR", "pythonLocation", "CUDAToolkit_ROOT", "fmt_DIR", "Torch_DIR",
        "EBROOTPYTHON", "BLA_VENDOR", "CUDAARCHS", "CMAKE_PREFIX_PATH", "CMAKE_GENERATOR",
        "CMAKE_TOOLCHAIN_FILE", "Protobuf_ROOT", "MKLROOT",
        # pkg-config, compilers, linkers and setuptools
        "PKG_CONFIG_PATH", "PKG_CONFIG_SYSROOT_DIR", "COMPILER_PATH", "GCC_EXEC_PREFIX", "CPATH",
        "LIBRARY_PATH", "CFLAGS", "LDFLAGS", "LD_RUN_PATH", "LD_PRELOAD", "SDKROOT", "INCLUDE",
        "LIB", "DISTUTILS_USE_SDK", "DIST_EXTRA_CONFIG",
        # PyTorch's own, and those of extensions
        "USE_CUDA", "TORCH_CUDA_ARCH_LIST", "FORCE_CUDA", "CUDA_HOME", "MAX_JOBS",
        "XFORMERS_BUILD_TYPE",
        # those that send Python or git to other folders, and secrets
        "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX", "GIT_DIR", "GH_TOKEN", "GITHUB_TOKEN",
        "TWINE_PASSWORD",
        "A_NAME_THAT_NOBODY_LISTED",
    ],
)  # fmt: skip
def test_settings_of_a_shell_do_not_get_through(name: str) -> None:
    assert shell_seal.passed_variables({name: "x"}, LINUX) == {}


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "TMPDIR", "CC", "CXX", "LD_LIBRARY_PATH", "https_proxy", "CCACHE_DIR"]
)
def test_variables_for_programs_and_compilers_get_through(name: str) -> None:
    assert shell_seal.passed_variables({name: "x"}, LINUX) == {name: "x"}


def test_each_system_has_variables_of_its_own() -> None:
    shell = {"SDKROOT": "/sdk", "INCLUDE": "C:/include", "SYSTEMROOT": "C:/Windows"}
    macos = shell_seal.passing_patterns("macos")
    windows = shell_seal.passing_patterns("windows")
    assert shell_seal.passed_variables(shell, macos) == {"SDKROOT": "/sdk"}
    assert shell_seal.passed_variables(shell, windows) == {
        "INCLUDE": "C:/include",
        "SYSTEMROOT": "C:/Windows",
    }


@pytest.mark.parametrize(
    ("makeflags", "passed"),
    [
        ("ks -j8 --jobserver-auth=fifo:/tmp/GMfifo42", "-j8 --jobserver-auth=fifo:/tmp/GMfifo42"),
        ("--jobserver-auth=3,4 -- CFLAGS=-O0", "--jobserver-auth=3,4"),
        ("-j", "-j"),
        ("-- CFLAGS=-j4 -j8", None),
        ("--no-builtin-rules", None),
    ],
)
def test_of_makeflags_only_the_jobserver_gets_through(makeflags: str, passed: str | None) -> None:
    sealed = shell_seal.passed_variables({"MAKEFLAGS": makeflags}, LINUX)
    assert sealed.get("MAKEFLAGS") == passed


def test_dropped_settings_leave_out_the_variables_of_other_programs() -> None:
    settings = {
        "Python3_ROOT_DIR",
        "PKG_CONFIG_PATH",
        "USE_CUDA",
        "CFLAGS",
        "CUDAARCHS",
        "COMPILER_PATH",
        "XFORMERS_X",
    }
    unrelated = {
        "JAVA_HOME",
        "GITHUB_PATH",
        "SLURM_SUBMIT_DIR",
        "NO_COLOR",
        "CUDA_HOME",
        "PWD",
        "OMP_NUM_THREADS",
    }
    shell = dict.fromkeys((*settings, *unrelated, "CC"), "x")
    assert shell_seal.dropped_settings(shell, LINUX, ["XFORMERS_"]) == sorted(settings)


def test_makeflags_is_dropped_if_it_has_more_than_job_options() -> None:
    shell = {"MAKEFLAGS": "-j8 -- CFLAGS=-O0"}
    assert shell_seal.dropped_settings(shell, LINUX, ()) == ["MAKEFLAGS"]
    assert shell_seal.dropped_settings({"MAKEFLAGS": "-j8"}, LINUX, ()) == []


@pytest.mark.parametrize("pattern", ["A", "A*", "*A", "*A*", "A*B", "A*B*A", "*", "AB*BA", "A**B"])
def test_a_star_in_a_pattern_stands_for_any_characters(pattern: str) -> None:
    names = ["".join(letters) for count in range(6) for letters in product("AB_", repeat=count)]
    for name in names:
        assert shell_seal.matches(name, [pattern]) == fnmatchcase(name, pattern), name

"""Find the CUDA toolkits of a machine, also by environment modules, and their parts."""

import json
import os
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.machines import file, made_up_programs, only, program
from torchmill.config.toolkit import ToolkitPart
from torchmill.host import cuda_toolkits
from torchmill.host.cuda_toolkits import (
    format_part_names,
    is_spread_in_system,
    lacking_toolkit_parts,
)
from torchmill.host.environment_modules import module_toolkits
from torchmill.host.native import native_arch
from torchmill.host.programs import make_runner
from torchmill.host.provisioned import (
    RECORD,
    ProvisionRecord,
    format_provision_record,
    list_provisioned,
    provisioned_compilers,
)

pytestmark = made_up_programs


def toolkit(home: Path, nvcc_says: str = "") -> Path:
    program(home / "bin", "nvcc", nvcc_says)
    (home / "include").mkdir(exist_ok=True)
    (home / "include/cuda_runtime_api.h").touch()
    return home


def toolkits(environ: dict[str, str], root: Path) -> dict[str, str]:
    return cuda_toolkits.find_toolkits(environ, root, root / "home", make_runner(environ))


def test_versions_are_read_in_three_ways(tmp_path: Path) -> None:
    new = toolkit(tmp_path / "usr/local/cuda-12.4")
    (new / "version.json").write_text(
        json.dumps({"cuda": {"name": "CUDA SDK", "version": "12.4.20240318"}})
    )
    (tmp_path / "usr/local/cuda").symlink_to(new)
    old = toolkit(tmp_path / "usr/local/cuda-10.2")
    (old / "version.txt").write_text("CUDA Version 10.2.89\n")
    (tmp_path / "usr/local/cuda-11.0-runtime").mkdir()  # no nvcc
    mute = toolkit(
        tmp_path / "usr/local/cuda-11.8", "Cuda compilation tools, release 11.8, V11.8.89"
    )
    assert toolkits(only(tmp_path), tmp_path) == {
        "12.4": str(new),
        "11.8": str(mute),
        "10.2": str(old),
    }


def test_newer_toolkits_come_first(tmp_path: Path) -> None:
    for version in ("9.2", "10.2", "12.4"):
        toolkit(tmp_path / f"usr/local/cuda-{version}", f"release {version}, V{version}.1")
    assert list(toolkits(only(tmp_path), tmp_path)) == ["12.4", "10.2", "9.2"]


def test_without_a_path_no_program_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = toolkit(tmp_path / "mine", "release 12.4, V12.4.99")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert cuda_toolkits.find_toolkits({}, tmp_path, tmp_path / "home", make_runner({})) == {}


def test_the_toolkit_of_debian_is_found_in_usr(tmp_path: Path) -> None:
    usr = toolkit(tmp_path / "usr", "Cuda compilation tools, release 11.8, V11.8.89")
    assert toolkits(only(tmp_path), tmp_path) == {}
    (usr / "lib/nvidia-cuda-toolkit").mkdir(parents=True)
    assert toolkits(only(tmp_path), tmp_path) == {"11.8": str(usr)}


def test_the_named_toolkit_comes_first(tmp_path: Path) -> None:
    output = "release 12.1, V12.1.105"
    toolkit(tmp_path / "usr/local/cuda-12.1", output)
    named_home = toolkit(tmp_path / "mine", output)
    assert toolkits(only(tmp_path, CUDA_HOME=str(named_home)), tmp_path) == {
        "12.1": str(named_home)
    }
    assert toolkits(only(named_home / "bin"), tmp_path) == {
        "12.1": str(tmp_path / "usr/local/cuda-12.1")
    }
    assert toolkits(only(named_home / "bin"), tmp_path / "empty") == {"12.1": str(named_home)}


def test_a_toolkit_without_version_is_left_out(tmp_path: Path) -> None:
    toolkit(tmp_path / "usr/local/cuda", "no idea")
    assert toolkits(only(tmp_path), tmp_path) == {}


def provision(home: Path, name: str, kind: str = "toolkit", completes: str = "") -> Path:
    folder = home / ".cache/torchmill/toolkits" / f"{name}-{native_arch()}"
    toolkit(folder, "not asked")
    record = ProvisionRecord(
        kind, name[:4] if completes else name, f"{name}.89", "debian", (), completes
    )
    (folder / RECORD).write_text(
        format_provision_record(record, native_arch(), "2026-11-22T00:00:00+00:00"),
        encoding="utf-8",
    )
    return folder


def test_a_provisioned_toolkit_comes_after_the_named_and_before_the_systems(tmp_path: Path) -> None:
    toolkit(tmp_path / "usr/local/cuda-11.8", "release 11.8, V11.8.89")
    named_home = toolkit(tmp_path / "mine", "release 11.8, V11.8.89")
    folder = provision(tmp_path / "home", "11.8")
    gcc = provision(tmp_path / "home", "gcc-11", "compiler")
    cache = tmp_path / "home/.cache/torchmill"
    assert provisioned_compilers(cache, native_arch()) == [gcc / "bin/g++-11"]
    assert {entry.home for entry in list_provisioned(cache, native_arch()).values()} == {
        folder,
        gcc,
    }
    assert toolkits(only(tmp_path), tmp_path) == {"11.8": str(folder)}
    assert toolkits(only(tmp_path, CUDA_HOME=str(named_home)), tmp_path) == {
        "11.8": str(named_home)
    }
    (folder / RECORD).unlink()  # removed in part
    assert toolkits(only(tmp_path), tmp_path) == {"11.8": str(tmp_path / "usr/local/cuda-11.8")}


def test_a_completed_toolkit_comes_before_its_original(tmp_path: Path) -> None:
    bare = toolkit(tmp_path / "usr/local/cuda-11.8", "release 11.8, V11.8.89")
    (tmp_path / "usr/local/cuda").symlink_to(bare)
    completed = provision(tmp_path / "home", "11.8-completed-0", completes=str(bare))
    environ = only(tmp_path, CUDA_HOME=str(tmp_path / "usr/local/cuda"))
    toolkits_found = list(
        cuda_toolkits.usable_toolkits(environ, tmp_path, tmp_path / "home", make_runner(environ))
    )
    assert [(toolkit_found.home, toolkit_found.found_by) for toolkit_found in toolkits_found] == [
        (completed, f"completed from {bare}"),
        (tmp_path / "usr/local/cuda", "CUDA_HOME"),
    ]
    other = toolkit(tmp_path / "other", "release 11.8, V11.8.89")
    assert toolkits(only(tmp_path, CUDA_HOME=str(other)), tmp_path) == {"11.8": str(other)}


def test_a_compiler_alone_can_be_completed(tmp_path: Path) -> None:
    program(tmp_path / "usr/local/cuda-11.8/bin", "nvcc", "release 11.8, V11.8.89")
    environ = only(tmp_path)
    machine = (environ, tmp_path, tmp_path / "home", make_runner(environ))
    assert list(cuda_toolkits.usable_toolkits(*machine)) == []
    assert [
        incomplete.version for incomplete in cuda_toolkits.toolkits_with_compiler(*machine)
    ] == ["11.8"]


def test_toolkits_of_conda_hpc_sdk_and_modules_are_found(tmp_path: Path) -> None:
    active = toolkit(tmp_path / "somewhere/env", "release 11.3, V11.3.109")
    listed = toolkit(tmp_path / "elsewhere", "release 11.4, V11.4.100")
    default = toolkit(tmp_path / "home/miniforge3/envs/cuda", "release 12.1, V12.1.105")
    program(tmp_path / "home/miniforge3/bin", "nvcc", "release 12.6, V12.6.20")  # without headers
    sdk = toolkit(
        tmp_path / "opt/nvidia/hpc_sdk/Linux_x86_64/23.1/cuda/12.0", "release 12.0, V12.0.76"
    )
    site = toolkit(tmp_path / "apps/cuda", "release 11.7, V11.7.64")
    (tmp_path / "home/.conda").mkdir()
    (tmp_path / "home/.conda/environments.txt").write_text(
        f"{listed}\n{tmp_path / 'gone'}\n", encoding="utf-8"
    )
    (tmp_path / "modules/cuda").mkdir(parents=True)
    (tmp_path / "modules/cuda/11.7").write_text(f"setenv CUDA_HOME {site}\n", encoding="utf-8")
    environ = only(tmp_path, CONDA_PREFIX=str(active), MODULEPATH=str(tmp_path / "modules"))
    toolkits_found = cuda_toolkits.usable_toolkits(
        environ, tmp_path, tmp_path / "home", make_runner(environ)
    )
    assert [
        (toolkit_found.version, toolkit_found.home, toolkit_found.found_by)
        for toolkit_found in toolkits_found
    ] == [
        ("11.7", site, "module cuda/11.7"),
        ("11.3", active, "conda"),
        ("11.4", listed, "conda"),
        ("12.1", default, "conda"),
        ("12.0", sdk, "HPC SDK"),
    ]


TCL = """#%Module1.0
## CUDA 11.7
set version 11.7
set root /apps/cuda/${version}
setenv CUDA_HOME $root
prepend-path PATH $root/bin
prepend-path LD_LIBRARY_PATH $root/lib64
"""

LUA = """help([[CUDA]])
whatis("Version: 12.1")
local version = myModuleVersion()
local base = pathJoin("/apps", "cuda", version)
setenv("CUDA_ROOT", base) -- what CMake reads
prepend_path("PATH", pathJoin(base, "bin"))
"""


def write_module(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def found_modules(*folders: Path) -> list[tuple[str, str]]:
    environ = {"MODULEPATH": os.pathsep.join(map(str, folders))}
    return [(name, str(home)) for name, home in module_toolkits(environ)]


def test_modules_in_tcl_and_lua_are_parsed(tmp_path: Path) -> None:
    write_module(tmp_path / "one", "cuda/11.7", TCL)
    write_module(tmp_path / "two", "CUDA/12.1.1.lua", LUA)
    write_module(tmp_path / "two", "CUDA/.modulerc.lua", LUA)
    write_module(tmp_path / "two", "gcc/11", TCL)
    assert found_modules(tmp_path / "one", tmp_path / "missing", tmp_path / "two") == [
        ("cuda/11.7", "/apps/cuda/11.7"),
        ("CUDA/12.1.1", "/apps/cuda/12.1.1"),
    ]


def test_a_module_may_only_extend_path(tmp_path: Path) -> None:
    write_module(tmp_path, "cuda/9.2", "prepend-path PATH {/opt/cuda-9.2/bin}\n")
    write_module(tmp_path, "cuda/11.8", "prepend-path PATH {/opt/cuda-11.8/bin}\n")
    write_module(
        tmp_path,
        "cuda/12.0.lua",
        'root = "/opt/" .. "cuda-12.0"\nprepend_path("PATH", root .. "/bin")\n',
    )
    assert found_modules(tmp_path) == [
        ("cuda/12.0", "/opt/cuda-12.0"),
        ("cuda/11.8", "/opt/cuda-11.8"),
        ("cuda/9.2", "/opt/cuda-9.2"),
    ]


def test_a_module_that_computes_its_folder_is_left_out(tmp_path: Path) -> None:
    write_module(tmp_path, "cuda/11.8", "set root [exec which-cuda]\nsetenv CUDA_HOME $root\n")
    write_module(tmp_path, "cuda/12.0.lua", 'setenv("CUDA_HOME", os.getenv("SITE") .. "/cuda")\n')
    write_module(tmp_path, "cuda/12.1", "setenv CUDA_HOME relative/cuda\n")
    assert found_modules(tmp_path) == []


def test_without_modules_nothing_is_looked_for() -> None:
    assert list(module_toolkits({})) == []


CUBLAS = ToolkitPart(
    "cublas", "cuBLAS", "nvidia-cublas", ("cublas_v2.h",), ("libcublas.so",), None, "", ""
)

NVTX = ToolkitPart(
    "nvtx", "NVTX", "nvidia-nvtx", ("nvtx3/n.h",), (), SpecifierSet(">=12.9"), "", ""
)


@pytest.mark.parametrize(
    ("headers", "libraries"),
    [
        ("include", "lib64"),
        ("include/cccl", "lib"),
        ("targets/x86_64-linux/include", "targets/x86_64-linux/lib"),
        ("extras/CUPTI/include", "extras/CUPTI/lib64"),
        ("include", "lib/x86_64-linux-gnu"),
    ],
)
def test_a_part_needs_its_header_and_its_library(
    headers: str, libraries: str, tmp_path: Path
) -> None:
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,)
    header = file(tmp_path / headers / "cublas_v2.h")
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,), "the library is missing"
    library = file(tmp_path / libraries / "libcublas.so")
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == ()
    header.unlink()
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,), "the header is missing"
    header.touch()
    library.unlink()
    library.symlink_to("libcublas.so.11")  # a dangling link
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,)


def test_a_part_counts_only_for_toolkits_that_have_it(tmp_path: Path) -> None:
    assert lacking_toolkit_parts(tmp_path, "12.8", [NVTX]) == ()
    assert lacking_toolkit_parts(tmp_path, "12.9", [NVTX]) == (NVTX,)


def test_names_of_parts_are_listed_once() -> None:
    assert format_part_names([CUBLAS, NVTX, NVTX]) == "cuBLAS, NVTX"


def test_a_folder_of_the_system_is_no_toolkit() -> None:
    assert is_spread_in_system(Path("/usr"))
    assert is_spread_in_system(Path("/usr/local"))
    assert not is_spread_in_system(Path("/usr/local/cuda-11.8"))

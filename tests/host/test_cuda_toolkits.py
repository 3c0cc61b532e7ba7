"""CUDA toolkits of a machine: found, by environment modules, and their components."""

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
    module_toolkits,
)
from torchmill.host.native import native_arch
from torchmill.host.programs import make_runner
from torchmill.host.provisioned import (
    RECORD,
    ProvisionRecord,
    format_provision_record,
    provisioned_compilers,
)
from torchmill.host.provisioned import list_provisioned as all_kept

pytestmark = made_up_programs


def toolkit(home: Path, nvcc_says: str = "") -> Path:
    program(home / "bin", "nvcc", nvcc_says)
    (home / "include").mkdir(exist_ok=True)
    (home / "include/cuda_runtime_api.h").touch()
    return home


def toolkits(environ: dict[str, str], root: Path) -> dict[str, str]:
    return cuda_toolkits.find_toolkits(environ, root, root / "home", make_runner(environ))


def test_toolkits_are_found_and_asked_in_three_ways(tmp_path: Path) -> None:
    new = toolkit(tmp_path / "usr/local/cuda-12.4")
    (new / "version.json").write_text(
        json.dumps({"cuda": {"name": "CUDA SDK", "version": "12.4.20240318"}})
    )
    (tmp_path / "usr/local/cuda").symlink_to(new)
    old = toolkit(tmp_path / "usr/local/cuda-10.2")
    (old / "version.txt").write_text("CUDA Version 10.2.89\n")
    (tmp_path / "usr/local/cuda-11.0-runtime").mkdir()  # no nvcc: nothing to build with
    mute = toolkit(
        tmp_path / "usr/local/cuda-11.8", "Cuda compilation tools, release 11.8, V11.8.89"
    )
    assert toolkits(only(tmp_path), tmp_path) == {
        "12.4": str(new),
        "11.8": str(mute),
        "10.2": str(old),
    }


def test_debians_toolkit_is_used_from_usr(tmp_path: Path) -> None:
    usr = toolkit(tmp_path / "usr", "Cuda compilation tools, release 11.8, V11.8.89")
    assert toolkits(only(tmp_path), tmp_path) == {}
    (usr / "lib/nvidia-cuda-toolkit").mkdir(parents=True)
    assert toolkits(only(tmp_path), tmp_path) == {"11.8": str(usr)}


def test_the_toolkit_that_is_named_goes_first(tmp_path: Path) -> None:
    said = "release 12.1, V12.1.105"
    toolkit(tmp_path / "usr/local/cuda-12.1", said)
    mine = toolkit(tmp_path / "mine", said)
    assert toolkits(only(tmp_path, CUDA_HOME=str(mine)), tmp_path) == {"12.1": str(mine)}
    assert toolkits(only(mine / "bin"), tmp_path) == {"12.1": str(tmp_path / "usr/local/cuda-12.1")}
    assert toolkits(only(mine / "bin"), tmp_path / "empty") == {"12.1": str(mine)}


def test_a_toolkit_that_does_not_tell_its_version_is_left_out(tmp_path: Path) -> None:
    toolkit(tmp_path / "usr/local/cuda", "no idea")
    assert toolkits(only(tmp_path), tmp_path) == {}


def kept(home: Path, name: str, kind: str = "toolkit", completes: str = "") -> Path:
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


def test_a_kept_toolkit_goes_before_the_systems_and_after_the_named_one(tmp_path: Path) -> None:
    toolkit(tmp_path / "usr/local/cuda-11.8", "release 11.8, V11.8.89")
    mine = toolkit(tmp_path / "mine", "release 11.8, V11.8.89")
    folder = kept(tmp_path / "home", "11.8")
    gcc = kept(tmp_path / "home", "gcc-11", "compiler")
    cache = tmp_path / "home/.cache/torchmill"
    assert provisioned_compilers(cache, native_arch()) == [gcc / "bin/g++-11"]
    assert {one.home for one in all_kept(cache, native_arch()).values()} == {folder, gcc}
    assert toolkits(only(tmp_path), tmp_path) == {"11.8": str(folder)}
    assert toolkits(only(tmp_path, CUDA_HOME=str(mine)), tmp_path) == {"11.8": str(mine)}
    (folder / RECORD).unlink()  # half removed
    assert toolkits(only(tmp_path), tmp_path) == {"11.8": str(tmp_path / "usr/local/cuda-11.8")}


def test_a_completed_toolkit_goes_before_the_one_that_it_completes(tmp_path: Path) -> None:
    bare = toolkit(tmp_path / "usr/local/cuda-11.8", "release 11.8, V11.8.89")
    (tmp_path / "usr/local/cuda").symlink_to(bare)
    whole = kept(tmp_path / "home", "11.8-completed-0", completes=str(bare))
    environ = only(tmp_path, CUDA_HOME=str(tmp_path / "usr/local/cuda"))
    seen = list(
        cuda_toolkits.complete_toolkits(environ, tmp_path, tmp_path / "home", make_runner(environ))
    )
    assert [(one.home, one.found_by) for one in seen] == [
        (whole, f"completed from {bare}"),
        (tmp_path / "usr/local/cuda", "CUDA_HOME"),
    ]
    other = toolkit(tmp_path / "other", "release 11.8, V11.8.89")
    assert toolkits(only(tmp_path, CUDA_HOME=str(other)), tmp_path) == {"11.8": str(other)}


def test_a_compiler_alone_is_no_toolkit_and_can_be_completed(tmp_path: Path) -> None:
    program(tmp_path / "usr/local/cuda-11.8/bin", "nvcc", "release 11.8, V11.8.89")
    environ = only(tmp_path)
    machine = (environ, tmp_path, tmp_path / "home", make_runner(environ))
    assert list(cuda_toolkits.complete_toolkits(*machine)) == []
    assert [one.version for one in cuda_toolkits.toolkits_with_compiler(*machine)] == ["11.8"]


def test_conda_hpc_sdk_and_modules_are_looked_through(tmp_path: Path) -> None:
    active = toolkit(tmp_path / "somewhere/env", "release 11.3, V11.3.109")
    noted = toolkit(tmp_path / "elsewhere", "release 11.4, V11.4.100")
    usual = toolkit(tmp_path / "home/miniforge3/envs/cuda", "release 12.1, V12.1.105")
    program(
        tmp_path / "home/miniforge3/bin", "nvcc", "release 12.6, V12.6.20"
    )  # headers lie elsewhere
    sdk = toolkit(
        tmp_path / "opt/nvidia/hpc_sdk/Linux_x86_64/23.1/cuda/12.0", "release 12.0, V12.0.76"
    )
    site = toolkit(tmp_path / "apps/cuda", "release 11.7, V11.7.64")
    (tmp_path / "home/.conda").mkdir()
    (tmp_path / "home/.conda/environments.txt").write_text(
        f"{noted}\n{tmp_path / 'gone'}\n", encoding="utf-8"
    )
    (tmp_path / "modules/cuda").mkdir(parents=True)
    (tmp_path / "modules/cuda/11.7").write_text(f"setenv CUDA_HOME {site}\n", encoding="utf-8")
    environ = only(tmp_path, CONDA_PREFIX=str(active), MODULEPATH=str(tmp_path / "modules"))
    seen = cuda_toolkits.complete_toolkits(
        environ, tmp_path, tmp_path / "home", make_runner(environ)
    )
    assert [(one.version, one.home, one.found_by) for one in seen] == [
        ("11.7", site, "module cuda/11.7"),
        ("11.3", active, "conda"),
        ("11.4", noted, "conda"),
        ("12.1", usual, "conda"),
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


def written(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def found(*folders: Path) -> list[tuple[str, str]]:
    environ = {"MODULEPATH": os.pathsep.join(map(str, folders))}
    return [(name, str(home)) for name, home in module_toolkits(environ)]


def test_modules_in_tcl_and_lua_are_read(tmp_path: Path) -> None:
    written(tmp_path / "one", "cuda/11.7", TCL)
    written(tmp_path / "two", "CUDA/12.1.1.lua", LUA)
    written(tmp_path / "two", "CUDA/.modulerc.lua", LUA)
    written(tmp_path / "two", "gcc/11", TCL)
    assert found(tmp_path / "one", tmp_path / "missing", tmp_path / "two") == [
        ("cuda/11.7", "/apps/cuda/11.7"),
        ("CUDA/12.1.1", "/apps/cuda/12.1.1"),
    ]


def test_a_module_may_only_extend_path(tmp_path: Path) -> None:
    written(tmp_path, "cuda/11.8", "prepend-path PATH {/opt/cuda-11.8/bin}\n")
    written(
        tmp_path,
        "cuda/12.0.lua",
        'root = "/opt/" .. "cuda-12.0"\nprepend_path("PATH", root .. "/bin")\n',
    )
    assert found(tmp_path) == [("cuda/12.0", "/opt/cuda-12.0"), ("cuda/11.8", "/opt/cuda-11.8")]


def test_a_module_that_computes_its_folder_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, "cuda/11.8", "set root [exec which-cuda]\nsetenv CUDA_HOME $root\n")
    written(tmp_path, "cuda/12.0.lua", 'setenv("CUDA_HOME", os.getenv("SITE") .. "/cuda")\n')
    written(tmp_path, "cuda/12.1", "setenv CUDA_HOME relative/cuda\n")
    assert found(tmp_path) == []


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
def test_a_part_is_there_with_its_header_and_its_library(
    headers: str, libraries: str, tmp_path: Path
) -> None:
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,)
    header = file(tmp_path / headers / "cublas_v2.h")
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,), "nothing to link with"
    library = file(tmp_path / libraries / "libcublas.so")
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == ()
    header.unlink()
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,), (
        "as where it is for running alone"
    )
    header.touch()
    library.unlink()
    library.symlink_to("libcublas.so.11")  # whose library has gone
    assert lacking_toolkit_parts(tmp_path, "11.8", [CUBLAS]) == (CUBLAS,)


def test_a_part_counts_for_the_toolkits_that_have_it(tmp_path: Path) -> None:
    assert lacking_toolkit_parts(tmp_path, "12.8", [NVTX]) == ()
    assert lacking_toolkit_parts(tmp_path, "12.9", [NVTX]) == (NVTX,)


def test_parts_are_called_by_their_names_each_once() -> None:
    assert format_part_names([CUBLAS, NVTX, NVTX]) == "cuBLAS, NVTX"


def test_the_folder_of_a_system_is_no_toolkits_own() -> None:
    assert is_spread_in_system(Path("/usr"))
    assert is_spread_in_system(Path("/usr/local"))
    assert not is_spread_in_system(Path("/usr/local/cuda-11.8"))

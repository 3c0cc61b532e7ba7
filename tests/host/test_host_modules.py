"""Toolkits that environment modules lead to."""

import os
from pathlib import Path

from torchmill.host.cuda_toolkits import module_toolkits

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
        tmp_path, "cuda/12.0.lua", 'root = "/opt/" .. "cuda-12.0"\nprepend_path("PATH", root .. "/bin")\n'
    )
    assert found(tmp_path) == [("cuda/12.0", "/opt/cuda-12.0"), ("cuda/11.8", "/opt/cuda-11.8")]


def test_a_module_that_computes_its_folder_is_left_out(tmp_path: Path) -> None:
    written(tmp_path, "cuda/11.8", "set root [exec which-cuda]\nsetenv CUDA_HOME $root\n")
    written(tmp_path, "cuda/12.0.lua", 'setenv("CUDA_HOME", os.getenv("SITE") .. "/cuda")\n')
    written(tmp_path, "cuda/12.1", "setenv CUDA_HOME relative/cuda\n")
    assert found(tmp_path) == []


def test_without_modules_nothing_is_looked_for() -> None:
    assert list(module_toolkits({})) == []

"""CUDA toolkits, wherever and however they lie."""

import json
from pathlib import Path

from machines import made_up_programs, only, program

from torchwright.host import cuda
from torchwright.host.programs import runner

pytestmark = made_up_programs


def toolkit(home: Path, nvcc_says: str = "") -> Path:
    program(home / "bin", "nvcc", nvcc_says)
    (home / "include").mkdir(exist_ok=True)
    (home / "include/cuda_runtime_api.h").touch()
    return home


def toolkits(environ: dict[str, str], root: Path) -> dict[str, str]:
    return cuda.toolkits(environ, root, runner(environ))


def test_toolkits_are_found_and_asked_in_three_ways(tmp_path: Path) -> None:
    new = toolkit(tmp_path / "usr/local/cuda-12.4")
    (new / "version.json").write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": "12.4.20240318"}}))
    (tmp_path / "usr/local/cuda").symlink_to(new)
    old = toolkit(tmp_path / "usr/local/cuda-10.2")
    (old / "version.txt").write_text("CUDA Version 10.2.89\n")
    (tmp_path / "usr/local/cuda-11.0-runtime").mkdir()  # no nvcc: nothing to build with
    mute = toolkit(tmp_path / "usr/local/cuda-11.8", "Cuda compilation tools, release 11.8, V11.8.89")
    assert toolkits(only(tmp_path), tmp_path) == {"12.4": str(new), "11.8": str(mute), "10.2": str(old)}


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

"""The files of a toolkit, wherever its layout has them, in one CUDA_HOME."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from tests.support.machines import file
from torchmill.fetch.toolkit.provision import copied_bytes, inherited_files, place_inherited


def placed(home: Path, folder: Path, arch: str = "x86_64") -> Sequence[str]:
    folder.mkdir()
    place_inherited(home, folder, arch)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_nvidias_layout_becomes_one_folder(tmp_path: Path) -> None:
    home = tmp_path / "cuda-11.8"
    target = home / "targets/x86_64-linux"
    file(home / "bin/nvcc", "nvcc").chmod(0o755)
    file(target / "include/cuda.h")
    file(target / "lib/libcudart.so.11.0", "library")
    (target / "lib/libcudart.so").symlink_to("libcudart.so.11.0")
    (target / "lib/libcublas.so").symlink_to("libcublas.so.11")  # whose library was taken away
    file(home / "targets/aarch64-linux/lib/libcudart.so.11.0", "of another machine")
    file(home / "extras/CUPTI/include/cupti.h")
    for left_out in ("nsight/bin/ncu", "extras/demo_suite/bandwidthTest", "doc/x.pdf"):
        file(home / left_out)
    file(home / "version.json", "{}")
    (home / "include").symlink_to("targets/x86_64-linux/include")
    (home / "lib64").symlink_to("targets/x86_64-linux/lib")
    (target / "include/round").symlink_to("../include")  # a link that leads to itself
    made = tmp_path / "made"
    assert placed(home, made) == [
        "bin/nvcc",
        "include/cuda.h",
        "include/cupti.h",
        "lib64/libcudart.so",
        "lib64/libcudart.so.11.0",
        "version.json",
    ]
    assert (made / "lib64/libcudart.so").readlink() == Path("libcudart.so.11.0")
    assert (made / "lib64/libcudart.so").read_text() == "library"
    assert os.access(made / "bin/nvcc", os.X_OK)


def test_contents_are_shared_on_one_disk(tmp_path: Path) -> None:
    library = file(tmp_path / "cuda/lib64/libcudart.so.11.0", "library")
    outside = file(tmp_path / "elsewhere/nvcc", "nvcc")
    (tmp_path / "cuda/bin").mkdir()
    (tmp_path / "cuda/bin/nvcc").symlink_to(outside)
    assert placed(tmp_path / "cuda", tmp_path / "made") == ["bin/nvcc", "lib64/libcudart.so.11.0"]
    assert library.samefile(tmp_path / "made/lib64/libcudart.so.11.0")
    program = tmp_path / "made/bin/nvcc"
    assert not program.is_symlink(), "nvcc looks for its parts where it lies"
    assert copied_bytes(tmp_path / "cuda", tmp_path, "x86_64") == 0
    assert copied_bytes(tmp_path / "cuda", Path("/proc"), "x86_64") == len("library")


def test_of_a_conda_environment_only_nvidias_files_count(tmp_path: Path) -> None:
    nvcc = ["bin/nvcc", "targets/x86_64-linux/include/cuda.h", "nvvm/bin/cicc", "lib/pkgconfig/cudart.pc"]
    for name, paths in {"cuda-nvcc-impl": nvcc, "python": ["bin/python", "include/python3/Python.h"]}.items():
        for path in paths:
            file(tmp_path / "env" / path)
        said = json.dumps({"name": name, "files": paths})
        file(tmp_path / "env/conda-meta" / f"{name}-1.json", said)
    assert [where for where, _ in inherited_files(tmp_path / "env", "x86_64")] == [
        "bin/nvcc",
        "include/cuda.h",
        "nvvm/bin/cicc",
    ]

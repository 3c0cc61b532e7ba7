"""A PATH without nvcc, for builds without CUDA."""

import os
import shutil
from pathlib import Path

from torchmill.cell.hidden_nvcc import hide_nvcc


def make_programs(folder: Path, *names: str) -> str:
    """Make a folder with programs of these names; return its path."""
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\necho {folder}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_a_folder_without_nvcc_stays_on_path(tmp_path: Path) -> None:
    path = make_programs(tmp_path / "bin", "gcc")
    assert hide_nvcc(path, tmp_path / "links") == path


def test_the_other_programs_beside_nvcc_stay_and_stale_links_go(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    path = make_programs(folder, "gcc", "ld", "nvcc")
    hidden = hide_nvcc(path, tmp_path / "links")
    assert shutil.which("nvcc", path=hidden) is None
    gcc = shutil.which("gcc", path=hidden)
    assert gcc is not None
    assert Path(gcc).resolve() == (folder / "gcc").resolve()
    (folder / "ld").unlink()
    assert hide_nvcc(path, tmp_path / "links") == hidden
    assert not os.path.lexists(Path(hidden) / "ld")


def test_folders_with_similar_paths_are_replaced_by_different_ones(tmp_path: Path) -> None:
    folders = [
        make_programs(tmp_path / "cuda-11/bin", "nvcc", "ptxas"),
        make_programs(tmp_path / "cuda/11/bin", "nvcc", "nvlink"),
    ]
    hidden = hide_nvcc(os.pathsep.join(folders), tmp_path / "links")
    for program in ("ptxas", "nvlink"):
        assert shutil.which(program, path=hidden), program

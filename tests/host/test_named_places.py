"""Places that a log names are looked at below trusted folders only, and nothing there is run."""

import os
from pathlib import Path

from torchmill.host.named_places import InstalledTorch, find_torch, first_existing

VERSION = """from typing import Optional
__version__ = '{}'
debug = False
cuda: Optional[str] = {}
"""


def install_torch(environment: Path, version: str, cuda: str) -> Path:
    site = environment / "lib/python3.11/site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch/version.py").write_text(VERSION.format(version, cuda), encoding="utf-8")
    return site


def test_a_path_counts_only_below_a_trusted_folder(tmp_path: Path) -> None:
    trusted = tmp_path / "home"
    inside = trusted / "project"
    outside = tmp_path / "home-of-another"
    for folder in (inside, outside):
        folder.mkdir(parents=True)
    paths = [str(outside), str(trusted / "gone"), str(inside)]
    assert first_existing(paths, [str(trusted)]) == str(inside)
    assert first_existing(paths[:2], [str(trusted)]) is None


def test_torch_is_read_in_the_folder_or_the_environment_that_a_log_names(tmp_path: Path) -> None:
    site = install_torch(tmp_path / "env", "2.5.1+cu124", "'12.4'")
    torch = InstalledTorch("2.5.1+cu124", "12.4", "3.11")
    folders = [str(tmp_path)]
    assert find_torch([str(site)], [], folders) == torch
    assert find_torch([], [str(tmp_path / "env")], folders) == torch
    assert find_torch([str(site)], [str(tmp_path / "env")], ["/nowhere"]) is None


def test_torch_without_cuda_has_none(tmp_path: Path) -> None:
    site = install_torch(tmp_path, "2.5.1+cpu", "None")
    torch = find_torch([str(site)], [], [str(tmp_path)])
    assert torch is not None
    assert torch.cuda is None


def test_a_pipe_in_place_of_a_file_is_not_opened(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    (site / "torch").mkdir(parents=True)
    os.mkfifo(site / "torch/version.py")  # to read it would wait for ever
    assert find_torch([str(site)], [], [str(tmp_path)]) is None


def test_no_more_than_the_beginning_of_a_file_is_read(tmp_path: Path) -> None:
    site = install_torch(tmp_path, "2.5.1", "None")
    file = site / "torch/version.py"
    file.write_text("#" * 100_000 + "\n" + VERSION.format("2.5.1", "None"), encoding="utf-8")
    assert find_torch([str(site)], [], [str(tmp_path)]) is None

"""The processors that this process may use."""

import os
from pathlib import Path

import pytest
from millpress.processors import usable_processors


@pytest.fixture
def cgroup_file(tmp_path: Path) -> Path:
    """Return the file that names this process's control groups: one of each version."""
    file = tmp_path / "cgroup"
    file.write_text("4:memory:/old\n0::/batch/job\n")
    return file


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, None),
        ({"batch/job": "max 100000"}, None),
        ({"batch/job": "100000 100000"}, 1),
        ({"batch": "100000 100000", "batch/job": "max 100000"}, 1),
        ({"batch/job": "1000 100000"}, 1),
        ({"batch/job": "half"}, None),
    ],
)
def test_quotas_of_all_groups_above_count(
    tmp_path: Path, cgroup_file: Path, limits: dict[str, str], count: int | None
) -> None:
    for group, limit in limits.items():
        folder = tmp_path / "root" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpu.max").write_text(f"{limit}\n")
    unlimited = usable_processors(tmp_path / "nowhere", tmp_path / "no-cgroups")
    assert 1 <= unlimited <= (os.cpu_count() or 1)
    assert usable_processors(tmp_path / "root", cgroup_file) == (count or unlimited)

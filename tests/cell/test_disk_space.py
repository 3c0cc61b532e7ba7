"""The disks of a build before it starts, and what it has written when it ends."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import stored_things as kept
from tests.support.commands import ROOT, environment
from torchmill.cell import disk_space
from torchmill.cell.folders import BuildFolders
from torchmill.host import disk_usage


def folders(home: Path) -> BuildFolders:
    trees = kept.layout(home).trees
    return BuildFolders(trees / kept.TREE, trees / kept.CELL, home / "envs" / "wheel-3-10-cpu")


def test_one_disk_holds_all_and_nothing_need_be_there(tmp_path: Path) -> None:
    (room,) = disk_space.disk_spaces(folders(tmp_path), tmp_path / "cache", None)
    assert room.present_bytes == dict.fromkeys(("tree", "kit", "environment", "trial", "cache"), 0)
    assert abs(room.free - shutil.disk_usage(tmp_path).free) < 2**30
    assert not list(tmp_path.iterdir()), "looking makes nothing"


def test_what_is_there_counts_once_for_its_part(tmp_path: Path) -> None:
    kept.fill(tmp_path)
    build_folders = folders(tmp_path)
    kept.write(build_folders.tree / "kit" / "bin" / "cmake", 200_000)
    source = kept.fetched(tmp_path, "base", "v1.0.0")
    (room,) = disk_space.disk_spaces(build_folders, tmp_path / "cache", source)
    assert room.present_bytes["kit"] >= 200_000
    assert 200_000 <= room.present_bytes["tree"] < 300_000, (
        "the tree and the outputs, without the kit"
    )
    assert room.present_bytes["environment"] >= 100_000
    assert room.source_files == 0, "the source is copied already"
    shutil.rmtree(build_folders.tree / "source")
    assert disk_space.disk_spaces(build_folders, tmp_path / "cache", source)[0].source_files == 1
    (source.path.parent / "source.json").write_text("{")
    assert disk_space.disk_spaces(build_folders, tmp_path / "cache", source)[0].source_files == 0, (
        "nothing is known"
    )


def test_each_disk_is_told_apart(tmp_path: Path) -> None:
    other = Path("/dev/shm")  # noqa: S108 - a disk in memory, on which nothing is made
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second disk here")
    build_folders = BuildFolders(
        tmp_path / "trees" / "a", tmp_path / "trees" / "b", other / "absent" / "env"
    )
    first, second = disk_space.disk_spaces(build_folders, tmp_path / "cache", None)
    assert (set(first.present_bytes), set(second.present_bytes)) == (
        {"tree", "kit", "trial", "cache"},
        {"environment"},
    )
    assert (first.folder, second.folder) == (str(tmp_path), str(other))


def test_what_was_written_is_told_by_part(tmp_path: Path) -> None:
    kept.fill(tmp_path)
    build_folders = folders(tmp_path)
    kept.write(build_folders.tree / "kit" / "cmake", 300_000)
    sizes = disk_space.written_bytes(build_folders)
    kit = disk_usage.measure_paths([build_folders.tree / "kit"]).size
    all_bytes = disk_usage.measure_paths(
        [*build_folders.tree.iterdir(), *build_folders.outputs.iterdir(), build_folders.environment]
    ).size
    assert sum(sizes.values()) == all_bytes - kit, "what the kit takes is known without"
    assert sizes["tree"] >= 100_000
    alone = kept.layout(tmp_path).trees / kept.VISION
    sizes = disk_space.written_bytes(BuildFolders(alone, alone, tmp_path / "absent"))
    assert sizes["tree"] >= 200_000
    assert (sizes["outputs"], sizes["environment"]) == (0, 0)


def test_the_newest_tree_of_the_family_is_gone_on_in(tmp_path: Path) -> None:
    layout = kept.layout(tmp_path)
    newest = [disk_space.newest_tree(layout, "v1.0.0", "wheel-cpu", "wheel-3.10-cpu")]
    kept.fill(tmp_path)
    newer = layout.trees / "v1.0.0" / "wheel-cpu-ffffffff"
    kept.write(newer / "source" / "a", 1)
    kept.age(layout.trees / kept.TREE, 2)
    newest.append(disk_space.newest_tree(layout, "v1.0.0", "wheel-cpu", "wheel-3.10-cpu"))
    newest.append(disk_space.newest_tree(layout, "v0.1.0", "vision-cpu", "vision-3.10-cpu"))
    assert newest == [layout.trees / kept.CELL, newer, layout.trees / kept.VISION]


def on_a_small_disk(home: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run invoke, as a script has it, with a home on a disk of sixteen megabytes of its own making."""
    home.mkdir()
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("this machine lets nobody mount a disk of his own")
    mounted = f'mount -t tmpfs -o size=16m,nr_inodes=300 none "$1" && cd "$1" && shift && {script}'
    extra = {
        "TORCHMILL_CONFIGS": str(ROOT / "sample" / "build_configs"),
        "NOX_ENVDIR": str(home.with_name("envs")),
    }
    command = [sys.executable, "-m", "invoke", f"--search-root={ROOT}", *arguments]
    return subprocess.run(
        [*apart, "sh", "-c", mounted, "sh", home, *command],
        env=environment(home, extra),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_disk_that_is_too_small_is_told_before_the_build_starts(tmp_path: Path) -> None:
    home = tmp_path / "home"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    done = on_a_small_disk(home, 'exec "$@"', "doctor", f"wheel-{version}-cpu", "--json")
    findings = {finding["subject"]: finding for finding in json.loads(done.stdout)["findings"]}
    small = findings[f"disk of {home}"]
    assert (small["found"], small["verdict"]) == ("16.0 MiB free", "failure"), done.stderr
    assert small["cure"].startswith("`invoke clean --free '")
    assert findings[f"disk of {tmp_path}"]["verdict"] == "ok"
    assert done.returncode == 7


def test_a_disk_that_is_full_can_be_cleaned(tmp_path: Path) -> None:
    """A lock that is not there cannot be made, so nobody has it."""
    tree = ".torchmill/trees/v1.0.0/wheel-cpu-0123abcd/source"
    fill = f"mkdir -p {tree} && cat /dev/zero > {tree}/a.o; for n in $(seq 300); do true > $n || break; done"
    done = on_a_small_disk(
        tmp_path / "home",
        f'{{ {fill}; }} 2>/dev/null; exec "$@"',
        "clean",
        "--kind=trees",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [folder["name"] for folder in report["removed"]] == ["v1.0.0/wheel-cpu-0123abcd"], report
    assert report["freed"] > 10_000_000

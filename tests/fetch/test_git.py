"""Clone releases with git from real repositories on this disk, and understand git's output."""

import contextlib
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from tests.support.source_upstream import (
    BRANCH,
    Forge,
    Link,
    git,
    layout,
    make_forge,
    package,
    release,
    request,
)
from torchmill.core import silence
from torchmill.core.errors import HostError
from torchmill.core.paths import Layout
from torchmill.fetch.source.fetcher import fetch_source
from torchmill.fetch.source.git_command import (
    GitCheckout,
    uncommitted_changes,
)
from torchmill.fetch.source.git_transport import GitTransport, run_git_quietly
from torchmill.fetch.source.history import CommitHistory
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import load_source
from torchmill.fetch.source.verification import check_source

ROOT = Path(__file__).parents[2]
# An ssh that runs the server's command on this machine and logs it. It breaks once if there is a
# file "break", and hangs on repositories that the file "hang" names.
SSH = """#!/bin/sh
while [ $# -gt 1 ]; do shift; done
echo "$1" >> "{folder}/log"
[ -f "{folder}/break" ] && rm "{folder}/break" && echo "Connection reset by peer" >&2 && exit 255
[ -f "{folder}/hang" ] && case "$1" in *"$(cat "{folder}/hang")"*) exec sleep 60;; esac
{forget}
eval "$1"
"""


# A git like 2.17 of Ubuntu 18.04: it does not read GIT_CONFIG_COUNT, fails on newer options and on
# protocol 2, and `git status` reports renames although they are switched off.
OLD_GIT = """#!/bin/sh
unset GIT_CONFIG_COUNT
for word; do
  case $word in --no-renames | --no-commit-header | --filter=*)
    echo "error: unknown option or filter '$word'" >&2
    exit 129 ;;
  esac
done
[ "$({real} config --get protocol.version)" != 2 ] || exit 128
exec {real} -c status.renames=true "$@"
"""


@pytest.fixture
def old_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "old" / "git"
    program.parent.mkdir()
    program.write_text(OLD_GIT.format(real=shutil.which("git")), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the user's own settings from the tests."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in (
        "XDG_CONFIG_HOME",
        "GIT_CONFIG_GLOBAL",
        "https_proxy",
        "http_proxy",
        "HTTPS_PROXY",
        "HTTP_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Forge:
    """Return repositories that tests only read."""
    folder = tmp_path_factory.mktemp("forge")
    return make_forge(folder, folder.as_uri())


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Forge:
    """Return repositories whose addresses are unreachable, so that only a mirror has them."""
    return make_forge(tmp_path_factory.mktemp("remote"), "https://forge.invalid")


@pytest.fixture(scope="module")
def over_ssh(tmp_path_factory: pytest.TempPathFactory) -> Forge:
    """Return repositories that are reached by ssh."""
    folder = tmp_path_factory.mktemp("ssh")
    return make_forge(folder, f"ssh://forge{folder}")


@pytest.fixture(scope="module")
def once_fetched(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a layout with v1 fetched, which tests copy."""
    place = layout(tmp_path_factory.mktemp("fetched"))
    fetch_source(request(forge), place, SilentProgress())
    return place


@pytest.fixture
def source(once_fetched: Layout, place: Layout) -> Source:
    """Return a copy of the fetched v1 that the test may change."""
    shutil.copytree(once_fetched.root, place.root, symlinks=True)
    source = load_source(place, "torch", "v1")
    assert source is not None
    return source


@pytest.fixture
def place(tmp_path: Path) -> Layout:
    return layout(tmp_path)


def test_settings_of_the_working_folder_have_no_effect(
    forge: Forge, place: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unpacked archive may contain a git folder, whose settings name programs."""
    unpacked = tmp_path / "unpacked"
    canary = tmp_path / "canary"
    git(unpacked.parent, "init", "--quiet", str(unpacked))
    git(unpacked, "config", f"url.ext::touch {canary} #.insteadOf", "file://")
    git(unpacked, "config", "protocol.ext.allow", "always")
    monkeypatch.chdir(unpacked)
    source = fetch_source(request(forge, commit=None), place, SilentProgress())
    assert (source.provider, canary.exists()) == ("git", False)


def use_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, forget: str = "") -> None:
    script = folder / "ssh"
    script.write_text(SSH.format(folder=folder, forget=forget), encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", str(script))


def submodules_as_git_sees_them(tree: Path) -> dict[str, str]:
    """Return path -> commit; fail if a submodule is missing, moved or in conflict."""
    lines = subprocess.run(
        ["git", "-C", str(tree), "submodule", "status", "--recursive"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert all(line.startswith(" ") for line in lines), lines
    return {line[42:].split(" (")[0]: line[1:41] for line in lines}


def visible(place: Layout) -> list[str]:
    """Return the names of the trees that appear to be complete."""
    home = place.source("torch")
    return [
        path.name
        for path in home.iterdir()
        if path.name != "lock" and not path.name.startswith(".")
    ]


class TestAFreshFetch:
    def test_is_the_recorded_commit_with_every_pinned_submodule(
        self, forge: Forge, place: Layout
    ) -> None:
        source = fetch_source(request(forge), place, SilentProgress())
        assert source.verified
        assert source.commit == git(source.path, "rev-parse", "HEAD") == forge.commits["v1"]
        assert submodules_as_git_sees_them(source.path) == source.submodules
        assert source.submodules == {
            "third_party/middle": forge.commits["middle"],
            "third_party/middle/deps/deep": forge.commits["deep"],
            "third_party/near": forge.commits["near"],
        }
        assert (source.path / "third_party/middle/deps/deep/deep.h").read_text() == "1\n"
        assert git(source.path, "status", "--porcelain", "--ignored") == ""
        assert load_source(place, "torch", "v1") == source

    def test_brings_no_history(self, source: Source) -> None:
        for tree in ("", *source.submodules):
            assert git(source.path / tree, "rev-list", "--all", "--count") == "1"

    def test_writes_no_settings_outside(self, forge: Forge, place: Layout, tmp_path: Path) -> None:
        fetch_source(request(forge), place, SilentProgress())
        assert list((tmp_path / "home").iterdir()) == []

    def test_ignores_the_variables_of_an_outer_git(
        self, forge: Forge, place: Layout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GIT_DIR", "/nowhere")
        monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
        source = fetch_source(request(forge), place, SilentProgress())
        monkeypatch.delenv("GIT_DIR")
        monkeypatch.delenv("GIT_INDEX_FILE")
        assert submodules_as_git_sees_them(source.path) == source.submodules

    def test_of_an_unknown_commit_is_not_verified(self, forge: Forge, place: Layout) -> None:
        source = fetch_source(request(forge, commit=None), place, SilentProgress())
        assert (source.commit, source.verified) == (forge.commits["v1"], False)


class TestASecondFetch:
    def test_starts_no_program(
        self, forge: Forge, place: Layout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = fetch_source(request(forge), place, SilentProgress())
        monkeypatch.setenv("PATH", "/nowhere")
        assert fetch_source(request(forge), place, SilentProgress()) == source
        check_source(source)

    def test_of_another_release_reuses_objects_and_follows_its_submodules(
        self, forge: Forge, place: Layout, source: Source
    ) -> None:
        second = fetch_source(request(forge, "v2"), place, SilentProgress())
        assert submodules_as_git_sees_them(second.path) == {
            "third_party/fresh": forge.commits["fresh"],
            "third_party/middle": forge.commits["moved"],
            "third_party/middle/deps/deep": forge.commits["deep"],
        }
        assert not (second.path / "third_party/near").exists()
        addresses = git(second.path, "config", "--get-regexp", r"^submodule\..*\.url$")
        assert "near" not in addresses
        assert forge.url("elsewhere/middle") in addresses
        middle = git(second.path / "third_party/middle", "config", "remote.origin.url")
        assert middle == forge.url("elsewhere/middle")
        shared = [
            path for path in (second.path / ".git/objects").rglob("*") if path.stat().st_nlink > 1
        ]
        assert any(path.is_file() for path in shared)
        check_source(source)
        check_source(second)
        assert load_source(place, "torch", "v2") == second

    def test_sends_only_what_is_new(
        self, over_ssh: Forge, place: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_ssh(tmp_path, monkeypatch)
        first = fetch_source(request(over_ssh), place, SilentProgress())
        second = fetch_source(request(over_ssh, "v2"), place, SilentProgress())
        assert 0 < self.objects_sent(second) < self.objects_sent(first)
        calls = (tmp_path / "log").read_text()
        assert calls.count("libs/deep") == 1  # its commit is in both releases

    def objects_sent(self, source: Source) -> int:
        log = (source.path.parent / "fetch.log").read_text()
        return sum(int(count) for count in re.findall(r"remote: Total (\d+)", log))

    def test_of_a_branch_gets_its_new_commit(self, tmp_path: Path, place: Layout) -> None:
        forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
        submodule = Link(
            "third_party/near", "../near.git", forge.commit("pytorch/near", {"near.h": "1\n"})
        )
        forge.commit("pytorch/torch", {"setup.py": "first\n"}, (submodule,))
        branch_request = request(forge, ref=BRANCH)
        first = fetch_source(branch_request, place, SilentProgress())
        assert not first.verified
        assert fetch_source(branch_request, place, SilentProgress()) == first
        moved = forge.commit("pytorch/torch", {"setup.py": "later\n"})
        second = fetch_source(branch_request, place, SilentProgress())
        assert (second.commit, second.verified) == (moved, False)
        assert (second.path / "setup.py").read_text() == "later\n"
        assert not (second.path / "third_party").exists()


class TestRef:
    def test_may_be_a_commit_and_the_tag_again(self, forge: Forge, place: Layout) -> None:
        source = fetch_source(request(forge, ref=forge.commits["v2"]), place, SilentProgress())
        assert (source.commit, source.verified) == (forge.commits["v2"], False)
        source = fetch_source(request(forge), place, SilentProgress())
        assert (source.commit, source.verified) == (forge.commits["v1"], True)
        assert submodules_as_git_sees_them(source.path) == source.submodules

    def test_that_is_unknown_is_refused(self, forge: Forge, place: Layout) -> None:
        with refused("unknown-ref"):
            fetch_source(request(forge, ref="abcdef0"), place, SilentProgress())

    def test_whose_commit_is_missing_is_refused(self, forge: Forge, place: Layout) -> None:
        with refused("commit-not-found"):
            fetch_source(request(forge, ref="1" * 40), place, SilentProgress())
        assert visible(place) == []

    @pytest.mark.parametrize("ref", ["--upload-pack=touch x", "-x", "a b", "a..b", ""])
    def test_that_git_would_misread_is_refused(self, forge: Forge, place: Layout, ref: str) -> None:
        with refused("invalid-ref"):
            fetch_source(request(forge, ref=ref), place, SilentProgress())


class TestAMirror:
    def test_serves_every_repository(self, remote: Forge, place: Layout) -> None:
        source = fetch_source(request(remote, mirror=str(remote.folder)), place, SilentProgress())
        assert source.verified
        assert submodules_as_git_sees_them(source.path) == source.submodules
        assert len(source.submodules) == 3
        middle = git(source.path / "third_party/middle", "config", "remote.origin.url")
        assert middle == "https://forge.invalid/libs/middle.git"

    def test_may_be_flat(self, remote: Forge, place: Layout, tmp_path: Path) -> None:
        for bare in remote.folder.glob("*/*.git"):
            if bare.parent.name != "elsewhere":
                shutil.copytree(bare, tmp_path / "flat" / bare.name)
        source = fetch_source(
            request(remote, mirror=(tmp_path / "flat").as_uri()), place, SilentProgress()
        )
        assert submodules_as_git_sees_them(source.path) == source.submodules

    def test_without_the_repository_is_refused(
        self, remote: Forge, place: Layout, tmp_path: Path
    ) -> None:
        (tmp_path / "empty").mkdir()
        with refused("repository-not-found"):
            fetch_source(request(remote, mirror=str(tmp_path / "empty")), place, SilentProgress())

    def test_without_the_tag_is_refused(self, remote: Forge, place: Layout) -> None:
        with refused("unknown-ref"):
            fetch_source(request(remote, "v9", mirror=str(remote.folder)), place, SilentProgress())
        assert visible(place) == []

    def test_whose_tag_is_another_commit_is_refused(self, remote: Forge, place: Layout) -> None:
        tag_request = request(remote, commit="2" * 40, mirror=str(remote.folder))
        with refused("wrong-commit"):
            fetch_source(tag_request, place, SilentProgress())
        assert visible(place) == []
        assert load_source(place, "torch", "v1") is None

    @pytest.mark.parametrize(
        "mirror", ["ext::sh -c touch% x", "http://mirror.example", "--upload-pack=x://y"]
    )
    def test_with_an_untrusted_protocol_is_refused(
        self, remote: Forge, place: Layout, mirror: str
    ) -> None:
        with refused("untrusted-protocol"):
            fetch_source(request(remote, mirror=mirror), place, SilentProgress())


class TestAServerThatRefusesCommits:
    """With protocol 0, servers give out only commits that a ref points at, unless configured."""

    @pytest.mark.parametrize("allowed", ["true", "false"])
    def test_is_asked_for_more_history(
        self,
        over_ssh: Forge,
        tmp_path: Path,
        place: Layout,
        monkeypatch: pytest.MonkeyPatch,
        allowed: str,
    ) -> None:
        for bare in over_ssh.folder.glob("*/*.git"):
            git(bare, "config", "uploadpack.allowAnySHA1InWant", allowed)
        use_ssh(tmp_path, monkeypatch, forget="unset GIT_PROTOCOL")
        source = fetch_source(request(over_ssh), place, SilentProgress())
        assert submodules_as_git_sees_them(source.path) == source.submodules
        deep = source.path / "third_party/middle/deps/deep"
        assert git(deep, "rev-list", "--all", "--count") == ("1" if allowed == "true" else "2")


class TestChangesInATree:
    @pytest.mark.parametrize("path", ["setup.py", "new.txt", "third_party/middle/deps/deep/deep.h"])
    def test_are_listed_and_kept(
        self, forge: Forge, place: Layout, source: Source, path: str
    ) -> None:
        (source.path / path).write_text("mine\n")
        with refused("uncommitted-changes"):
            check_source(source)
        other = replace(request(forge), ref=forge.commits["v2"])
        for next_request in (request(forge), other):
            with refused("uncommitted-changes"):
                fetch_source(next_request, place, SilentProgress())
        assert (source.path / path).read_text() == "mine\n"
        assert (
            fetch_source(replace(request(forge), discard=True), place, SilentProgress()) == source
        )
        check_source(source)
        assert (source.path / "new.txt").exists() is False

    def test_that_git_ignores_do_not_matter(
        self, forge: Forge, place: Layout, source: Source
    ) -> None:
        (source.path / "module.pyc").write_text("made by a tool\n")
        check_source(source)
        assert fetch_source(request(forge), place, SilentProgress()) == source
        assert (source.path / "module.pyc").exists()

    def test_that_were_undone_do_not_matter(self, source: Source) -> None:
        text = (source.path / "setup.py").read_text()
        (source.path / "setup.py").write_text(text)
        check_source(source)

    def test_without_a_record_are_not_overwritten(
        self, forge: Forge, place: Layout, source: Source
    ) -> None:
        (source.path.parent / "source.json").unlink()
        (source.path / "setup.py").write_text("mine\n")
        with refused("uncommitted-changes"):
            fetch_source(request(forge), place, SilentProgress())
        assert (source.path / "setup.py").read_text() == "mine\n"

    def test_that_are_committed_stay_in_the_history(
        self, forge: Forge, place: Layout, source: Source
    ) -> None:
        git(source.path, "switch", "-q", "-c", "mine")
        (source.path / "setup.py").write_text("mine\n")
        git(source.path, "commit", "-q", "-a", "-m", "mine")
        with refused("source-moved"):
            check_source(source)
        again = fetch_source(request(forge), place, SilentProgress())
        check_source(again)
        assert git(again.path, "show", "mine:setup.py") == "mine"


class TestAHalfUpdatedTree:
    def break_head(self, source: Source) -> None:
        git(source.path / "third_party/near", "fetch", "-q", "origin", BRANCH)
        git(source.path / "third_party/near", "checkout", "-q", "FETCH_HEAD")

    def break_folder(self, source: Source) -> None:
        shutil.rmtree(source.path / "third_party/middle/deps/deep")

    def break_lock(self, source: Source) -> None:
        (source.path / ".git/index.lock").touch()

    def break_tree(self, source: Source) -> None:
        shutil.rmtree(source.path)

    @pytest.mark.parametrize(
        ("damage", "code"),
        [
            ("head", "source-moved"),
            ("folder", "source-moved"),
            ("lock", "source-moved"),
            ("tree", "source-gone"),
        ],
    )
    def test_is_reported_and_repaired(
        self, forge: Forge, place: Layout, source: Source, damage: str, code: str
    ) -> None:
        getattr(self, f"break_{damage}")(source)
        with refused(code) as raised:
            check_source(source)
        assert "`invoke fetch --tag v1`" in str(raised.value)
        assert fetch_source(request(forge), place, SilentProgress()) == source
        check_source(source)
        assert submodules_as_git_sees_them(source.path) == source.submodules

    def test_with_an_unreadable_record(self, forge: Forge, source: Source, place: Layout) -> None:
        (source.path.parent / "source.json").write_text("{")
        with refused("unreadable-source-record"):
            load_source(place, "torch", "v1")
        assert fetch_source(request(forge), place, SilentProgress()) == source
        assert load_source(place, "torch", "v1") == source

    def test_interrupted_between_two_renames_is_restored(
        self, forge: Forge, place: Layout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = fetch_source(request(forge), place, SilentProgress())
        source.path.parent.rename(place.source("torch") / ".old-v1")
        monkeypatch.setenv("PATH", "/nowhere")
        assert fetch_source(request(forge), place, SilentProgress()) == source
        check_source(source)

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0, reason="giving files away needs root"
    )
    def test_of_another_user_is_refused(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SUDO_UID", raising=False)
        for path in (source.path, source.path / ".git"):
            os.chown(path, 4321, 4321)
        with refused("foreign-repository") as caught:
            check_source(source)
        assert str(caught.value).startswith(f"{source.path} belongs to another user")

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() != 0, reason="giving files away needs root"
    )
    def test_from_a_folder_of_another_user_is_refused(
        self, forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("SUDO_UID", raising=False)
        shutil.copytree(forge.folder, tmp_path / "up")
        os.chown(tmp_path / "up/pytorch/torch.git", 4321, 4321)
        with refused("foreign-repository") as caught:
            fetch_source(
                request(replace(forge, folder=tmp_path / "up", base=(tmp_path / "up").as_uri())),
                layout(tmp_path),
                SilentProgress(),
            )
        assert str(caught.value).startswith(
            f"{tmp_path}/up/pytorch/torch.git belongs to another user"
        )


CHILD = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
from pathlib import Path
from tests.support.source_upstream import Forge, layout, request
from torchmill.fetch.source.fetcher import fetch_source
from tests.support.silent_progress import SilentProgress
forge = Forge(Path({folder!r}), {base!r}, {commits!r})
fetch_source(request(forge), layout(Path({place!r})), SilentProgress())
"""


class TestAStoppedFetch:
    @pytest.fixture
    def waiting(
        self, over_ssh: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> subprocess.Popen[str]:
        """Return a fetch in a process group of its own, which waits for the nested submodule."""
        use_ssh(tmp_path, monkeypatch)
        (tmp_path / "hang").write_text("libs/deep")
        code = CHILD.format(
            root=str(ROOT),
            tests=str(ROOT),
            folder=str(over_ssh.folder),
            base=over_ssh.base,
            commits=over_ssh.commits,
            place=str(tmp_path),
        )
        child = subprocess.Popen(
            [sys.executable, "-c", code], start_new_session=True, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 120
        while "libs/deep" not in self.calls(tmp_path):
            assert time.monotonic() < deadline, "the fetch did not get to the nested submodule"
            time.sleep(0.02)
        return child

    @pytest.fixture
    def killed(self, waiting: subprocess.Popen[str], tmp_path: Path) -> Path:
        """Return the folder of a fetch that was killed with all of its children."""
        child = psutil.Process(waiting.pid)
        for process in (*child.children(recursive=True), child):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
                process.kill()
        waiting.communicate()
        (tmp_path / "hang").unlink()
        return tmp_path

    def calls(self, folder: Path) -> str:
        log = folder / "log"
        return log.read_text() if log.exists() else ""

    def test_ends_at_once_after_ctrl_c(
        self, over_ssh: Forge, waiting: subprocess.Popen[str], tmp_path: Path
    ) -> None:
        os.killpg(waiting.pid, signal.SIGINT)  # as a terminal does
        _, stderr = waiting.communicate(timeout=20)
        assert "InterruptedBuildError: fetching torch v1 was interrupted" in stderr
        assert visible(layout(tmp_path)) == []
        (tmp_path / "hang").unlink()
        assert fetch_source(request(over_ssh), layout(tmp_path), SilentProgress()).verified

    def test_shows_no_tree_and_is_resumed(self, over_ssh: Forge, killed: Path) -> None:
        place = layout(killed)
        assert visible(place) == []
        assert load_source(place, "torch", "v1") is None
        (killed / "log").unlink()
        partial = place.source("torch") / ".partial-v1/tree"
        (partial / ".git/shallow.lock").touch()
        (partial / ".git/modules/the middle/index.lock").touch()
        source = fetch_source(request(over_ssh), place, SilentProgress())
        assert submodules_as_git_sees_them(source.path) == source.submodules
        check_source(source)
        calls = self.calls(killed)
        assert calls.count("pytorch/torch") == 1  # only to resolve the tag
        assert "libs/middle" not in calls
        assert calls.count("libs/deep") == 1

    def test_can_be_resumed_for_another_commit(self, over_ssh: Forge, killed: Path) -> None:
        other_request = request(over_ssh, ref=over_ssh.commits["v2"])
        source = fetch_source(other_request, layout(killed), SilentProgress())
        assert submodules_as_git_sees_them(source.path) == source.submodules
        assert not (source.path / "third_party/near").exists()
        assert git(source.path, "status", "--porcelain", "--ignored") == ""


def test_a_connection_that_breaks_once_is_retried(
    over_ssh: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_ssh(tmp_path, monkeypatch)
    repository = GitCheckout(tmp_path, tmp_path / "repository.git")
    repository.git("init", "-q")
    (tmp_path / "break").touch()
    commit = over_ssh.commits["deep"]
    GitTransport(request(over_ssh), tmp_path).obtain(
        repository, commit, (over_ssh.url("libs/deep"),), run_git_quietly
    )
    assert not (tmp_path / "break").exists()
    assert repository.git("cat-file", "-t", commit) == "commit\n"


def test_files_are_those_of_the_commit_despite_the_users_settings(
    place: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"dos.txt": "a\r\n", "unix.txt": "a\n", "id.txt": "$Id$\n", "big.bin": "pointer\n"}
    settings = {".gitattributes": "*.txt text ident\n*.bin filter=other\n", "setup.py": "\n"}
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    forge.commits["v1"] = forge.commit("pytorch/torch", files | settings, (), "v1")
    (tmp_path / "home/attributes").write_text("* text eol=crlf\n")
    (tmp_path / "templates/info").mkdir(parents=True)
    (tmp_path / "templates/info/attributes").write_text("* text eol=crlf\n")
    (tmp_path / "home/.gitconfig").write_text(f"""
[core]
    autocrlf = true
    eol = crlf
    attributesFile = {tmp_path}/home/attributes
    sparseCheckout = true
[init]
    templateDir = {tmp_path}/templates
[filter "other"]
    smudge = echo wrong
    required = true
""")
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(tmp_path / "templates"))
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    source = fetch_source(request(forge), place, SilentProgress())
    blobs = git(source.path, "ls-tree", "-r", "HEAD").splitlines()
    assert len(blobs) == len(files | settings)
    for line in blobs:
        fields, _, name = line.partition("\t")
        content = (source.path / name).read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content)  # noqa: S324 - git's
        assert blob.hexdigest() == fields.split()[2]


@pytest.mark.usefixtures("old_git")
def test_an_old_git_fetches_and_reports_changes(forge: Forge, place: Layout) -> None:
    source = fetch_source(request(forge), place, SilentProgress())
    folder = GitCheckout(source.path, source.path / ".git")
    assert folder.git("config", "--get", "protocol.allow") == "never\n", "our settings are read"
    git(source.path, "mv", "setup.py", "moved.py")
    assert uncommitted_changes(source.path) == ("moved.py",)


@pytest.mark.usefixtures("old_git")
def test_an_old_git_fetches_a_history_and_describes_a_commit(forge: Forge, tmp_path: Path) -> None:
    history = CommitHistory(tmp_path / "history.git")
    history.fetch(request(forge))
    commit = history.find_commit("v1")
    subject = git(forge.bare("pytorch/torch"), "log", "-1", "--format=%s", commit)
    assert history.describe(commit) == f"{commit} {subject}"


def test_a_silent_server_is_reported_and_given_up(
    place: Layout, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHMILL_SILENCE", "2")
    monkeypatch.setattr(silence, "REPORTED_AFTER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, but never answers
        mirrored_request = replace(
            request(Forge(place.root, "")), mirror=f"git://127.0.0.1:{server.getsockname()[1]}"
        )
        with refused("silent"):
            fetch_source(mirrored_request, place, SilentProgress())
    assert "has sent nothing" in capfd.readouterr().err


class TestHostileSources:
    def test_a_forbidden_object_is_refused(self, tmp_path: Path, place: Layout) -> None:
        forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
        forge.commit("pytorch/torch", {"setup.py": "\n"})
        bare = forge.bare("pytorch/torch")
        blob = git(bare, "rev-parse", "HEAD:setup.py")
        (tmp_path / "tree").write_bytes(b"100644 .git\0" + bytes.fromhex(blob))
        tree = git(bare, "hash-object", "-t", "tree", "-w", "--literally", str(tmp_path / "tree"))
        git(bare, "tag", "-f", "v1", git(bare, "commit-tree", "-m", "x", tree))
        tag_request = request(forge, commit=None)
        with refused("hostile-source"):
            fetch_source(tag_request, place, SilentProgress())

    def test_an_unreadable_gitmodules_is_refused(self, tmp_path: Path, place: Layout) -> None:
        forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
        files = {"setup.py": "\n", ".gitmodules": "[submodule\n"}
        forge.commits["v1"] = forge.commit("pytorch/torch", files, (), "v1")
        with refused("unreadable-gitmodules"):
            fetch_source(request(forge), place, SilentProgress())

    def torch(self, tmp_path: Path, link: Link) -> SourceRequest:
        forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
        commit = forge.commit("pytorch/torch", {"setup.py": "\n"}, (link,), "v1")
        return SourceRequest(package(forge.url("pytorch/torch")), release("v1", commit))

    def test_an_address_that_runs_a_command_is_refused(self, tmp_path: Path, place: Layout) -> None:
        link = Link("sub", f"ext::sh -c touch% {tmp_path}/ran", "1" * 40)
        with refused("untrusted-protocol"):
            fetch_source(self.torch(tmp_path, link), place, SilentProgress())
        assert not (tmp_path / "ran").exists()
        assert visible(place) == []

    @pytest.mark.parametrize("name", ["../../outside", "/outside", "a/../../b"])
    def test_a_name_that_leads_outside_is_refused(
        self, tmp_path: Path, place: Layout, name: str
    ) -> None:
        link = Link("sub", "../sub.git", "1" * 40, name)
        with refused("hostile-source"):
            fetch_source(self.torch(tmp_path, link), place, SilentProgress())


def test_a_missing_submodule_is_refused(tmp_path: Path, place: Layout) -> None:
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    links = (Link("sub", forge.url("libs/gone"), "1" * 40),)
    forge.commits["v1"] = forge.commit("pytorch/torch", {"setup.py": "\n"}, links, "v1")
    with refused("repository-not-found"):
        fetch_source(request(forge), place, SilentProgress())
    assert visible(place) == []


@pytest.mark.parametrize(("debian", "offered"), [({"1": "pytorch"}, True), ({}, False)])
def test_an_unreachable_host_is_refused_quickly(
    place: Layout, debian: dict[str, str], *, offered: bool
) -> None:
    source_request = SourceRequest(
        package("https://127.0.0.1:1/a/b.git", debian), release("v1", None)
    )
    start = time.monotonic()
    with refused("host-unreachable") as raised:
        fetch_source(source_request, place, SilentProgress())
    assert ("--from debian" in str(raised.value)) is offered
    assert time.monotonic() - start < 20
    assert "\n" not in str(raised.value)


def test_a_missing_git_is_reported_before_the_network_is_tried(
    place: Layout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    source_request = SourceRequest(package("https://127.0.0.1:1/a/b.git"), release("v1", None))
    with pytest.raises(HostError, match="`git` is not on PATH"):
        fetch_source(source_request, place, SilentProgress())


def test_a_second_fetch_at_the_same_time_is_refused(forge: Forge, place: Layout) -> None:
    place.source("torch").mkdir(parents=True)
    with FileLock(place.source("torch") / "lock"), refused("source-busy"):
        fetch_source(request(forge), place, SilentProgress())


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="making a small disk needs root"
)
@pytest.mark.parametrize(
    "content", [os.urandom(600_000).hex(), "0\n" * 600_000], ids=["download", "checkout"]
)
def test_a_full_disk_is_reported_and_the_fetch_resumed(
    tmp_path: Path, place: Layout, content: str
) -> None:
    """Random content fills the disk during the download, compressible content at the checkout."""
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    forge.commits["v1"] = forge.commit(
        "pytorch/torch", {"setup.py": "\n", "big": content}, (), "v1"
    )
    place.root.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=500k", "none", str(place.root)], check=False
    )
    if mounted.returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        with refused("disk-full"):
            fetch_source(request(forge), place, SilentProgress())
        subprocess.run(["mount", "-o", "remount,size=50m", str(place.root)], check=True)
        assert fetch_source(request(forge), place, SilentProgress()).verified
    finally:
        subprocess.run(["umount", str(place.root)], check=True)


def of_torch(tmp_path: Path, *tags: str, links: tuple[Link, ...] = ()) -> Forge:
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    for tag in tags:
        forge.commits[tag] = forge.commit("pytorch/torch", {"setup.py": f"{tag}\n"}, links, tag)
    return forge


def test_a_damaged_partial_folder_is_reported(tmp_path: Path, place: Layout) -> None:
    forge = of_torch(tmp_path, "v1")
    git_folder = place.source("torch") / ".partial-v1/tree/.git"
    git_folder.mkdir(parents=True)
    (git_folder / "config").write_text("[broken\n")
    with refused("git-failed"):
        fetch_source(request(forge), place, SilentProgress())


def test_a_partial_folder_without_a_tree_is_resumed(tmp_path: Path, place: Layout) -> None:
    forge = of_torch(tmp_path, "v1")
    (place.source("torch") / ".partial-v1").mkdir(parents=True)
    assert fetch_source(request(forge), place, SilentProgress()).verified


@pytest.mark.parametrize("mirror", ["https://[bad/x", "ssh://[bad/x"])
def test_an_invalid_mirror_is_refused(tmp_path: Path, place: Layout, mirror: str) -> None:
    forge = of_torch(tmp_path, "v1")
    with refused("invalid-url"):
        fetch_source(replace(request(forge), mirror=mirror), place, SilentProgress())


def test_a_submodule_with_an_invalid_address_is_refused(tmp_path: Path, place: Layout) -> None:
    forge = of_torch(tmp_path)
    deep = forge.commit("libs/deep", {"deep.h": "1\n"})
    forge = of_torch(
        tmp_path / "b", "v1", links=(Link("third_party/x", "https://[bad/x.git", deep),)
    )
    with refused("invalid-url"):
        fetch_source(request(forge), place, SilentProgress())


def test_settings_that_are_not_unicode_are_tolerated(tmp_path: Path, place: Layout) -> None:
    forge = of_torch(tmp_path, "v1", "v2")
    tree = fetch_source(request(forge), place, SilentProgress()).path
    subprocess.run([b"git", b"-C", bytes(tree), b"config", b"user.name", b"Jos\xe9"], check=True)
    assert fetch_source(request(forge, "v2"), place, SilentProgress()).tag == "v2"


def test_a_submodule_named_like_a_lock_is_fetched(tmp_path: Path, place: Layout) -> None:
    forge = of_torch(tmp_path)
    deep = forge.commit("libs/deep", {"deep.h": "deep\n"})
    gone = forge.commit("libs/gone", {"deep.h": "gone\n"})
    links = (
        Link("a/x.lock", forge.url("libs/deep"), deep),
        Link("b", forge.url("libs/nowhere"), gone),
    )
    forge.commits["v1"] = forge.commit("pytorch/torch", {"setup.py": "\n"}, links, "v1")
    with refused("repository-not-found"):
        fetch_source(request(forge), place, SilentProgress())
    forge.bare("libs/gone").rename(forge.bare("libs/nowhere"))
    assert fetch_source(request(forge), place, SilentProgress()).verified

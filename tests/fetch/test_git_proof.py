"""Prove that a folder is a commit, although real git can be made to lie about it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from tests.support.source_upstream import Forge, Link, git, layout, package, release
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.fetch.source.fetcher import fetch_source
from torchmill.fetch.source.git_proof import find_differences, worktree_repository
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.verification import load_examined_source, verify_source

FILES = {
    "setup.py": "version = 1\n",
    "src/a.cpp": "int a;\n",
    "src/b.cpp": "int b;\n",
    ".gitignore": "*.o\nbuild/\n",
    "dos.bat": "echo\n",
    ".gitattributes": "*.bat text eol=crlf\n",
}


@pytest.fixture(autouse=True)
def own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


@pytest.fixture
def forge(tmp_path: Path) -> Forge:
    """Return a release with a submodule in a submodule."""
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    deep = forge.commit("a/deep", {"deep.h": "int deep;\n"})
    middle = forge.commit(
        "a/middle", {"middle.h": "int middle;\n"}, (Link("deep", forge.url("a/deep"), deep),)
    )
    forge.commits["v1"] = forge.commit(
        "a/torch", FILES, (Link("third/middle", forge.url("a/middle"), middle),), "v1"
    )
    forge.commits |= {"deep": deep, "middle": middle}
    return forge


@pytest.fixture
def clone(forge: Forge, tmp_path: Path) -> Path:
    """Return a user's clone of the release."""
    git(tmp_path, "clone", "-q", "--recurse-submodules", forge.url("a/torch"), "clone")
    return tmp_path / "clone"


@pytest.fixture
def place(tmp_path: Path) -> Layout:
    return layout(tmp_path)


def make_request(forge: Forge, origin: Path | None = None) -> SourceRequest:
    return SourceRequest(
        package(forge.url("a/torch")),
        release("v1", forge.commits["v1"]),
        origin=str(origin) if origin else None,
    )


def differences(tree: Path, commit: str) -> list[str]:
    return [
        str(difference) for difference in find_differences(tree, commit, worktree_repository(tree))
    ]


def append(file: Path) -> None:
    file.write_text(file.read_text() + "// mine\n")


def assume_unchanged(clone: Path) -> None:
    git(clone, "update-index", "--assume-unchanged", "src/a.cpp")
    append(clone / "src/a.cpp")


def skip_worktree(clone: Path) -> None:
    git(clone, "update-index", "--skip-worktree", "src/a.cpp")
    append(clone / "src/a.cpp")


def skip_in_submodule(clone: Path) -> None:
    git(clone / "third/middle/deep", "update-index", "--assume-unchanged", "deep.h")
    append(clone / "third/middle/deep/deep.h")


def keep_size_and_times(clone: Path) -> None:
    file = clone / "src/a.cpp"
    git(clone, "config", "core.trustctime", "false")
    git(clone, "config", "core.checkStat", "minimal")
    seen = file.stat()
    file.write_text("int z;\n")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))


def replace_object(clone: Path) -> None:
    """Make git show another tree for the release's commit."""
    append(clone / "src/a.cpp")
    head = git(clone, "rev-parse", "HEAD")
    git(clone, "commit", "-q", "-a", "-m", "mine")
    git(clone, "replace", head, "HEAD")
    git(clone, "reset", "-q", "--soft", head)


def filter_away(clone: Path) -> None:
    """Make a filter hide the change from git."""
    git(clone, "config", "filter.lie.clean", "sed /mine/d")
    (clone / ".git/info/attributes").write_text("*.cpp filter=lie\n")
    append(clone / "src/a.cpp")
    assert git(clone, "diff") == ""


def leave_out(clone: Path) -> None:
    git(clone, "sparse-checkout", "set", "--no-cone", "/*", "!/src/b.cpp")
    (clone / "src/b.cpp").unlink(missing_ok=True)  # git keeps a file whose date it does not know


def add_untracked(clone: Path) -> None:
    (clone / "src/new.cpp").write_text("int evil;\n")


def hide_untracked(clone: Path) -> None:
    """Add a file, and configure `git status` not to show it."""
    git(clone, "config", "status.showUntrackedFiles", "no")
    add_untracked(clone)


def make_executable(clone: Path) -> None:
    git(clone, "config", "core.fileMode", "false")
    (clone / "src/a.cpp").chmod(0o755)


def link_elsewhere(clone: Path) -> None:
    git(clone, "config", "core.symlinks", "false")
    git(clone, "update-index", "--assume-unchanged", "src/a.cpp")
    (clone / "src/a.cpp").unlink()
    (clone / "src/a.cpp").symlink_to("b.cpp")


def move_submodule(clone: Path) -> None:
    git(clone, "config", "submodule.third/middle.ignore", "all")
    append(clone / "third/middle/middle.h")
    git(clone / "third/middle", "commit", "-q", "-a", "-m", "mine")


def dirty_submodule(clone: Path) -> None:
    git(clone, "config", "submodule.third/middle.ignore", "dirty")
    append(clone / "third/middle/middle.h")


DECEITS = [
    assume_unchanged,
    skip_worktree,
    skip_in_submodule,
    keep_size_and_times,
    replace_object,
    filter_away,
    leave_out,
    add_untracked,
    hide_untracked,
    make_executable,
    link_elsewhere,
    move_submodule,
    dirty_submodule,
]


@pytest.mark.parametrize("deceive", DECEITS)
def test_a_deceiving_folder_proves_no_commit(
    forge: Forge, clone: Path, place: Layout, deceive: Callable[[Path], None]
) -> None:
    deceive(clone)
    source = fetch_source(make_request(forge, clone), place, SilentProgress())
    assert (source.commit, source.verified) == (None, False)
    assert source.contents
    assert source.unproven
    proven = {path for path, commit in source.submodules.items() if commit}
    if deceive in {move_submodule, dirty_submodule}:
        assert "third/middle" not in proven
    if deceive == skip_in_submodule:
        assert "third/middle/deep" not in proven


def test_a_clean_clone_is_its_commit(forge: Forge, clone: Path, place: Layout) -> None:
    """Ignored files are not copied, and line ends of another system are restored."""
    (clone / "build").mkdir()
    (clone / "build/old.cpp").touch()
    (clone / "src/a.o").touch()
    assert (clone / "dos.bat").read_bytes() == b"echo\r\n"
    source = fetch_source(make_request(forge, clone), place, SilentProgress())
    assert (source.commit, source.verified, source.unproven) == (forge.commits["v1"], True, "")
    expected = {"third/middle": forge.commits["middle"], "third/middle/deep": forge.commits["deep"]}
    assert source.submodules == expected
    assert (source.path / "dos.bat").read_bytes() == b"echo\n"


@pytest.mark.parametrize("kind", ["shallow", "shared", "worktree", "partial"])
def test_unusual_clones_are_verified(
    forge: Forge, tmp_path: Path, place: Layout, kind: str
) -> None:
    url = forge.url("a/torch")
    if kind == "worktree":
        git(tmp_path, "clone", "-q", url, "main")
        git(tmp_path / "main", "worktree", "add", "-q", "../clone", "HEAD")
        git(tmp_path / "clone", "submodule", "update", "-q", "--init", "--recursive")
    else:
        git(forge.bare("a/torch"), "config", "uploadpack.allowFilter", "true")
        options = {
            "shallow": ["--depth=1"],
            "shared": ["--shared"],
            "partial": ["--filter=blob:none"],
        }[kind]
        origin = str(forge.bare("a/torch")) if kind == "shared" else url
        git(tmp_path, "clone", "-q", "--recurse-submodules", *options, origin, "clone")
    source = fetch_source(make_request(forge, tmp_path / "clone"), place, SilentProgress())
    assert source.verified


def test_a_folder_without_git_has_no_commit(forge: Forge, clone: Path, place: Layout) -> None:
    for path in clone.rglob(".git"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    append(clone / "src/a.cpp")
    source = fetch_source(make_request(forge, clone), place, SilentProgress())
    assert (source.commit, source.declared, source.verified, source.submodules) == (
        None,
        None,
        False,
        {},
    )
    assert forge.commits["v1"] not in (place.source("torch") / "v1/source.json").read_text()


def test_lfs_pointers_match_the_commit_but_their_contents_do_not(tmp_path: Path) -> None:
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 3\n"
    commit = forge.commit("a/torch", {"setup.py": "\n", "model.bin": pointer})
    git(tmp_path, "clone", "-q", forge.url("a/torch"), "clone")
    assert differences(tmp_path / "clone", commit) == []
    (tmp_path / "clone/model.bin").write_text("abc")
    assert differences(tmp_path / "clone", commit) == ["model.bin has other contents"]


@pytest.mark.parametrize("kind", ["tree", "commit"])
def test_forged_objects_prove_nothing(clone: Path, forge: Forge, kind: str) -> None:
    """Objects may be exchanged on the disk, and git does not check packed ones when it reads."""
    head = forge.commits["v1"]
    objects = clone / ".git/objects"
    append(clone / "src/a.cpp")
    git(clone, "commit", "-q", "-a", "-m", "mine")
    other_object = git(clone, "rev-parse", "HEAD" if kind == "commit" else "HEAD^{tree}")
    release_object = head if kind == "commit" else git(clone, "rev-parse", f"{head}^{{tree}}")
    forged = objects / release_object[:2] / release_object[2:]
    forged.parent.mkdir(exist_ok=True)
    if forged.exists():
        forged.chmod(0o644)
    else:
        for pack in list((objects / "pack").glob("*.pack")):
            moved = pack.rename(clone.parent / pack.name)
            with moved.open("rb") as file:
                subprocess.run(
                    ["git", "-C", str(clone), "unpack-objects", "-q"], stdin=file, check=True
                )
        if forged.exists():
            forged.chmod(0o644)
    shutil.copy(objects / other_object[:2] / other_object[2:], forged)
    assert differences(clone, head)


def test_trees_with_padded_modes_are_read(tmp_path: Path) -> None:
    """Widely used repositories have such trees, whose ids depend on the spelling of the modes."""
    git(tmp_path, "init", "-q", "repo")
    repo = tmp_path / "repo"
    (repo / "folder").mkdir()
    (repo / "folder/file").write_text("x\n")
    blob = git(repo, "hash-object", "-w", "folder/file")

    def write(kind: str, content: bytes) -> str:
        argv = ["git", "-C", str(repo), "hash-object", "-w", "-t", kind, "--literally", "--stdin"]
        return (
            subprocess.run(argv, input=content, capture_output=True, check=True)
            .stdout.decode()
            .strip()
        )

    inner = write("tree", b"100664 file\0" + bytes.fromhex(blob))
    outer = write("tree", b"040000 folder\0" + bytes.fromhex(inner))
    author = "a <a@example.org> 1600000000 +0000"
    commit = write("commit", f"tree {outer}\nauthor {author}\ncommitter {author}\n\nx\n".encode())
    assert differences(repo, commit) == []
    (repo / "folder/file").write_text("y\n")
    assert differences(repo, commit) == ["folder/file has other contents"]


def test_names_that_are_not_utf8_are_compared(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "repo")
    repo = tmp_path / "repo"
    name = os.fsdecode(b"caf\xe9 \xff.txt")
    (repo / name).write_text("x\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "x")
    assert differences(repo, git(repo, "rev-parse", "HEAD")) == []


class TestAFetchedClone:
    @pytest.fixture
    def source(self, forge: Forge, place: Layout) -> Source:
        return fetch_source(make_request(forge), place, SilentProgress())

    def test_is_proven(self, source: Source, forge: Forge, place: Layout) -> None:
        assert (source.commit, source.verified) == (forge.commits["v1"], True)
        verify_source(source, StatCache(place.stat_cache))

    @pytest.mark.parametrize(
        "deceive", [deceit for deceit in DECEITS if deceit not in (move_submodule, replace_object)]
    )
    def test_changed_behind_gits_back_is_refused(
        self, source: Source, forge: Forge, place: Layout, deceive: Callable[[Path], None]
    ) -> None:
        deceive(source.path)
        with refused("uncommitted-changes"):
            verify_source(source, StatCache(place.stat_cache))
        with refused("uncommitted-changes"):
            fetch_source(make_request(forge), place, SilentProgress())
        examined = load_examined_source(place, "torch", "v1", StatCache(place.stat_cache))
        assert examined is not None
        assert (examined.commit, examined.verified) == (None, False)
        assert examined.refusal

    def test_with_ignored_files_is_not_built(
        self, source: Source, forge: Forge, place: Layout
    ) -> None:
        """A build would use them (an old module, a header); a fetch keeps them."""
        (source.path / "src/old.o").write_text("made by a tool\n")
        assert fetch_source(make_request(forge), place, SilentProgress()) == source
        cache = StatCache(place.stat_cache)
        for _ in range(2):
            with refused("uncommitted-changes") as caught:
                verify_source(source, cache)
            assert "src/old.o is not in the commit" in str(caught.value)
        (source.path / "src/old.o").unlink()
        verify_source(source, cache)

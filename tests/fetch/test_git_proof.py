"""What is proven to be a commit, against all that real git can be told to lie about."""

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
    made = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    deep = made.commit("a/deep", {"deep.h": "int deep;\n"})
    middle = made.commit(
        "a/middle", {"middle.h": "int middle;\n"}, (Link("deep", made.url("a/deep"), deep),)
    )
    made.commits["v1"] = made.commit(
        "a/torch", FILES, (Link("third/middle", made.url("a/middle"), middle),), "v1"
    )
    made.commits |= {"deep": deep, "middle": middle}
    return made


@pytest.fixture
def clone(forge: Forge, tmp_path: Path) -> Path:
    """Return somebody's own clone of it."""
    git(tmp_path, "clone", "-q", "--recurse-submodules", forge.url("a/torch"), "clone")
    return tmp_path / "clone"


@pytest.fixture
def place(tmp_path: Path) -> Layout:
    return layout(tmp_path)


def asked(forge: Forge, origin: Path | None = None) -> SourceRequest:
    known = package(forge.url("a/torch")), release("v1", forge.commits["v1"])
    return SourceRequest(*known, origin=str(origin) if origin else None)


def differences(tree: Path, commit: str) -> list[str]:
    return [str(one) for one in find_differences(tree, commit, worktree_repository(tree))]


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
    """Let git show another tree for the release's commit."""
    append(clone / "src/a.cpp")
    head = git(clone, "rev-parse", "HEAD")
    git(clone, "commit", "-q", "-a", "-m", "mine")
    git(clone, "replace", head, "HEAD")
    git(clone, "reset", "-q", "--soft", head)


def filter_away(clone: Path) -> None:
    """Let a filter show git what it expects."""
    git(clone, "config", "filter.lie.clean", "sed /mine/d")
    (clone / ".git/info/attributes").write_text("*.cpp filter=lie\n")
    append(clone / "src/a.cpp")
    assert git(clone, "diff") == ""


def leave_out(clone: Path) -> None:
    git(clone, "sparse-checkout", "set", "--no-cone", "/*", "!/src/b.cpp")
    (clone / "src/b.cpp").unlink(missing_ok=True)  # git leaves a file whose date it does not know


def add_untracked(clone: Path) -> None:
    (clone / "src/new.cpp").write_text("int evil;\n")


def hide_untracked(clone: Path) -> None:
    """Add a file that `git status` is told not to show."""
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
def test_a_folder_that_only_looks_like_its_commit_is_of_none(
    forge: Forge, clone: Path, place: Layout, deceive: Callable[[Path], None]
) -> None:
    deceive(clone)
    source = fetch_source(asked(forge, clone), place, SilentProgress())
    assert (source.commit, source.verified) == (None, False)
    assert source.contents
    assert source.unproven
    named = {path for path, commit in source.submodules.items() if commit}
    if deceive in {move_submodule, dirty_submodule}:
        assert "third/middle" not in named
    if deceive == skip_in_submodule:
        assert "third/middle/deep" not in named


def test_a_clean_clone_is_its_commit(forge: Forge, clone: Path, place: Layout) -> None:
    """Also with what git ignores, which is not copied, and with line ends of another system, which are restored."""
    (clone / "build").mkdir()
    (clone / "build/old.cpp").touch()
    (clone / "src/a.o").touch()
    assert (clone / "dos.bat").read_bytes() == b"echo\r\n"
    source = fetch_source(asked(forge, clone), place, SilentProgress())
    assert (source.commit, source.verified, source.unproven) == (forge.commits["v1"], True, "")
    expected = {"third/middle": forge.commits["middle"], "third/middle/deep": forge.commits["deep"]}
    assert source.submodules == expected
    assert (source.path / "dos.bat").read_bytes() == b"echo\n"


@pytest.mark.parametrize("way", ["shallow", "shared", "worktree", "partial"])
def test_ways_to_have_a_clone_that_change_no_file(
    forge: Forge, tmp_path: Path, place: Layout, way: str
) -> None:
    url = forge.url("a/torch")
    if way == "worktree":
        git(tmp_path, "clone", "-q", url, "main")
        git(tmp_path / "main", "worktree", "add", "-q", "../clone", "HEAD")
        git(tmp_path / "clone", "submodule", "update", "-q", "--init", "--recursive")
    else:
        git(forge.bare("a/torch"), "config", "uploadpack.allowFilter", "true")
        words = {
            "shallow": ["--depth=1"],
            "shared": ["--shared"],
            "partial": ["--filter=blob:none"],
        }[way]
        origin = str(forge.bare("a/torch")) if way == "shared" else url
        git(tmp_path, "clone", "-q", "--recurse-submodules", *words, origin, "clone")
    source = fetch_source(asked(forge, tmp_path / "clone"), place, SilentProgress())
    assert source.verified


def test_a_folder_without_its_git_is_of_no_commit(forge: Forge, clone: Path, place: Layout) -> None:
    for found in clone.rglob(".git"):
        shutil.rmtree(found) if found.is_dir() else found.unlink()
    append(clone / "src/a.cpp")
    source = fetch_source(asked(forge, clone), place, SilentProgress())
    assert (source.commit, source.declared, source.verified, source.submodules) == (
        None,
        None,
        False,
        {},
    )
    assert forge.commits["v1"] not in (place.source("torch") / "v1/source.json").read_text()


def test_lfs_pointers_are_what_the_commit_has_and_their_contents_are_not(tmp_path: Path) -> None:
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 3\n"
    commit = forge.commit("a/torch", {"setup.py": "\n", "model.bin": pointer})
    git(tmp_path, "clone", "-q", forge.url("a/torch"), "clone")
    assert differences(tmp_path / "clone", commit) == []
    (tmp_path / "clone/model.bin").write_text("abc")
    assert differences(tmp_path / "clone", commit) == ["model.bin has other contents"]


@pytest.mark.parametrize("kind", ["tree", "commit"])
def test_objects_that_are_not_what_their_ids_say_prove_nothing(
    clone: Path, forge: Forge, kind: str
) -> None:
    """A repository whose objects were exchanged on the disk; git itself reads packed ones unchecked."""
    head = forge.commits["v1"]
    objects = clone / ".git/objects"
    append(clone / "src/a.cpp")
    git(clone, "commit", "-q", "-a", "-m", "mine")
    mine = git(clone, "rev-parse", "HEAD" if kind == "commit" else "HEAD^{tree}")
    wanted = head if kind == "commit" else git(clone, "rev-parse", f"{head}^{{tree}}")
    forged = objects / wanted[:2] / wanted[2:]
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
    shutil.copy(objects / mine[:2] / mine[2:], forged)
    assert differences(clone, head)


def test_a_commit_with_padded_modes_is_read_as_it_is(tmp_path: Path) -> None:
    """Such trees are in the history of widely used repositories; another spelling of them has another id."""
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
    who = "a <a@example.org> 1600000000 +0000"
    commit = write("commit", f"tree {outer}\nauthor {who}\ncommitter {who}\n\nx\n".encode())
    assert differences(repo, commit) == []
    (repo / "folder/file").write_text("y\n")
    assert differences(repo, commit) == ["folder/file has other contents"]


def test_names_that_are_no_text(tmp_path: Path) -> None:
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
        return fetch_source(asked(forge), place, SilentProgress())

    def test_is_proven(self, source: Source, forge: Forge, place: Layout) -> None:
        assert (source.commit, source.verified) == (forge.commits["v1"], True)
        verify_source(source, StatCache(place.stat_cache))

    @pytest.mark.parametrize(
        "deceive", [one for one in DECEITS if one not in (move_submodule, replace_object)]
    )
    def test_that_was_changed_behind_gits_back_is_refused(
        self, source: Source, forge: Forge, place: Layout, deceive: Callable[[Path], None]
    ) -> None:
        deceive(source.path)
        with refused("uncommitted-changes"):
            verify_source(source, StatCache(place.stat_cache))
        with refused("uncommitted-changes"):
            fetch_source(asked(forge), place, SilentProgress())
        examined = load_examined_source(place, "torch", "v1", StatCache(place.stat_cache))
        assert examined is not None
        assert (examined.commit, examined.verified) == (None, False)
        assert examined.refusal

    def test_with_files_that_git_ignores_is_not_built(
        self, source: Source, forge: Forge, place: Layout
    ) -> None:
        """A build would find them: an old module, a header that is searched for first. No fetch loses them."""
        (source.path / "src/old.o").write_text("made by a tool\n")
        assert fetch_source(asked(forge), place, SilentProgress()) == source
        cache = StatCache(place.stat_cache)
        for _ in range(2):
            with refused("uncommitted-changes") as caught:
                verify_source(source, cache)
            assert "src/old.o is not in the commit" in str(caught.value)
        (source.path / "src/old.o").unlink()
        verify_source(source, cache)

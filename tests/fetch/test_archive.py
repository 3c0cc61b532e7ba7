"""`--from PATH|URL`: folders, archives and downloads."""

import http.server
import io
import os
import shutil
import stat
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.support.refusals import refused
from tests.support.repeated_steps import one_try
from tests.support.silent_progress import SilentBar, SilentProgress
from tests.support.source_upstream import Forge, Link, git, layout, package, release
from torchmill.core.paths import Layout
from torchmill.fetch.source import local
from torchmill.fetch.source.archive import unpack_archive
from torchmill.fetch.source.fetcher import fetch_source
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source_dir import load_source
from torchmill.fetch.source.verification import check_source

COMMIT = "c" * 40


def make_request(origin: Path | str, commit: str | None = None, tag: str = "v1") -> SourceRequest:
    return SourceRequest(
        package("https://forge.invalid/a/torch.git"), release(tag, commit), origin=str(origin)
    )


@pytest.fixture
def place(tmp_path: Path) -> Layout:
    return layout(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a plain source with a program, a link and a build backend."""
    tree = tmp_path / "torch-1"
    (tree / "tools").mkdir(parents=True)
    (tree / "setup.py").write_text("version = 1\n")
    (tree / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
    )
    (tree / "tools/run").write_text("#!/bin/sh\n")
    (tree / "tools/run").chmod(0o755)
    (tree / "link").symlink_to("tools/run")
    return tree


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a user's clone with a submodule."""
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    submodule = Link("near", "../near.git", forge.commit("a/near", {"near.h": "\n"}))
    forge.commit("a/torch", {"setup.py": "\n", ".gitignore": "build/\n"}, (submodule,))
    git(tmp_path, "clone", "-q", "--recurse-submodules", forge.url("a/torch"), "clone")
    return tmp_path / "clone"


def pack(tree: Path, name: str) -> Path:
    """Return an archive of a tree with its links and permissions."""
    base, _, kind = name.partition(".")
    target = tree.parent / base
    if kind != "zip":
        form = {"tar.gz": "gztar", "tar.xz": "xztar", "tar.bz2": "bztar"}[kind]
        return Path(shutil.make_archive(str(target), form, tree.parent, tree.name))
    with zipfile.ZipFile(tree.parent / name, "w") as zipped:
        for path in sorted(tree.rglob("*")):
            info = zipfile.ZipInfo(
                str(path.relative_to(tree.parent)) + ("/" if path.is_dir() else "")
            )
            info.external_attr = path.lstat().st_mode << 16
            if path.is_symlink():
                zipped.writestr(info, str(path.readlink()))
            else:
                zipped.writestr(info, b"" if path.is_dir() else path.read_bytes())
    return tree.parent / name


class TestAFolder:
    def test_is_copied_and_not_verified(self, folder: Path, place: Layout) -> None:
        source = fetch_source(make_request(folder, COMMIT), place, SilentProgress())
        assert (source.provider, source.commit, source.declared, source.verified) == (
            "path",
            None,
            None,
            False,
        )
        assert source.unproven == "the folder is no git checkout"
        assert source.build_backend == "backend"
        assert (source.path / "link").readlink() == Path("tools/run")
        assert os.access(source.path / "tools/run", os.X_OK)
        check_source(source)
        assert load_source(place, "torch", "v1") == source

    def test_is_copied_without_pipes_and_sockets(self, folder: Path, place: Layout) -> None:
        """Programs leave them in a folder; copying one would fail, or wait for ever."""
        os.mkfifo(folder / "tools/pipe")
        source = fetch_source(make_request(folder), place, SilentProgress())
        assert [path.name for path in (source.path / "tools").iterdir()] == ["run"]

    def test_that_changed_is_copied_again(self, folder: Path, place: Layout) -> None:
        first = fetch_source(make_request(folder), place, SilentProgress())
        assert fetch_source(make_request(folder), place, SilentProgress()) == first
        (folder / "setup.py").write_text("version = 11\n")
        second = fetch_source(make_request(folder), place, SilentProgress())
        assert (second.path / "setup.py").read_text() == "version = 11\n"
        assert second.origin != first.origin  # it is another source

    def test_without_a_build_is_no_source(self, tmp_path: Path, place: Layout) -> None:
        (tmp_path / "docs").mkdir()
        with refused("no-python-project"):
            fetch_source(make_request(tmp_path / "docs"), place, SilentProgress())
        assert load_source(place, "torch", "v1") is None

    def test_that_does_not_exist_is_refused(self, tmp_path: Path, place: Layout) -> None:
        with refused("no-such-origin"):
            fetch_source(make_request(tmp_path / "nothing"), place, SilentProgress())

    def test_that_contains_the_suite_is_refused(self, tmp_path: Path, place: Layout) -> None:
        (tmp_path / "setup.py").touch()
        with refused("origin-contains-sources"):
            fetch_source(make_request(tmp_path), place, SilentProgress())

    def test_that_contains_the_suite_behind_a_link_is_refused(
        self, folder: Path, tmp_path: Path
    ) -> None:
        (folder / "suite").mkdir()
        (tmp_path / "link").symlink_to(folder / "suite")
        with refused("origin-contains-sources"):
            fetch_source(make_request(folder), layout(tmp_path / "link"), SilentProgress())

    def test_that_is_refused_leaves_downloads_alone(self, tmp_path: Path, place: Layout) -> None:
        part = place.sources / "torch/.downloaded-v1/0123abcd/torch.zip.part"
        part.parent.mkdir(parents=True)
        part.write_text("half")
        with refused("no-such-origin"):
            fetch_source(make_request(tmp_path / "absent"), place, SilentProgress())
        assert part.exists()

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything"
    )
    def test_with_an_unreadable_file_is_refused(self, folder: Path, place: Layout) -> None:
        (folder / "tools/run").chmod(0)
        with refused("unreadable-origin"):
            fetch_source(make_request(folder), place, SilentProgress())


class TestACheckout:
    def test_is_verified_by_its_head(self, checkout: Path, place: Layout) -> None:
        (checkout / "build").mkdir()
        (checkout / "build/old.so").touch()
        source = fetch_source(
            make_request(checkout, git(checkout, "rev-parse", "HEAD")), place, SilentProgress()
        )
        assert source.verified
        assert source.submodules == {"near": git(checkout / "near", "rev-parse", "HEAD")}
        assert sorted(path.name for path in source.path.iterdir()) == [
            ".gitignore",
            ".gitmodules",
            "near",
            "setup.py",
        ]

    def test_at_another_commit_is_refused(self, checkout: Path, place: Layout) -> None:
        with refused("wrong-commit"):
            fetch_source(make_request(checkout, COMMIT), place, SilentProgress())
        assert load_source(place, "torch", "v1") is None

    @pytest.mark.parametrize("path", ["setup.py", "near/near.h", "new"])
    def test_with_local_changes_is_not_verified(
        self, checkout: Path, place: Layout, path: str
    ) -> None:
        (checkout / path).write_text("mine\n")
        source = fetch_source(
            make_request(checkout, git(checkout, "rev-parse", "HEAD")), place, SilentProgress()
        )
        assert not source.verified
        assert source.commit is None
        assert source.declared == git(checkout, "rev-parse", "HEAD")
        assert path in source.unproven
        assert source.submodules == {
            "near": "" if "near" in path else git(checkout / "near", "rev-parse", "HEAD")
        }
        assert (source.path / path).read_text() == "mine\n"

    def test_with_a_built_submodule_is_copied_without_the_build(
        self, checkout: Path, place: Layout
    ) -> None:
        (checkout / ".git/modules/near/info").mkdir(exist_ok=True)
        (checkout / ".git/modules/near/info/exclude").write_text("*.o\nbuild/\n")
        (checkout / "near/near.o").touch()
        (checkout / "near/build").mkdir()
        (checkout / "near/build/old.so").touch()
        source = fetch_source(
            make_request(checkout, git(checkout, "rev-parse", "HEAD")), place, SilentProgress()
        )
        assert source.verified
        assert [path.name for path in (source.path / "near").iterdir()] == ["near.h"]

    def test_without_a_commit_is_not_proven(self, folder: Path, place: Layout) -> None:
        git(folder, "init", "-q")
        source = fetch_source(make_request(folder), place, SilentProgress())
        assert source.unproven == "no commit is checked out in the folder"

    def test_with_an_empty_submodule_is_refused(self, checkout: Path, place: Layout) -> None:
        git(checkout, "submodule", "deinit", "-q", "-f", "near")
        with refused("submodule-missing"):
            fetch_source(make_request(checkout), place, SilentProgress())


class TestAnArchive:
    @pytest.mark.parametrize("name", ["t.tar.gz", "t.tar.xz", "t.tar.bz2", "t.zip"])
    def test_is_unpacked_without_its_top_folder(
        self, folder: Path, place: Layout, name: str
    ) -> None:
        source = fetch_source(make_request(pack(folder, name), COMMIT), place, SilentProgress())
        assert (source.path / "setup.py").read_text() == "version = 1\n"
        assert (source.path / "link").readlink() == Path("tools/run")
        assert os.access(source.path / "tools/run", os.X_OK)
        assert (source.commit, source.declared, source.verified) == (None, None, False)
        assert f"(sha256 {source.archive})" in source.origin
        check_source(source)

    @pytest.mark.parametrize("kind", ["tar.gz", "zip"])
    def test_made_by_git_declares_its_commit_without_proof(
        self, tmp_path: Path, place: Layout, kind: str
    ) -> None:
        forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
        actual = forge.commit("a/torch", {"setup.py": "\n"})
        archive = tmp_path / f"t.{kind}"
        git(forge.bare("a/torch"), "archive", "--prefix=t/", f"--output={archive}", "HEAD")
        source = fetch_source(make_request(archive, actual), place, SilentProgress())
        assert (source.commit, source.declared, source.verified) == (None, actual, False)
        assert fetch_source(make_request(archive, actual), place, SilentProgress()) == source
        with refused("wrong-commit"):
            fetch_source(make_request(archive, COMMIT, "v2"), place, SilentProgress())

    @pytest.mark.parametrize("kind", ["tar.gz", "zip"])
    def test_without_its_submodules_is_refused(
        self, checkout: Path, place: Layout, kind: str
    ) -> None:
        """In the archives that GitHub makes, each submodule is an empty folder."""
        archive = checkout.parent / f"t.{kind}"
        git(checkout, "archive", "--prefix=t/", f"--output={archive}", "HEAD")
        with refused("submodule-missing") as caught:
            fetch_source(make_request(archive), place, SilentProgress())
        assert "near" in str(caught.value)
        assert load_source(place, "torch", "v1") is None

    def test_with_submodules_is_unpacked_without_repositories(
        self, checkout: Path, place: Layout
    ) -> None:
        source = fetch_source(make_request(pack(checkout, "t.tar.gz")), place, SilentProgress())
        assert (source.path / "near/near.h").is_file()
        assert list(source.path.rglob(".git")) == []
        assert source.commit is None

    def test_cut_short_is_refused(self, folder: Path, place: Layout) -> None:
        archive = pack(folder, "t.tar.gz")
        archive.write_bytes(archive.read_bytes()[:-40])
        with refused("damaged-archive"):
            fetch_source(make_request(archive), place, SilentProgress())
        assert load_source(place, "torch", "v1") is None

    def test_of_an_unknown_kind_is_refused(self, tmp_path: Path, place: Layout) -> None:
        (tmp_path / "t.rar").touch()
        with refused("unknown-archive-type"):
            fetch_source(make_request(tmp_path / "t.rar"), place, SilentProgress())

    def test_is_refused_if_its_tree_was_changed(self, folder: Path, place: Layout) -> None:
        archive = pack(folder, "t.tar.gz")
        source = fetch_source(make_request(archive), place, SilentProgress())
        (source.path / "setup.py").write_text("mine\n")
        with refused("source-changed"):
            check_source(source)
        with refused("source-changed"):
            fetch_source(make_request(archive), place, SilentProgress())
        assert (source.path / "setup.py").read_text() == "mine\n"
        assert (
            fetch_source(replace(make_request(archive), discard=True), place, SilentProgress())
            == source
        )
        check_source(source)

    def test_is_refused_if_a_file_of_its_tree_is_gone(self, folder: Path, place: Layout) -> None:
        source = fetch_source(make_request(pack(folder, "t.tar.gz")), place, SilentProgress())
        (source.path / "tools/run").unlink()
        with refused("source-changed"):
            check_source(source)


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    info.mode = mode
    info.uid = 4321
    info.gid = 4321
    return info


class TestAHostileArchive:
    def archive(self, folder: Path, *members: tarfile.TarInfo) -> Path:
        with tarfile.open(folder / "t.tar.gz", "w:gz") as tar:
            for info in (member("t/setup.py"), *members):
                info.size = 4 if info.isfile() else 0
                tar.addfile(info, io.BytesIO(b"evil"))
        return folder / "t.tar.gz"

    @pytest.mark.parametrize(
        "members",
        [
            [member("../outside")],
            [member("/tmp/outside")],  # noqa: S108 (never written)
            [member("t/up", tarfile.SYMTYPE, "../.."), member("t/up/outside")],
            [member("t/link", tarfile.SYMTYPE, "/etc")],
            [member("t/hard", tarfile.LNKTYPE, "../../secret")],
            [member("t/a", tarfile.SYMTYPE, "b/.."), member("t/b", tarfile.SYMTYPE, "../../..")],
        ],
        ids=["dots", "absolute", "through a link", "link", "hard link", "links in a chain"],
    )
    def test_writes_nothing_outside(
        self, tmp_path: Path, place: Layout, members: list[tarfile.TarInfo]
    ) -> None:
        (tmp_path / "secret").write_text("secret")
        with refused("hostile-archive"):
            fetch_source(make_request(self.archive(tmp_path, *members)), place, SilentProgress())
        assert not list(tmp_path.rglob("outside"))
        assert load_source(place, "torch", "v1") is None

    def test_keeps_neither_owner_nor_special_bits_nor_devices(
        self, tmp_path: Path, place: Layout
    ) -> None:
        archive = self.archive(
            tmp_path,
            member("t/suid", mode=0o6777),
            member("t/pipe", tarfile.FIFOTYPE),
            member("t/none", mode=0),
        )
        source = fetch_source(make_request(archive), place, SilentProgress())
        status = (source.path / "suid").stat()
        assert stat.S_IMODE(status.st_mode) == 0o755
        assert status.st_uid == (source.path.parent / "source.json").stat().st_uid
        assert not (source.path / "pipe").exists()
        assert (source.path / "none").read_text() == "evil"

    def test_as_zip_has_no_link_outside(self, tmp_path: Path, place: Layout) -> None:
        with zipfile.ZipFile(tmp_path / "t.zip", "w") as zipped:
            info = zipfile.ZipInfo("t/link")
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            zipped.writestr(info, "/etc")
        with refused("hostile-archive"):
            fetch_source(make_request(tmp_path / "t.zip"), place, SilentProgress())


class Server(http.server.ThreadingHTTPServer):
    """Serves one file, and breaks the first `breaks` answers in the middle."""

    content = b""
    breaks = 0
    ranges: list[str | None]
    etag = '"one"'


class Answer(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        range_header = self.headers.get("Range")
        self.server.ranges.append(range_header)
        if not self.path.endswith(".tar.gz"):
            self.send_error(404)
            return
        begin = 0
        if range_header and self.headers.get("If-Range") == self.server.etag:
            begin = int(range_header.removeprefix("bytes=").rstrip("-"))
        body = self.server.content[begin:]
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", self.server.etag)
        self.end_headers()
        if self.server.breaks:
            self.server.breaks -= 1
            body = body[: len(body) // 2]
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (http.server's name)
        """Say nothing."""


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Answer) as running:
        (folder / "noise").write_bytes(os.urandom(1 << 16))
        running.content = pack(folder, "t.tar.gz").read_bytes()
        running.ranges = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return lambda name: f"http://127.0.0.1:{server.server_port}/{name}"


class TestADownload:
    def test_is_unpacked(self, server: Server, url: Callable[[str], str], place: Layout) -> None:
        source = fetch_source(make_request(url("t.tar.gz")), place, SilentProgress())
        assert (source.path / "setup.py").exists()
        assert fetch_source(make_request(url("t.tar.gz")), place, SilentProgress()) == source
        assert len(server.ranges) == 1  # the second fetch asks nobody

    def test_that_broke_is_resumed(
        self, server: Server, url: Callable[[str], str], place: Layout
    ) -> None:
        server.breaks = 1
        with one_try(), refused("connection-broken"):
            fetch_source(make_request(url("t.tar.gz")), place, SilentProgress())
        assert load_source(place, "torch", "v1") is None
        fetch_source(make_request(url("t.tar.gz")), place, SilentProgress())
        assert server.ranges == [None, f"bytes={len(server.content) // 2}-"]

    def test_of_a_changed_file_starts_over(
        self, server: Server, url: Callable[[str], str], place: Layout, folder: Path
    ) -> None:
        server.breaks = 1
        with one_try(), refused("connection-broken"):
            fetch_source(make_request(url("t.tar.gz")), place, SilentProgress())
        (folder / "setup.py").write_text("later\n")
        server.content = pack(folder, "t.tar.gz").read_bytes()
        server.etag = '"two"'
        source = fetch_source(make_request(url("t.tar.gz")), place, SilentProgress())
        assert (source.path / "setup.py").read_text() == "later\n"

    def test_does_not_record_a_password(
        self, url: Callable[[str], str], server: Server, place: Layout
    ) -> None:
        address = url("t.tar.gz").replace("http://", "http://user:secret@")
        source = fetch_source(make_request(address), place, SilentProgress())
        assert "secret" not in (source.path.parent / "source.json").read_text(encoding="utf-8")
        server.content = b""
        assert fetch_source(make_request(address), place, SilentProgress()) == source, (
            "the fetched source is used again"
        )

    def test_of_another_address_is_not_reused(
        self,
        url: Callable[[str], str],
        server: Server,
        place: Layout,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        with monkeypatch.context() as patched, refused("interrupted"):
            patched.setattr(local, "unpack_archive", Mock(side_effect=KeyboardInterrupt))
            fetch_source(make_request(url("one/t.tar.gz")), place, SilentProgress())
        (folder / "setup.py").write_text("other\n")
        server.content = pack(folder, "t.tar.gz").read_bytes()
        source = fetch_source(make_request(url("two/t.tar.gz")), place, SilentProgress())
        assert (source.path / "setup.py").read_text() == "other\n"

    def test_of_a_missing_file_is_refused(self, url: Callable[[str], str], place: Layout) -> None:
        with refused("download-refused"):
            fetch_source(make_request(url("t.zip")), place, SilentProgress())

    def test_from_an_unreachable_host_is_refused(
        self, place: Layout, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with refused("host-unreachable"):
            fetch_source(make_request("http://127.0.0.1:1/t.tar.gz"), place, SilentProgress())

    @pytest.mark.parametrize(
        ("origin", "code"),
        [
            ("https://forge.invalid/a/b.git", "origin-is-repository"),
            ("ftp://a/b.tar.gz", "unsupported-origin"),
        ],
    )
    def test_of_an_unsupported_origin_is_refused(
        self, place: Layout, origin: str, code: str
    ) -> None:
        with refused(code):
            fetch_source(make_request(origin), place, SilentProgress())


@pytest.mark.parametrize("option", [{"mirror": "https://m"}, {"ref": "main"}])
def test_options_that_exclude_each_other_are_refused(place: Layout, option: dict[str, str]) -> None:
    request = SourceRequest(
        package("https://forge.invalid/a/torch.git"), release("v1", None), origin="x"
    )
    request = replace(request, mirror=option.get("mirror"), ref=option.get("ref"))
    with refused("conflicting-options"):
        fetch_source(request, place, SilentProgress())


def test_a_hard_link_without_target_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        link = tarfile.TarInfo("top/b")
        link.type = tarfile.LNKTYPE
        link.linkname = "top/gone"
        file.addfile(link)
    with refused("damaged-archive"):
        unpack_archive(archive, tmp_path / "out", SilentBar())


def test_a_zip_without_dates_is_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(zipfile.ZipInfo("top/setup.py"), "\n")
    content = bytearray(archive.read_bytes())
    # date and time, in the member's own header and in the central directory
    directory = content.find(b"PK\1\2")
    content[10:14] = bytes(4)
    content[directory + 12 : directory + 16] = bytes(4)
    archive.write_bytes(content)
    unpack_archive(archive, tmp_path / "out", SilentBar())
    assert (tmp_path / "out/setup.py").read_text() == "\n"

"""`--from debian`: releases from Debian's source archive, and its lists."""

import os
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.changed_facts import change_groups
from tests.support.debian_archive import DebianArchive, needs_apt
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from tests.support.source_upstream import layout, package, release
from torchmill.config.package import DebianFacts
from torchmill.core.errors import HostError, NetworkError, SourceError
from torchmill.fetch.source import apt, apt_archives
from torchmill.fetch.source.apt import SourcePackage, explain_apt_error, parse_showsrc
from torchmill.fetch.source.apt_archives import AptArchive, machine_archives
from torchmill.fetch.source.fetcher import fetch_source
from torchmill.fetch.source.request import SourceRequest

KEYRING = ("Signed-By", "/usr/share/keyrings/k.gpg")


def make_request(version: str = "1.13.1", listed: str = "1.13.1") -> SourceRequest:
    torch = package("https://github.com/pytorch/pytorch.git", {listed: "bookworm/pytorch"})
    return SourceRequest(torch, release(f"v{version}", None), origin="debian")


@pytest.mark.parametrize(
    ("debian", "upstream"),
    [
        ("1.13.1+dfsg-4", "1.13.1"),
        ("0.14.1-2", "0.14.1"),
        ("9.1.0+ds1-2", "9.1.0"),
        ("2.0.8+dfsg1-1", "2.0.8"),
        ("1:3.11.2-2", "3.11.2"),
        ("1.13.1~repack2-1", "1.13.1"),
        ("2.0-rc1-1", "2.0-rc1"),
        ("1.0", "1.0"),
    ],
)
def test_upstream_versions(debian: str, upstream: str) -> None:
    assert SourcePackage("pytorch", debian, "", "").upstream == upstream


def test_archives_are_read_from_both_formats(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (tmp_path / "sources.list").write_text(
        dedent("""\
        # a comment
        deb http://archive.example.org/debian bookworm main contrib  # and another
        deb-src http://archive.example.org/debian bookworm main contrib
        deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] https://m.example/debian trixie main
        deb [signed-by="/srv/my keys/k.gpg"] https://quoted.example/debian trixie main
        deb [signed-by="/usr/share/keyrings/k.gpg] https://open.example/debian trixie main
        deb https://flat.example/repo ./
        """)
    )
    (parts / "apt.sources").write_text(
        dedent("""\
        Types: deb
        # a comment
        URIs: http://a.example/debian http://b.example/debian
        Suites: bookworm bookworm-updates
        Components: main
        Signed-By: /usr/share/keyrings/k.gpg

        Enabled: no
        Types: deb
        URIs: http://off.example/debian
        Suites: sid
        Components: main
        """)
    )
    (parts / "off.sources.disabled").write_text("Types: deb\nURIs: http://no.example\nSuites: x\n")
    assert machine_archives(tmp_path) == (
        AptArchive("http://archive.example.org/debian", "bookworm", ("main", "contrib")),
        AptArchive("https://m.example/debian", "trixie", ("main",), (KEYRING,)),
        AptArchive(
            "https://quoted.example/debian",
            "trixie",
            ("main",),
            (("Signed-By", "/srv/my keys/k.gpg"),),
        ),
        AptArchive("https://open.example/debian", "trixie", ("main",), (KEYRING,)),
        AptArchive("http://a.example/debian", "bookworm", ("main",), (KEYRING,)),
        AptArchive("http://a.example/debian", "bookworm-updates", ("main",), (KEYRING,)),
        AptArchive("http://b.example/debian", "bookworm", ("main",), (KEYRING,)),
        AptArchive("http://b.example/debian", "bookworm-updates", ("main",), (KEYRING,)),
    )


def test_a_key_of_several_lines_is_kept(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/d.sources").write_text(
        "Types: deb\nURIs: http://a\nSuites: s\nComponents: c\nSigned-By:\n -----BEGIN\n .\n abc\n"
    )
    (archive,) = machine_archives(tmp_path)
    assert archive.stanza() == (
        "Types: deb-src\nURIs: http://a\nSuites: s\nComponents: c\n"
        "Signed-By: \n -----BEGIN\n .\n abc\n"
    )


def test_source_packages_are_parsed() -> None:
    (package,) = parse_showsrc(
        dedent("""\
        Package: pytorch
        Version: 1.13.1+dfsg-4
        Files:
         b922 3388 pytorch_1.13.1+dfsg-4.dsc
         a096 18331132 pytorch_1.13.1+dfsg.orig.tar.xz
        Checksums-Sha256:
         0c8c 3388 pytorch_1.13.1+dfsg-4.dsc
         d035 18331132 pytorch_1.13.1+dfsg.orig.tar.xz
         b0b4 193756 pytorch_1.13.1+dfsg-4.debian.tar.xz
        Directory: pool/main/p/pytorch

        """)
    )
    assert (package.name, package.tarball, package.sha256) == (
        "pytorch",
        "pytorch_1.13.1+dfsg.orig.tar.xz",
        "d035",
    )
    assert package.upstream == "1.13.1"


@pytest.mark.parametrize(
    ("output", "kind", "code"),
    [
        (
            "E: Failed to fetch http://d/x.orig.tar.gz  404  Not Found",
            SourceError,
            "debian-file-gone",
        ),
        ("E: Failed to fetch http://d/x  Could not resolve 'd'", NetworkError, "host-unreachable"),
        ("E: You don't have enough free space\nNo space left on device", HostError, "disk-full"),
        ("E: Malformed entry 1", SourceError, "apt-failed"),
    ],
)
def test_errors_of_apt_are_explained(
    tmp_path: Path, output: str, kind: type[Exception], code: str
) -> None:
    error = explain_apt_error(
        output, tmp_path, title="torch v1.13.1", alternatives="name a mirror (`--mirror URL`)"
    )
    assert type(error) is kind
    assert error.code == code


def test_a_release_that_debian_does_not_have_is_refused(tmp_path: Path) -> None:
    with refused("release-not-in-debian") as caught:
        fetch_source(make_request("2.4.0"), layout(tmp_path), SilentProgress())
    assert "torchmill knows of no suite of Debian with torch 2.4.0" in str(caught.value)
    assert "Debian was not asked" in str(caught.value)


def test_a_machine_without_apt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with refused("apt-missing"):
        fetch_source(make_request(), layout(tmp_path), SilentProgress())


@needs_apt
def test_the_newest_version_of_a_source_is_found_in_any_order_of_the_lists(tmp_path: Path) -> None:
    archive = DebianArchive(tmp_path / "archive")
    archive.folder.mkdir()
    for version in ("2.0-1", "2.0-9", "2.0-10", "2.0~rc1-1"):
        archive.add_source("deep", version, {"deep.h": "theirs"})
    archive.publish()
    system = apt.Apt(tmp_path / "apt")
    options = (("Trusted", "yes"),)
    system.configure([AptArchive(f"file:{archive.folder}", "bookworm", ("main",), options)])
    system.fetch("update")
    newest = system.find_source("deep")
    assert newest is not None
    assert newest.version == "2.0-10"
    candidate = system.find_source("deep", "2.0~rc1")
    assert candidate is not None
    assert candidate.version == "2.0~rc1-1"
    assert system.find_source("deep", "1.0") is None


@needs_apt
def test_empty_submodules_are_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = DebianArchive(tmp_path / "archive")
    archive.folder.mkdir()
    archive.add_source(
        "pytorch", "1.13.1+dfsg-4", {"setup.py": "torch", "third_party/near/near.h": "own"}
    )
    archive.add_source("deep", "2.0-1", {"deep.h": "theirs"})
    archive.publish()
    monkeypatch.setattr(apt_archives, "APT_SETTINGS", archive.etc)
    fill = {"third_party/deep": "deep", "third_party/near": "near"}
    torch = make_request().package
    debian = replace(torch.source.debian, submodules={"bookworm": fill})
    request = replace(make_request(), package=change_groups(torch, source={"debian": debian}))
    source = fetch_source(request, layout(tmp_path), SilentProgress())
    assert (source.path / "third_party/deep/deep.h").read_text() == "theirs"
    assert (source.path / "third_party/near/near.h").read_text() == "own"
    assert (source.provider, source.commit, source.verified) == ("debian", None, False)
    assert source.origin == (
        "Debian's pytorch 1.13.1+dfsg-4 (as repacked by Debian; third_party/deep from deep 2.0-1)"
    )
    assert fetch_source(request, layout(tmp_path), SilentProgress()) == source
    other = replace(request.release, version="1.12.0", tag="v1.12.0")
    debian = DebianFacts({"1.12.0": "bookworm/pytorch"})
    newer = change_groups(request.package, source={"debian": debian})
    with refused("release-not-in-debian"):
        fetch_source(
            replace(request, release=other, package=newer), layout(tmp_path), SilentProgress()
        )


@needs_apt
def test_a_suite_that_the_machine_does_not_use_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = DebianArchive(tmp_path / "archive", "trixie")
    archive.folder.mkdir()
    archive.add_source("pytorch", "2.6.0+dfsg-7", {"setup.py": "torch"})
    archive.publish()
    lines = archive.etc / "sources.list"
    lines.write_text(lines.read_text().replace("trixie", "bookworm"))
    monkeypatch.setattr(apt_archives, "APT_SETTINGS", archive.etc)
    debian = DebianFacts({"1.13.1": "bookworm/pytorch", "2.6.0": "trixie/pytorch"})
    torch = change_groups(make_request().package, source={"debian": debian})
    newer = SourceRequest(torch, release("v2.6.0", None), origin="debian")
    assert fetch_source(newer, layout(tmp_path), SilentProgress()).origin.startswith(
        "Debian's pytorch 2.6.0+dfsg-7"
    )


def test_a_suite_without_archive_or_keys_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt_archives, "APT_SETTINGS", tmp_path)
    monkeypatch.setattr(apt_archives, "KEYRINGS", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: name)
    with refused("no-apt-archive"):
        fetch_source(make_request(), layout(tmp_path), SilentProgress())


def test_lists_are_renewed_after_a_listed_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "updated").touch()
    gone = "E: Failed to fetch http://d/x.deb  404  Not Found [IP: 1.2.3.4 80]"
    assert (
        explain_apt_error(gone, tmp_path, title="x", alternatives="WAYS").code == "debian-file-gone"
    )
    assert not (tmp_path / "updated").exists()
    sized = "Get:1 http://d x amd64 1 [404 kB]\nE: Could not connect to d"
    assert (
        explain_apt_error(sized, tmp_path, title="x", alternatives="WAYS").code
        == "host-unreachable"
    )


def test_lists_from_the_future_are_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "updated").touch()
    os.utime(tmp_path / "updated", (time.time() + 1e7,) * 2)
    ran: list[tuple[str, ...]] = []

    def fetch(_: apt.Apt, *words: str) -> None:
        ran.append(words)

    monkeypatch.setattr(apt.Apt, "fetch", fetch)
    apt.Apt(tmp_path).query(lambda: 1, bool)
    assert ran

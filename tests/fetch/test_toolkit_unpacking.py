"""Packages into a folder, and links that lead nowhere."""

from pathlib import Path

from tests.support.debian_archive import DebianArchive, needs_apt
from tests.support.refusals import refused
from torchmill.fetch.toolkit.debian import mend_links, unpack_packages


def keep(path: str) -> str | None:
    return None if path.startswith("doc/") else path


@needs_apt
def test_unpack(tmp_path: Path) -> None:
    files = {
        "bin/tool": "#!/bin/sh\n",
        "lib/a.so": "-> a.so.1",
        "lib/a.so.1": "a",
        "doc/x": "x",
        "lib/no": "-> ../doc/x",
    }
    deb = DebianArchive(tmp_path).add("tool", "1", files)
    (home := tmp_path / "home").mkdir()
    done: list[Path] = []
    unpack_packages([deb], home, keep, done.append)
    assert done == [deb]
    assert sorted(str(one.relative_to(home)) for one in home.rglob("*")) == [
        "bin",
        "bin/tool",
        "lib",
        "lib/a.so",
        "lib/a.so.1",
    ]
    assert (home / "lib/a.so").read_text() == "a"
    assert (home / "bin/tool").stat().st_mode & 0o777 == 0o755


@needs_apt
def test_what_is_no_package(tmp_path: Path) -> None:
    (broken := tmp_path / "broken.deb").write_text("not a package")
    with refused("damaged-archive"):
        unpack_packages([broken], tmp_path, keep, print)


@needs_apt
def test_half_a_package(tmp_path: Path) -> None:
    deb = DebianArchive(tmp_path).add("tool", "1", {"bin/tool": "#!" + "x" * 100_000})
    deb.write_bytes(deb.read_bytes()[:50_000])
    (home := tmp_path / "home").mkdir()
    with refused("damaged-archive"):
        unpack_packages([deb], home, keep, print)


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    home, machine = tmp_path / "home", tmp_path / "machine"
    home.mkdir()
    machine.mkdir()
    (machine / "libstdc++.so.6").touch()
    (home / "whole").symlink_to("there")
    (home / "there").touch()
    (home / "libstdc++.so").symlink_to("../lib/libstdc++.so.6")
    (home / "libgone.so").symlink_to("libgone.so.1")
    mend_links(home, [tmp_path / "nowhere", machine])
    assert {one.name: one.resolve() for one in home.iterdir()} == {
        "whole": home / "there",
        "there": home / "there",
        "libstdc++.so": machine / "libstdc++.so.6",
    }

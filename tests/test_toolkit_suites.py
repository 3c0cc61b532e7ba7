"""Where a suite is read."""

from pathlib import Path

from torchmill.source.apt import BINARIES, Archive
from torchmill.toolkit.suites import archives, pins, suite

BOOKWORM = suite(("debian/bookworm/main", "debian/bookworm/non-free"), "x86_64")
KEY = (("Signed-By", "/k.gpg"),)


def read(uri: str, options: tuple[tuple[str, str], ...] = KEY) -> Archive:
    return Archive(uri, "bookworm", ("main", "non-free"), options, BINARIES)


def test_a_suite() -> None:
    assert (str(BOOKWORM), BOOKWORM.architecture) == ("Debian's bookworm", "amd64")


def test_the_archive_of_the_machine(tmp_path: Path) -> None:
    machine = (
        Archive("http://a/debian", "bookworm", ("main",), KEY),
        Archive("http://a/debian", "bookworm-updates", ("main",), KEY),
        Archive("http://vendor/apt", "bookworm", ("stable",)),
    )
    found = archives(BOOKWORM, machine, tmp_path)
    assert found == (read("http://a/debian"),)
    assert found[0].stanza() == (
        "Types: deb\nURIs: http://a/debian\nSuites: bookworm\nComponents: main non-free\nSigned-By: /k.gpg\n"
    )


def test_a_machine_of_another_suite_has_the_archive(tmp_path: Path) -> None:
    machine = (
        Archive("http://vendor/apt", "nodistro", ("main",)),
        Archive("http://mirror/debian", "trixie", ("main",), KEY),
    )
    assert archives(BOOKWORM, machine, tmp_path) == (read("http://mirror/debian"),)


def test_another_distribution_needs_the_keys(tmp_path: Path) -> None:
    machine = (Archive("http://a/ubuntu", "noble", ("main",)),)
    assert archives(BOOKWORM, machine, tmp_path) == ()
    key = tmp_path / "debian-archive-keyring.gpg"
    key.touch()
    own = read("http://deb.debian.org/debian", (("Signed-By", str(key)),))
    assert archives(BOOKWORM, machine, tmp_path) == (own,)


def test_pins() -> None:
    assert pins(["libcub-dev", "nvidia-cuda-toolkit=11.2.2"], "11.2") == {
        "libcub-dev": "",
        "nvidia-cuda-toolkit": "11.2.2",
    }
    assert pins(["g++-{major}"], "gcc-11") == {"g++-11": ""}

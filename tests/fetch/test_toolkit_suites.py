"""Where a suite is read."""

from pathlib import Path

from torchmill.fetch.source.apt import BINARIES, AptArchive
from torchmill.fetch.toolkit.debian import parse_suite, pinned_versions, suite_archives

BOOKWORM = parse_suite(("debian/bookworm/main", "debian/bookworm/non-free"), "x86_64")
KEY = (("Signed-By", "/k.gpg"),)


def read(uri: str, options: tuple[tuple[str, str], ...] = KEY) -> AptArchive:
    return AptArchive(uri, "bookworm", ("main", "non-free"), options, BINARIES)


def test_a_suite() -> None:
    assert (str(BOOKWORM), BOOKWORM.architecture) == ("Debian's bookworm", "amd64")


def test_the_archive_of_the_machine(tmp_path: Path) -> None:
    machine = (
        AptArchive("http://a/debian", "bookworm", ("main",), KEY),
        AptArchive("http://a/debian", "bookworm-updates", ("main",), KEY),
        AptArchive("http://vendor/apt", "bookworm", ("stable",)),
    )
    found = suite_archives(BOOKWORM, machine, tmp_path)
    assert found == (read("http://a/debian"),)
    assert found[0].stanza() == (
        "Types: deb\nURIs: http://a/debian\nSuites: bookworm\nComponents: main non-free\nSigned-By: /k.gpg\n"
    )


def test_a_machine_of_another_suite_has_the_archive(tmp_path: Path) -> None:
    machine = (
        AptArchive("http://vendor/apt", "nodistro", ("main",)),
        AptArchive("http://mirror/debian", "trixie", ("main",), KEY),
    )
    assert suite_archives(BOOKWORM, machine, tmp_path) == (read("http://mirror/debian"),)


def test_another_distribution_needs_the_keys(tmp_path: Path) -> None:
    machine = (AptArchive("http://a/ubuntu", "noble", ("main",)),)
    assert suite_archives(BOOKWORM, machine, tmp_path) == ()
    key = tmp_path / "debian-archive-keyring.gpg"
    key.touch()
    own = read("http://deb.debian.org/debian", (("Signed-By", str(key)),))
    assert suite_archives(BOOKWORM, machine, tmp_path) == (own,)


def test_pins() -> None:
    assert pinned_versions(["libcub-dev", "nvidia-cuda-toolkit=11.2.2"], "11.2") == {
        "libcub-dev": "",
        "nvidia-cuda-toolkit": "11.2.2",
    }
    assert pinned_versions(["g++-{major}"], "gcc-11") == {"g++-11": ""}

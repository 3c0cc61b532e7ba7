"""The archives that a machine's apt reads, and those from which a suite can be read.

An archive is a server with packages. A suite is one release of a distribution ("bookworm") in an
archive; it is divided into components ("main", "non-free").
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchmill.core.lenient_paths import read_text
from torchmill.core.package_data import read_table_beside

KEYRINGS = Path("/usr/share/keyrings")
APT_SETTINGS = Path("/etc/apt")
# Which lists of an archive are read: those of source packages or of binary packages.
SOURCES = "deb-src"
BINARIES = "deb"
_DISTRIBUTIONS = read_table_beside(__file__, "distributions.toml")
# The two formats of sources.list(5): lines and deb822 stanzas.
_ONE_LINE = re.compile(
    r"^deb(?:-src)?\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<rest>.*)$"
)
_OPTION = re.compile(r'(?:"[^"]*"?|[^\s"])+')  # an open quote ends with the line
_FIELD = re.compile(r"^([^\s:]+)[ \t]*:[ \t]*(.*(?:\n[ \t].*)*)", re.MULTILINE)
_COMMENT_LINE = re.compile(r"^#.*\n?", re.MULTILINE)
_EMPTY_LINE = re.compile(r"\n[ \t]*\n")
_TRUST_FIELDS = ("signed-by", "trusted")  # options that say which keys to trust


@dataclass(frozen=True, slots=True)
class AptArchive:
    """One suite of one archive, as sources.list describes it."""

    uri: str
    suite: str
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()  # such as ("Signed-By", path of the keys)
    lists: str = SOURCES  # or BINARIES; of an archive in the machine's settings it says nothing

    def stanza(self) -> str:
        """Return the archive as a deb822 stanza."""
        fields = [
            ("Types", self.lists),
            ("URIs", self.uri),
            ("Suites", self.suite),
            ("Components", " ".join(self.components)),
            *self.options,
        ]
        return "".join(f"{key}: {value}\n" for key, value in fields)


def machine_archives(etc: Path) -> tuple[AptArchive, ...]:
    """Return the archives that the machine's apt reads, each once, in the order of its files.

    `etc` is the folder of apt's settings (/etc/apt). Files that this user cannot read are skipped.
    """
    archives: list[AptArchive] = []
    for file in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if not file.is_file():
            continue
        if file.suffix == ".list":
            archives.extend(parse_list(read_text(file)))
        elif file.suffix == ".sources":
            archives.extend(parse_deb822(read_text(file)))
    return tuple(dict.fromkeys(archives))


def parse_list(text: str) -> Iterator[AptArchive]:
    """Yield the archives of a file in the one-line format."""
    for line in text.splitlines():
        match = _ONE_LINE.match(line.partition("#")[0].strip())
        if match is None or match["suite"].endswith("/"):
            continue  # a suite with a slash is a flat archive, which has no components
        options = []
        for option in _OPTION.findall(match["options"] or ""):
            key, _, value = option.partition("=")
            if key.lower() in _TRUST_FIELDS:
                # "signed-by" of a line is "Signed-By" of a stanza.
                options.append((key.title(), value.replace('"', "")))
        components = tuple(match["rest"].split())
        yield AptArchive(match["uri"], match["suite"], components, tuple(options))


def parse_deb822(text: str) -> Iterator[AptArchive]:
    """Yield the archives of a file in the format of stanzas."""
    for fields in parse_stanzas(text):
        is_disabled = fields.get("enabled", "yes").strip().lower() in {"no", "false", "0"}
        types = fields.get("types", "").split()
        if is_disabled or {BINARIES, SOURCES}.isdisjoint(types):
            continue
        components = tuple(fields.get("components", "").split())
        options = tuple((key.title(), fields[key]) for key in _TRUST_FIELDS if key in fields)
        suites = fields.get("suites", "").split()
        for uri in fields.get("uris", "").split():
            for suite in suites:
                if not suite.endswith("/"):  # a flat archive has no components
                    yield AptArchive(uri, suite, components, options)


def parse_stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a text in the format deb822, as values by their keys in lower case.

    A value may have several lines; those after the first are indented, and stay so.
    """
    for paragraph in _EMPTY_LINE.split(_COMMENT_LINE.sub("", text)):
        fields = _FIELD.findall(paragraph)
        if fields:
            yield {key.lower(): value.rstrip() for key, value in fields}


@dataclass(frozen=True, slots=True)
class DebianSuite:
    """One suite of one distribution."""

    distribution: str  # "debian", "ubuntu"
    name: str  # "bookworm"
    components: tuple[str, ...]

    def __str__(self) -> str:
        """Return the name of the suite in messages: "Debian's bookworm"."""
        return f"{self.distribution.title()}'s {self.name}"

    @property
    def keyring(self) -> str:
        """Return the file name of the keys that sign the suite."""
        return str(_DISTRIBUTIONS[self.distribution]["keyring"])


def parse_suite(paths: Sequence[str]) -> DebianSuite:
    """Return the suite that facts write as ("debian/bookworm/main", "debian/bookworm/non-free")."""
    distribution, name, _ = paths[0].split("/")
    return DebianSuite(distribution, name, tuple(path.split("/")[2] for path in paths))


def suite_archives(
    suite: DebianSuite, machine: Sequence[AptArchive], keyrings: Path, lists: str = BINARIES
) -> tuple[AptArchive, ...]:
    """Return the archives from which a suite is read; () if none can be trusted.

    `machine` are the archives that the machine's apt reads. Those with the suite are returned, or
    else those with another suite of the same distribution, because an archive has all of them, or
    else the distribution's own archive, if the folder `keyrings` has the keys to verify it.
    """
    table = _DISTRIBUTIONS[suite.distribution]
    keyring = keyrings / suite.keyring
    archives = _archives_with([suite.name], machine) or _archives_with(table["suites"], machine)
    if not archives and keyring.exists():
        # Its suite and components are filled in below.
        archives = [AptArchive(table["archive"], "", (), (("Signed-By", str(keyring)),))]
    archives_of_suite: dict[AptArchive, None] = {}  # an ordered set
    for archive in archives:
        changed = replace(archive, suite=suite.name, components=suite.components, lists=lists)
        archives_of_suite[changed] = None
    return tuple(archives_of_suite)


def _archives_with(suites: Sequence[str], machine: Sequence[AptArchive]) -> list[AptArchive]:
    """Return the archives of a machine that have one of the `suites`.

    Archives without "main" are left out: they belong to vendors, whose suites have Debian's names.
    """
    archives = []
    for archive in machine:
        if archive.suite in suites and "main" in archive.components:
            archives.append(archive)
    return archives


def trusted_distributions(etc: Path) -> tuple[str, ...]:
    """Return the distributions whose archive the machine's apt reads, or for which it has keys.

    `etc` is the folder of apt's settings. Without apt there are none.
    """
    if shutil.which("apt-get") is None:
        return ()
    machine = machine_archives(etc)
    names = []
    for name, table in _DISTRIBUTIONS.items():
        # Any suite will do, because an archive has all of them.
        suite = DebianSuite(name, table["suites"][0], ("main",))
        if suite_archives(suite, machine, KEYRINGS):
            names.append(name)
    return tuple(names)

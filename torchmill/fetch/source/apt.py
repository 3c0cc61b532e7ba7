"""Run an apt of our own, which changes nothing of the system: lists, packages, and `--from debian`."""

import contextlib
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from torchmill.config.model import Source
from torchmill.core import process
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import HostError, NetworkError, SourceError, TorchmillError
from torchmill.core.files import disk_full_error, hash_file, read_table_beside, read_text
from torchmill.core.locks import hold_folder
from torchmill.core.process import CommandError, stream
from torchmill.fetch.source import source_dir
from torchmill.fetch.source.archive import unpack_archive
from torchmill.fetch.source.git_command import complaint_gist
from torchmill.fetch.source.source_dir import DEBIAN, SourceDir, SourceProof, SourceRequest

_ONE_LINE = re.compile(
    r"^deb(?:-src)?\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<rest>.*)$"
)
_OPTION = re.compile(r'(?:"[^"]*"?|[^\s"])+')  # an open quote ends with the line
_FIELD = re.compile(r"^([^\s:]+)[ \t]*:[ \t]*(.*(?:\n[ \t].*)*)", re.MULTILINE)
_REPACKED = re.compile(r"[+~.](?:really)?(?:dfsg|ds|repack)[\d.]*$")
_TRUST_FIELDS = ("signed-by", "trusted")  # that name the keys to trust
_LISTS_FRESH_SECONDS = 86400.0
_SETTINGS = Path(__file__).with_name("apt.conf")  # that hold for every apt of ours
_Found = TypeVar("_Found")

KEYRINGS = Path("/usr/share/keyrings")
SOURCES, BINARIES = "deb-src", "deb"  # what an archive's lists are of
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # what distributions call machines
_DISTRIBUTIONS = read_table_beside(__file__, "distributions.toml")
_STATUS = re.compile(r"dlstatus:\d+:(?P<percent>[\d.]+):")
_GLIBC = re.compile(r"\blibc6 \(>= (\d+\.\d+)")
_NAME = re.compile(r"[^\s:(\[<]+")
_ETC = Path("/etc/apt")
_UNREACHABLE = re.compile(
    r"(?i)could not resolve|temporary failure|unable to connect|could not connect|timed out"
)


@dataclass(frozen=True, slots=True)
class AptArchive:
    """One suite of one archive, as sources.list knows it."""

    uri: str
    suite: str
    components: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()
    lists: str = SOURCES

    def stanza(self) -> str:
        """Return it as a deb822 stanza."""
        fields = [("Types", self.lists), ("URIs", self.uri), ("Suites", self.suite)]
        fields += [("Components", " ".join(self.components)), *self.options]
        return "".join(f"{key}: {value}\n" for key, value in fields)


@dataclass(frozen=True, slots=True)
class _ListedPackage:
    name: str
    version: str  # Debian's, "1.13.1+dfsg-4", "11.8.89~11.8.0-5~deb12u1"

    @property
    def upstream(self) -> str:
        """Return what its authors call it, "1.13.1": no epoch, no revision, no mark of repacking."""
        _, _, rest = self.version.rpartition(":")
        return _REPACKED.sub("", rest.rpartition("-")[0] or rest)


@dataclass(frozen=True, slots=True)
class SourcePackage(_ListedPackage):
    """A source package that the archive lists."""

    tarball: str  # the upstream part's file name
    sha256: str


class Apt:
    """An apt whose lists, cache and sources are in `folder`, and the tarballs that it brings in `downloads`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.downloads = folder, folder / "downloads"

    def configure(self, archives: Iterable[AptArchive], architecture: str = "") -> None:
        """Write the settings: with an `architecture`, for packages of it as if nothing were installed. Idempotent."""
        for name in ("lists/partial", "cache/archives/partial", "sources", "downloads", "nothing"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        text = "\n".join(archive.stanza() for archive in archives)
        (self.folder / "sources" / "machine.sources").write_text(text, encoding="utf-8")
        nothing = self.folder / "nothing"
        (nothing / "status").touch()
        settings: dict[str, object] = {
            "Dir::State::lists": self.folder / "lists",
            "Dir::Cache": self.folder / "cache",
            "Dir::Etc::sourceparts": self.folder / "sources",
        }
        if architecture:
            settings |= {
                "APT::Architecture": architecture,
                "APT::Architectures": architecture,
                "Dir::State::status": nothing / "status",
                "Dir::Etc::preferences": "/dev/null",  # the machine's pins are about what it installs
                "Dir::Etc::preferencesparts": nothing,
                "APT::Update::Error-Mode": "any",  # without it, lists that did not come are only warned of
            }
        lines = "".join(f'{key} "{value}";\n' for key, value in settings.items())
        (self.folder / "apt.conf").write_text(
            _SETTINGS.read_text("utf-8") + lines, encoding="utf-8"
        )

    def query(
        self, find: Callable[[], _Found], enough: Callable[[_Found], bool]
    ) -> tuple[_Found, CommandError | None]:
        """Return what is found in the lists at hand if they are of today, else or if need be in new ones.

        Old lists are better than none: the error, if any, is why they could not be renewed.
        """
        stamp, failure = self.folder / "updated", None
        is_fresh = (
            stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < _LISTS_FRESH_SECONDS
        )
        if is_fresh and enough(found := find()):
            return found, None
        try:
            self.run("apt-get", "-q", "update")
            stamp.touch()
        except CommandError as error:  # one archive of several may be gone
            failure = error
        return find(), failure

    def find(self, name: str, upstream: str | None = None) -> SourcePackage | None:
        """Return the newest version listed, of that upstream version if one is given, or None."""
        listed = ""
        with contextlib.suppress(CommandError):  # "unable to locate", or no lists yet
            listed = self.run("apt-cache", "showsrc", "--only-source", name)
        found = (
            package for package in parse_showsrc(listed) if upstream in {None, package.upstream}
        )
        return next(found, None)  # apt lists the newest first

    def download(self, package: SourcePackage) -> None:
        """Bring the package's upstream tarball, unless it is there and intact.

        Raises CommandError; SourceError for one whose checksum is not the listed one.
        """
        target = self.downloads / package.tarball
        if not (target.exists() and hash_file(target) == package.sha256):
            wanted = f"{package.name}={package.version}"
            self.run(
                "apt-get", "-q", "source", "--download-only", "--tar-only", "--only-source", wanted
            )
        seen = hash_file(target) if target.exists() else "missing"
        if seen != package.sha256:
            target.unlink(missing_ok=True)
            raise SourceError(
                f"{target}: its sha256 was {seen}, but Debian lists {package.sha256}: run the command again, "
                "which downloads it anew",
                code="wrong-digest",
            )

    def run(self, program: str, *arguments: str) -> str:
        """Return what a program of apt's prints. Raises CommandError."""
        return process.capture(
            self.command(program, *arguments), cwd=self.downloads, env=self.environment()
        )

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return the command of one of apt's programs with these settings."""
        return [program, "-c", str(self.folder / "apt.conf"), *arguments]

    @staticmethod
    def environment() -> dict[str, str]:
        """Return the variables that apt runs with: it is read in English."""
        return {name: value for name, value in os.environ.items() if name != "LANGUAGE"} | {
            "LC_ALL": "C"
        }


def machine_archives(etc: Path) -> tuple[AptArchive, ...]:
    """Return the archives that the machine's apt uses, from its folder (/etc/apt); of files closed to us, none."""
    found: dict[AptArchive, None] = {}
    for file in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if file.suffix in {".list", ".sources"} and file.is_file():
            found |= dict.fromkeys(
                (parse_list if file.suffix == ".list" else parse_deb822)(read_text(file))
            )
    return tuple(found)


def parse_list(text: str) -> Iterator[AptArchive]:
    """Read the one-line format."""
    for line in text.splitlines():
        match = _ONE_LINE.match(line.partition("#")[0].strip())
        if match is None or match["suite"].endswith("/"):  # a flat archive has no components
            continue
        pairs = [option.partition("=")[::2] for option in _OPTION.findall(match["options"] or "")]
        options = tuple(
            (key.title(), value.replace('"', ""))
            for key, value in pairs
            if key.lower() in _TRUST_FIELDS
        )
        yield AptArchive(match["uri"], match["suite"], tuple(match["rest"].split()), options)


def parse_deb822(text: str) -> Iterator[AptArchive]:
    """Read the format of stanzas."""
    for fields in parse_stanzas(text):
        disabled = fields.get("enabled", "yes").strip().lower() in {"no", "false", "0"}
        if disabled or not {"deb", "deb-src"} & set(fields.get("types", "").split()):
            continue
        components = tuple(fields.get("components", "").split())
        options = tuple((key.title(), fields[key]) for key in _TRUST_FIELDS if key in fields)
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                if not suite.endswith("/"):
                    yield AptArchive(uri, suite, components, options)


def parse_showsrc(text: str) -> Iterator[SourcePackage]:
    """Read what `apt-cache showsrc` prints."""
    for fields in parse_stanzas(text):
        for line in fields.get("checksums-sha256", "").splitlines():
            digest, _, file = [*line.split(), "", "", ""][:3]
            if re.search(r"\.orig\.tar\.\w+$", file):
                yield SourcePackage(fields["package"], fields["version"], file, digest)


def parse_stanzas(text: str) -> Iterator[dict[str, str]]:
    """Read paragraphs of `Key: value`, whose further lines are indented; keys in lower case."""
    plain = re.sub(r"^#.*\n?", "", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n[ \t]*\n", plain):
        if fields := _FIELD.findall(paragraph):
            yield {key.lower(): value.rstrip() for key, value in fields}


@dataclass(frozen=True, slots=True)
class DebianSuite:
    """One suite of one distribution."""

    distribution: str  # "debian", "ubuntu"
    name: str  # "bookworm"
    components: tuple[str, ...]

    def __str__(self) -> str:
        """Return how messages call it: "Debian's bookworm"."""
        return f"{self.distribution.title()}'s {self.name}"

    @property
    def keyring(self) -> str:
        """Return the file name of the keys that sign it."""
        return str(_DISTRIBUTIONS[self.distribution]["keyring"])


def parse_suite(where: Sequence[str]) -> DebianSuite:
    """Parse the suite of a source in the facts: ("debian/bookworm/main", "debian/bookworm/non-free")."""
    parts = [one.split("/") for one in where]
    return DebianSuite(parts[0][0], parts[0][1], tuple(component for _, _, component in parts))


def suite_archives(
    suite: DebianSuite, machine: Sequence[AptArchive], keyrings: Path, lists: str = BINARIES
) -> tuple[AptArchive, ...]:
    """Return where a suite is read: an archive that the machine uses, else the distribution's own.

    Nothing where the machine uses neither, and has no keys (in the folder `keyrings`) to believe the latter.
    """
    archives: list[AptArchive] = []
    for names in ([suite.name], _DISTRIBUTIONS[suite.distribution]["suites"]):
        archives = archives or [
            one for one in machine if one.suite in names and "main" in one.components
        ]
    keyring = keyrings / suite.keyring
    if not archives and keyring.exists():
        archives = [
            AptArchive(
                _DISTRIBUTIONS[suite.distribution]["archive"],
                "",
                (),
                (("Signed-By", str(keyring)),),
            )
        ]
    read = (
        replace(one, suite=suite.name, components=suite.components, lists=lists) for one in archives
    )
    return tuple(dict.fromkeys(read))


def trusted_distributions(etc: Path) -> tuple[str, ...]:
    """Return the distributions whose archive a machine's apt uses, or has the keys of; `etc` has its settings."""
    if shutil.which("apt-get") is None:
        return ()
    machine = machine_archives(etc)
    suites = [
        DebianSuite(name, table["suites"][0], ("main",)) for name, table in _DISTRIBUTIONS.items()
    ]
    return tuple(suite.distribution for suite in suites if suite_archives(suite, machine, KEYRINGS))


@dataclass(frozen=True, slots=True)
class BinaryPackage(_ListedPackage):
    """A binary package that the archive lists."""

    made_from: str  # the name of its source package
    depends: tuple[tuple[str, ...], ...]  # names; of each group one is needed
    glibc: str | None  # the oldest that it is known to run with
    file: str
    size: int  # bytes
    sha256: str


def list_binaries(apt: Apt, names: Iterable[str]) -> dict[str, BinaryPackage]:
    """Return the newest version of those of the packages that the archives have, by their names."""
    output = ""
    with contextlib.suppress(CommandError):  # none of them, or no lists yet
        output = apt.run("apt-cache", "show", "--no-all-versions", *names)
    return {package.name: package for package in parse_show(output)}


def package_closure(
    roots: Sequence[str], ask: Callable[[Iterable[str]], Mapping[str, BinaryPackage]]
) -> tuple[BinaryPackage, ...]:
    """Return the roots and what they need, as far as that is made from the same sources as the roots.

    What is missing among the roots is left out. `ask` returns those packages that there are.
    """
    known = dict(ask(roots))
    followed = {package.made_from for package in known.values()}
    taken = {name: known[name] for name in roots if name in known}
    new = list(taken.values())
    while new:
        groups = [group for package in new for group in package.depends]
        unasked = dict.fromkeys(name for group in groups for name in group if name not in known)
        known |= ask(unasked) if unasked else {}
        new = []
        for group in groups:
            ours = [
                known[name] for name in group if name in known and known[name].made_from in followed
            ]
            if ours and not taken.keys() & {package.name for package in ours}:
                taken[ours[0].name] = ours[0]
                new.append(ours[0])
    return tuple(taken.values())


def download_binaries(
    apt: Apt, packages: Sequence[BinaryPackage], folder: Path, tell: Callable[[float], None]
) -> None:
    """Bring packages into a folder, going on where an earlier try stopped; `tell` is given 0.0 to 1.0.

    apt checks them against the signed lists. Raises CommandError.
    """
    wanted = [f"{package.name}={package.version}" for package in packages]
    argv = apt.command("apt-get", "-q", "-o", "APT::Status-Fd=1", "download", *wanted)

    def hear(line: str) -> None:
        if match := _STATUS.match(line):
            tell(float(match["percent"]) / 100)

    stream(argv, cwd=folder, env=apt.environment(), log=io.StringIO(), on_line=hear)


def parse_show(text: str) -> Iterator[BinaryPackage]:
    """Read what `apt-cache show` prints."""
    for fields in parse_stanzas(text):
        if {"package", "version", "size", "sha256"} <= fields.keys():
            name, version, depends = fields["package"], fields["version"], fields.get("depends", "")
            clauses = (clause.split("|") for clause in depends.split(","))
            groups = (
                tuple(match[0] for one in each if (match := _NAME.match(one.strip())))
                for each in clauses
            )
            glibc, needs = _GLIBC.search(depends), tuple(filter(None, groups))
            # the name that apt gives the file, which escapes the colon of an epoch
            file = f"{name}_{version.replace(':', '%3a')}_{fields.get('architecture', 'all')}.deb"
            yield BinaryPackage(
                name=name,
                version=version,
                made_from=(fields.get("source") or name).split()[0],
                depends=needs,
                glibc=glibc[1] if glibc else None,
                file=file,
                size=int(fields["size"]),
                sha256=fields["sha256"],
            )


def fetch_debian(
    request: SourceRequest, slot: SourceDir, cache: Path, progress: ProgressDisplay
) -> Source:
    """Download, check and unpack the release and what fills its empty submodules.

    Raises SourceError, NetworkError, HostError; BusyError if another run holds the cache for too long.
    """
    package, release, ways = request.package, request.release, request.alternatives()
    where, _, name = package.debian.get(release.version, "").partition("/")
    if not name:
        places = [
            f"{version} in {place.partition('/')[0]}" for version, place in package.debian.items()
        ]
        raise SourceError(
            f"torchmill knows of no suite of Debian with {package.name} {release.version} (its facts name "
            f"{', '.join(places) or 'none for any release of it'}; Debian was not asked): {ways}",
            code="release-not-in-debian",
        )
    if shutil.which("apt-get") is None:
        raise HostError(
            f"--from debian needs apt-get, which is not installed: {ways}", code="apt-missing"
        )
    with contextlib.closing(progress.task(request.what)) as bar, slot.scratch() as tree:
        with hold_apt(cache):
            suite = DebianSuite(DEBIAN, where, ("main",))
            if not (archives := suite_archives(suite, machine_archives(_ETC), KEYRINGS, SOURCES)):
                raise HostError(
                    f"{suite} is in no line of {_ETC}, and its keys ({KEYRINGS / suite.keyring}) are missing: "
                    "add a `deb` line for it, or install debian-archive-keyring",
                    code="no-apt-archive",
                )
            bar.update(0, None, f"reading the lists of {suite}")
            apt = Apt(cache / f"{where}-sources")
            apt.configure(archives)
            package_found = _download(apt, suite, name, release.version, request, bar)
            unpack_archive(apt.downloads / package_found.tarball, tree, bar)
            filled = _fill_empty(apt, suite, tree, request, bar)
        source_dir.require_python_project(tree, f"Debian's {package_found.tarball}")
        notes = "; ".join(["as repacked by Debian", *filled])
        origin = f"Debian's {package_found.name} {package_found.version} ({notes})"
        proof = SourceProof(
            archive=package_found.sha256, unproven="Debian repacks the source, and names no commit"
        )
        return slot.publish(slot.unpacked, request, DEBIAN, origin, proof=proof)


def _download(  # noqa: PLR0917 - what to bring, from where, for whom
    apt: Apt,
    suite: DebianSuite,
    name: str,
    version: str | None,
    request: SourceRequest,
    bar: ProgressBar,
) -> SourcePackage:
    """Return the listed package, its tarball downloaded and checked."""
    try:
        found, failure = apt.query(lambda: apt.find(name, version), bool)
        if found is None and failure is not None:
            raise failure
        if found is None:
            other = apt.find(name)
            has = f"it now has {name} {other.upstream}" if other else f"it has no {name}"
            raise SourceError(
                f"{suite} does not have {' '.join(filter(None, (name, version)))} ({has}): {request.alternatives()}",
                code="release-not-in-debian",
            )
        bar.update(0, None, f"downloading {found.tarball}")
        apt.download(found)
    except CommandError as error:
        raise explain_apt_error(
            error.output, apt.folder, request.what, request.alternatives()
        ) from None
    return found


def _fill_empty(
    apt: Apt, suite: DebianSuite, tree: Path, request: SourceRequest, bar: ProgressBar
) -> tuple[str, ...]:
    """Put Debian's copies into submodule folders that its repacked archive leaves empty, and name them."""
    filled = []
    for path, name in request.package.debian_fill.get(suite.name, {}).items():
        folder = tree / path
        if folder.is_dir() and any(folder.iterdir()):
            continue
        found = _download(apt, suite, name, None, request, bar)
        if folder.exists():
            folder.rmdir()
        folder.parent.mkdir(parents=True, exist_ok=True)
        unpack_archive(apt.downloads / found.tarball, folder, bar)
        filled.append(f"{path} from {name} {found.version}")
    return tuple(filled)


def explain_apt_error(output: str, folder: Path, what: str, ways: str) -> TorchmillError:
    """Return the error to show for apt's output; `ways` are what the user may do instead."""
    complaint = apt_complaint(output)
    if "no space left" in output.lower():
        return disk_full_error(folder)
    if re.search(r"\b404 +Not Found", output):
        (folder / "updated").unlink(
            missing_ok=True
        )  # else the old lists would be believed for a day
        told = f"Debian's archive lists {what}, but its file is gone ({complaint}); the next run reads its lists anew"
        return SourceError(f"{told}: {ways}", code="debian-file-gone")
    if _UNREACHABLE.search(output):
        return NetworkError(
            f"cannot reach Debian's archive ({complaint}): {ways}", code="host-unreachable"
        )
    return SourceError(
        f"apt could not get {what} from Debian's archive ({complaint}): {ways}", code="apt-failed"
    )


def apt_complaint(output: str) -> str:
    """Return the first error in apt's output."""
    lines = [
        line.strip().removeprefix("E:").strip()
        for line in output.splitlines()
        if line.startswith("E:")
    ]
    return lines[0] if lines else complaint_gist(output)


def hold_apt(cache: Path) -> AbstractContextManager[None]:
    """Hold the apt that all checkouts of this user share. Raises BusyError if another run keeps it."""
    message = f"{cache} is in use by another run: wait for it, or stop it"
    return hold_folder(cache, source_dir.WAIT_TIMEOUT_SECONDS, message, "apt-busy")

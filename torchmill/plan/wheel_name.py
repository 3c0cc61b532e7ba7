"""The name of a wheel: version, local label and tags.

The parts of a wheel's file name are described in
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

import re
from collections.abc import Mapping, Sequence

from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.build import Build, Processor
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.core.errors import ConfigError
from torchmill.fetch.source.source import Source
from torchmill.host.host import Host
from torchmill.host.processor import processor_needs
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.plan import SourceName

LABELS = ("official", "git", "none")
AUTO_PLATFORM = "auto"  # the oldest platform that has the symbols of the compiled libraries
_NUMBER = r"(0|[1-9]\d{0,2})"
# The values of `--plat`: "auto", "linux", "manylinux2014", "manylinux_2_28", "musllinux_1_2". All
# but "auto" may have an arch at the end: "manylinux_2_28_x86_64".
PLATFORM_PATTERN = re.compile(
    r"auto|(linux|manylinux(?P<year>1|2010|2014)(?!\d)"
    rf"|(?P<libc>many|musl)linux_(?P<version>{_NUMBER}_{_NUMBER}))"
    r"(_(?P<arch>[a-z]\w*))?",
    re.ASCII,
)
# Versions of macOS that installers know as tags: from macOS 11 on, none with a minor version.
_MACOS_TARGET = re.compile(r"10\.\d+|(1[1-9]|[2-9]\d)\.0")
# The glibc that the old names of platform tags promise. https://peps.python.org/pep-0600/
_YEARS = {"1": "2.5", "2010": "2.12", "2014": "2.17"}
# Up to Python 3.7, ABI tags end in "m". https://docs.python.org/3/whatsnew/3.8.html
_FIRST_PYTHON_WITHOUT_M = Version("3.8")
_UNVERIFIED = "unverified"  # the source says that it is of a commit, and nothing proves it
MODIFIED = "modified"  # the source is of that commit, and the user changed it
_SHORT = 7  # digits of an abbreviated commit or digest


def name_source(release: Release, source: Source | None, *, modified: bool) -> SourceName:
    """Return the names by which a wheel and its documents call a source.

    `source` is None if it is not fetched yet: then it is named by the commit of the release, which
    git would bring. `modified` tells whether the user patches the source, also by patches of
    build_configs/ that only an option applies.
    """
    return SourceName(
        commit=source.commit if source else release.proof.commit,
        label=_source_label(release, source, modified=modified),
        git_version=_git_version(release, source, modified=modified),
        title=source.title if source else "not fetched",
    )


def _source_label(release: Release, source: Source | None, *, modified: bool) -> str:
    """Return the label of `--label git`; "" if nothing is known of the source.

    Examples are "git49444c3", "git49444c3.modified" and, without a proven commit,
    "src1a2b3c4.unverified" and "src1a2b3c4.unverified.modified".
    """
    commit = source.commit if source else release.proof.commit
    if commit:
        label = f"git{commit[:_SHORT]}"
    elif source and source.contents:
        # A segment of digits alone would lose its leading zeros: the digest needs letters before
        # it. https://peps.python.org/pep-0440/#local-version-identifiers
        label = f"src{source.contents[:_SHORT]}.{_UNVERIFIED}"
    else:
        return ""
    return f"{label}.{MODIFIED}" if modified else label


def _git_version(release: Release, source: Source | None, *, modified: bool) -> str | None:
    """Return the commit for a wheel's version module; None if nothing names one.

    It is whole only if the files are the commit's. Else it is short and marked,
    "49444c3+unverified" or "49444c3+modified", so that no program takes it for a commit.
    """
    is_unproven = source is not None and not source.commit
    if source is None:
        commit = release.proof.commit
    else:
        commit = source.commit or source.declared or release.proof.commit
    if not commit:
        return None
    marks = [_UNVERIFIED] if is_unproven else []
    if modified:
        marks.append(MODIFIED)
    return mark_commit(commit, ".".join(marks))


def mark_commit(commit: str, mark: str) -> str:
    """Return a commit for a version module: whole, or short with the mark after it."""
    return f"{commit[:_SHORT]}+{mark}" if mark else commit


def requested_processor(facts: Facts, build: Build, options: Options) -> Processor | None:
    """Return the processor that `--cpu` asks for; None without the option.

    Only the machine that builds can ask its compiler what the name means. If it has done so,
    `options.processor` is the answer, which is returned. Until then, as in a plan for another
    machine, the flag is the compiler's option with the name itself: "-march=NAME". Raises
    ConfigError on a system whose compilers take no such option.
    """
    if options.cpu is None or options.processor is not None:
        return options.processor
    flag = facts.arches[build.arch].processor_flag(options.cpu)
    if not flag:
        raise ConfigError(
            f"--cpu {options.cpu}: this option works on Linux only: leave it out",
            code="processor-not-told",
        )
    return Processor(options.cpu, (flag,), processor_needs(build.arch, options.cpu))


def processor_words(processor: str) -> list[str]:
    """Return the parts of a version's label for a processor: x86, 64 and v3 of "x86-64-v3"."""
    return re.findall(r"[a-z0-9]+", processor.lower())


def local_label(
    build: Build,
    system: str,
    label: str,
    source_label: str,
    processor: Processor | None = None,
    *,
    settings: Sequence[str] = (),
) -> str:
    """Return the local part of a wheel's version: "+cpu", "+git49444c3", "+cpu.x86.64.v3" or "".

    `label` is one of LABELS, and `source_label` is the source's, as in `SourceName`. On macOS the
    label "official" is none. `settings` are the labels of settings that make the wheel differ:
    ("debug",). Raises ConfigError for the label "git" if nothing is known of the source.
    """
    if label == "git":
        if not source_label:
            raise ConfigError(
                "--label git: the commit of the source is not known: fetch the source, or give --torch",
                code="unknown-commit",
            )
        first = source_label
    elif label == "none" or system == "macos":
        # The official macOS wheels have no label, so a pin without one must fit ours too.
        first = ""
    else:
        first = build.variant
    segments = [first] if first else []
    if processor:
        segments += processor_words(processor.name)
    segments += [word for word in settings if word]
    return f"+{'.'.join(segments)}" if segments else ""


def wheel_version(
    facts: Facts,
    cell: Cell,
    label: str,
    source_label: str,
    processor: Processor | None = None,
    *,
    settings: Sequence[str] = (),
) -> str:
    """Return the version of a wheel with its local label, "2.4.1+cpu".

    The label of a package whose release goes with several torch names one: "+cu130.torch2.11.0". It
    does not if the package uses torch's stable ABI, or if the wheel has no label.
    Arguments and errors are those of `local_label`.
    """
    build = cell.build
    release = cell.release
    package = facts.packages[build.package]
    system = facts.arches[build.arch].system
    local = local_label(build, system, label, source_label, processor, settings=settings)
    if local and package.after and package.editions and not release.wheel.stable_abi:
        # One version of such a package goes with several torch, and its wheels with one of them:
        # "+cu130.torch2.11.0" tells them apart.
        base = canonicalize_name(package.after).replace("-", ".")
        local += f".{base}{release.torch}"
    return release.version + local


def python_tag(python: str) -> str:
    """Return the interpreter and ABI tags: "cp310-cp310" for "3.10", "cp37-cp37m" for "3.7"."""
    number = python.rstrip("t")
    interpreter = "cp" + number.replace(".", "")
    flag = ""
    if python.endswith("t"):
        flag = "t"
    elif Version(number) < _FIRST_PYTHON_WITHOUT_M:
        flag = "m"
    return f"{interpreter}-{interpreter}{flag}"


def promised_platform_tag(
    facts: Facts, build: Build, host: Host, variables: Mapping[str, str], requested: str
) -> str:
    """Return the newest platform tag that a wheel may get: "manylinux_2_28_x86_64".

    `requested` is the value of `--plat`, which was matched with PLATFORM_PATTERN. For "auto" it is
    the result of `platform_tag`, which an older tag may replace once the wheel is built. Raises
    ConfigError for a tag that no wheel of this build can have, and on macOS and Windows, whose tags
    `--plat` does not choose.
    """
    match = PLATFORM_PATTERN.fullmatch(requested)
    if requested == AUTO_PLATFORM or match is None:
        return platform_tag(facts, build, host, variables)
    arch = facts.arches[build.arch]
    if arch.system != "linux":
        macos = arch.system == "macos"
        cure = "--set MACOSX_DEPLOYMENT_TARGET=12.0" if macos else "--plat auto"
        raise ConfigError(
            f"--plat {requested}: this is a tag of Linux wheels, and the build is for "
            f"{arch.system}: use {cure}",
            code="platform-of-another-system",
        )
    if match["arch"] not in {None, build.arch}:
        raise ConfigError(
            f"--plat {requested}: the build is for {build.arch}: omit the architecture from the "
            "tag",
            code="platform-of-another-arch",
        )
    tag = requested if match["arch"] else f"{requested}_{build.arch}"
    glibc = promised_glibc(tag, build.arch)
    # A build for another machine runs in a container, of whose C library nothing is known here.
    if host.arch == build.arch:
        _check_libc(requested, glibc, host)
    oldest = arch.oldest_glibc
    if glibc and oldest and Version(glibc) < Version(oldest):
        raise ConfigError(
            f"--plat {requested}: too old for {build.arch}, whose oldest platform tag is "
            f"manylinux_{oldest.replace('.', '_')}",
            code="platform-too-old",
        )
    return tag


def promised_glibc(tag: str, arch: str) -> str | None:
    """Return the glibc that a platform tag for a machine promises, "2.28"; None for other tags."""
    match = PLATFORM_PATTERN.fullmatch(tag)
    if match is None or match["arch"] != arch or match["libc"] == "musl":
        return None
    if match["year"]:
        return _YEARS[match["year"]]
    if match["version"]:
        return match["version"].replace("_", ".")
    return None


def _check_libc(requested: str, promised: str | None, host: Host) -> None:
    """Raise ConfigError for a tag of another libc, or of a glibc that is newer than the host's.

    `promised` is the glibc that the tag names, if it names one. pip would not install a wheel with
    a newer one on this host, where it is to be tried.
    """
    glibc = host.platform.glibc
    if requested.startswith("musl") and glibc is not None:
        raise ConfigError(
            f"--plat {requested}: this system's C library is glibc: build on a system with musl",
            code="platform-of-another-libc",
        )
    if promised and glibc is None and host.complete:
        raise ConfigError(
            f"--plat {requested}: this system's C library is not glibc: use linux, or build where "
            "it is",
            code="platform-of-another-libc",
        )
    # A wheel needs at most the glibc with which it is linked. A newer promise would be true, but
    # pip would not install it on this very system.
    if promised and glibc and Version(promised) > Version(glibc):
        raise ConfigError(
            f"--plat {requested}: this system's glibc is {glibc}, and nothing compiled here needs "
            f"a newer one: use manylinux_{glibc.replace('.', '_')} or older, or omit --plat",
            code="platform-too-new",
        )


def platform_tag(facts: Facts, build: Build, host: Host, variables: Mapping[str, str]) -> str:
    """Return the platform tag that is true of everything that a host links.

    On Linux it names the host's glibc, or is "linux_x86_64" if no glibc is known; on macOS it names
    the deployment target among the `variables` of the build, else 11.0. Raises ConfigError for a
    version of macOS for which installers know no tag.
    """
    macos = variables.get("MACOSX_DEPLOYMENT_TARGET", "11.0")
    template = facts.arches[build.arch].platform_tag
    if "{macos}" in template:
        # macOS 11 is the first for Apple silicon.
        too_old = build.arch == "arm64" and macos.startswith("10.")
        if too_old or not _MACOS_TARGET.fullmatch(macos):
            raise ConfigError(
                f"MACOSX_DEPLOYMENT_TARGET={macos}: from macOS 11 on, installers know only tags of "
                "11.0, 12.0 and so on: set one of these",
                code="invalid-platform",
            )
    if "{glibc}" in template and host.platform.glibc is None:
        return f"linux_{build.arch}"
    glibc = (host.platform.glibc or "").replace(".", "_")
    return template.format(glibc=glibc, macos=macos.replace(".", "_"))


def distribution_name(package: Package) -> str:
    """Return a package's name in the names of wheels: "torch_scatter" for "torch-scatter"."""
    return canonicalize_name(package.name).replace("-", "_")


def wheel_file_name(
    package: Package, release: Release, build: Build, version: str, platform: str
) -> str:
    """Return the name of a wheel's file."""
    tags = f"{release.wheel.tag or python_tag(build.python)}-{platform}"
    return f"{distribution_name(package)}-{version}-{tags}.whl"

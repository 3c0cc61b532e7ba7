"""The name of a wheel: version, local label and tags."""

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
from torchmill.plan.cell import Cell
from torchmill.plan.plan import UNFETCHED, SourceName

LABELS = ("official", "git", "none")
AUTO_PLATFORM = "auto"  # the platform that the symbols of what was compiled need
_NUMBER = r"(0|[1-9]\d{0,2})"
PLATFORM_PATTERN = re.compile(
    rf"auto|(linux|manylinux(?P<year>1|2010|2014)(?!\d)|(?P<libc>many|musl)linux_(?P<version>{_NUMBER}_{_NUMBER}))"
    r"(_(?P<arch>[a-z]\w*))?",
    re.ASCII,
)
_MACOS_TARGET = re.compile(
    r"10\.\d+|(1[1-9]|[2-9]\d)\.0"
)  # which tags name: from macOS 11 on no minor version
_YEARS = {"1": "2.5", "2010": "2.12", "2014": "2.17"}  # the glibc of each: PEP 600
PRE_ABI_CHANGE = Version("3.8")  # PEP 3149's "m" ended with it
UNVERIFIED = "unverified"  # the source is said to be of a commit, and nothing proves it
MODIFIED = "modified"  # the source is of that commit, and the user changed it
_SHORT = 7  # digits of a commit or a digest


def name_source(release: Release, source: Source | None, *, modified: bool) -> SourceName:
    """Return what to call a fetched source, or else that which git would bring; `modified` by the user's patches."""
    return SourceName(
        commit=source.commit if source else release.commit,
        label=_source_label(release, source, modified=modified),
        git_version=_git_version(release, source, modified=modified),
        title=source.title if source else UNFETCHED.title,
    )


def _source_label(release: Release, source: Source | None, *, modified: bool) -> str:
    """Return what `--label git` says of a source: "git49444c3", "git49444c3.modified", "src1a2b3c4.unverified"."""
    commit = source.commit if source else release.commit
    if commit:
        return f"git{commit[:_SHORT]}{f'.{MODIFIED}' if modified else ''}"
    # PEP 440 strips the zeros that a segment of digits begins with, so the digest needs letters before it
    return f"src{source.contents[:_SHORT]}.{UNVERIFIED}" if source and source.contents else ""


def _git_version(release: Release, source: Source | None, *, modified: bool) -> str | None:
    """Return what a wheel's version module says of its commit: the whole of it only if the files are that commit's.

    Else it is short and marked, "49444c3+unverified" or "49444c3+modified", so that no program takes it for a commit;
    None where nothing names one.
    """
    if source and not source.commit:
        named = source.declared or release.commit
        return mark_commit(named, UNVERIFIED) if named else None
    commit = source.commit if source else release.commit
    return mark_commit(commit, MODIFIED if modified else "") if commit else None


def mark_commit(commit: str, mark: str) -> str:
    """Return a commit as a version module says it: whole, or short with the mark behind it."""
    return f"{commit[:_SHORT]}+{mark}" if mark else commit


def local_label(
    build: Build,
    system: str,
    label: str,
    source: str,
    processor: Processor | None = None,
    *,
    settings: Sequence[str] = (),
) -> str:
    """Return "+cpu", "+git49444c3", "+cpu.x86.64.v3", "+cpu.debug" or "": the local part of a version (PEP 440).

    `source` is the label of the source, `settings` are the words for what was set beyond the usual: ("debug",).
    Raises ConfigError for `git` where nothing is known of the source.
    """
    if label == "git":
        if not source:
            raise ConfigError(
                "label 'git' needs the commit, not known: fetch the source, or give --torch",
                code="unknown-commit",
            )
        own = source
    else:  # The official macOS wheels have no label, so a pin without one must fit ours too.
        own = "" if label == "none" or system == "macos" else build.variant
    words = re.findall(r"[a-z0-9]+", processor.name.lower()) if processor else []
    local = ".".join(filter(None, [own, *words, *settings]))
    return f"+{local}" if local else ""


def wheel_version(
    facts: Facts,
    cell: Cell,
    label: str,
    source: str,
    processor: Processor | None = None,
    *,
    settings: Sequence[str] = (),
) -> str:
    """Return the version of a wheel with its local label; raises ConfigError as `local_label` does."""
    build, release, package = cell.build, cell.release, facts.packages[cell.build.package]
    local = local_label(
        build, facts.arches[build.arch].system, label, source, processor, settings=settings
    )
    one_torch = package.editions and not release.stable_abi
    if (
        local and one_torch and package.after
    ):  # tells wheels for several torch apart: "+cu130.torch2.11.0"
        local += f".{canonicalize_name(package.after).replace('-', '.')}{release.torch}"
    return release.version + local


def python_tag(python: str) -> str:
    """Return the interpreter and ABI tags: "3.10" -> "cp310-cp310", "3.7" -> "cp37-cp37m"."""
    number = python.rstrip("t")
    interpreter = "cp" + number.replace(".", "")
    flag = "t" if python.endswith("t") else "m" if Version(number) < PRE_ABI_CHANGE else ""
    return f"{interpreter}-{interpreter}{flag}"


def promised_platform_tag(
    facts: Facts, build: Build, host: Host, variables: Mapping[str, str], requested: str
) -> str:
    """Return the platform tag that was asked for, with its machine; for "auto" see `platform_tag`.

    Raises ConfigError for a tag that no wheel of this build can have, or where tags are not to be chosen.
    """
    match = PLATFORM_PATTERN.fullmatch(requested)
    if requested == AUTO_PLATFORM or match is None:
        return platform_tag(facts, build, host, variables)
    if (system := facts.arches[build.arch].system) != "linux":
        other = "--set MACOSX_DEPLOYMENT_TARGET=12.0" if system == "macos" else "--plat auto"
        raise ConfigError(
            f"--plat {requested}: this is a tag of Linux wheels, and the build is for {system}: use {other}",
            code="platform-of-another-system",
        )
    if match["arch"] not in {None, build.arch}:
        raise ConfigError(
            f"--plat {requested}: the build is for {build.arch}: omit the architecture from the tag",
            code="platform-of-another-arch",
        )
    tag = requested if match["arch"] else f"{requested}_{build.arch}"
    glibc = promised_glibc(tag, build.arch)
    if host.arch == build.arch:  # of the system in a container nothing is known here
        _check_libc(requested, glibc, host)
    oldest = facts.arches[build.arch].oldest_glibc
    if glibc and oldest and Version(glibc) < Version(oldest):
        raise ConfigError(
            f"--plat {requested}: too old for {build.arch}, whose oldest platform tag is "
            f"manylinux_{oldest.replace('.', '_')}",
            code="platform-too-old",
        )
    return tag


def promised_glibc(tag: str, arch: str) -> str | None:
    """Return the glibc that a platform tag names for a machine, "2.28"; None where it names none."""
    match = PLATFORM_PATTERN.fullmatch(tag)
    if match is None or match["arch"] != arch or match["libc"] == "musl":
        return None
    return _YEARS.get(match["year"]) or (match["version"] or "").replace("_", ".") or None


def _check_libc(requested: str, glibc: str | None, host: Host) -> None:
    """Raise ConfigError for a tag of another C library than the host's, or of a newer one: `glibc`, if it is one."""
    if requested.startswith("musl") and host.glibc is not None:
        raise ConfigError(
            f"--plat {requested}: this system's C library is glibc: build on a system with musl",
            code="platform-of-another-libc",
        )
    if glibc and host.glibc is None and host.complete:
        raise ConfigError(
            f"--plat {requested}: this system's C library is not glibc: use linux, or build where it is",
            code="platform-of-another-libc",
        )
    if glibc and host.glibc and Version(glibc) > Version(host.glibc):
        raise ConfigError(
            f"--plat {requested}: this system's glibc is {host.glibc}, and nothing compiled here needs a "
            f"newer one: use manylinux_{host.glibc.replace('.', '_')} or older, or omit --plat",
            code="platform-too-new",
        )


def platform_tag(facts: Facts, build: Build, host: Host, variables: Mapping[str, str]) -> str:
    """Return the platform tag that is true of whatever this host links, built with these variables.

    Raises ConfigError for a macOS that no installer knows a tag of.
    """
    macos = variables.get("MACOSX_DEPLOYMENT_TARGET", "11.0")
    template = facts.arches[build.arch].platform_tag
    unable = build.arch == "arm64" and macos.startswith("10.")  # which no Apple silicon runs
    if "{macos}" in template and (unable or not _MACOS_TARGET.fullmatch(macos)):
        raise ConfigError(
            f"MACOSX_DEPLOYMENT_TARGET={macos}: from macOS 11 on, installers know only tags of 11.0, 12.0 and so on"
            ": set one of these",
            code="invalid-platform",
        )
    if "{glibc}" in template and host.glibc is None:
        return f"linux_{build.arch}"
    return template.format(
        glibc=(host.glibc or "").replace(".", "_"), macos=macos.replace(".", "_")
    )


def distribution_name(package: Package) -> str:
    """Return how a package is called in the names of its wheels: "torch-scatter" -> "torch_scatter"."""
    return canonicalize_name(package.name).replace("-", "_")


def wheel_file_name(
    package: Package, release: Release, build: Build, version: str, platform: str
) -> str:
    """Return the name of a wheel's file."""
    return f"{distribution_name(package)}-{version}-{release.wheel_tag or python_tag(build.python)}-{platform}.whl"

"""Which providers of toolkits, libraries and compilers a machine can use.

A provider (conda, PyPI, Debian's archives) has sources: packages that together make one toolkit,
one library or one compiler.
"""

from collections.abc import Sequence
from typing import Literal

from packaging.version import Version

from torchmill.config import distributions
from torchmill.config.facts import Facts
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.config.toolkit import PROVIDERS, ToolkitSource
from torchmill.core.package_data import read_table_beside
from torchmill.fetch.toolkit.request import ProviderRefusal, ToolkitRequest, candidate_sources
from torchmill.host.host import Host
from torchmill.host.provisioned import COMPILER

_CONDA = "conda"
_DEBIAN = "debian"
# From JetPack 7 on, which runs on Thor, boards use the CUDA of servers:
# https://docs.nvidia.com/jetson/jetpack/
_FIRST_JETPACK_WITH_SERVER_CUDA = 7
_TABLE = read_table_beside(__file__, "providers.toml")
# Arch -> the oldest glibc for py-rattler, the program by which packages of conda are fetched.
_RATTLER_GLIBC: dict[str, str] = _TABLE["rattler_glibc"]
_KEYRING_PACKAGES: dict[str, str] = _TABLE["keys"]  # by vendor: "debian", "ubuntu"


def archive_vendor(distribution: LinuxDistribution) -> str | None:
    """Return the vendor whose archive the apt of a distribution reads: "debian", "ubuntu".

    A derived distribution, such as Mint, reads the archive of the vendor from which it is derived.
    None for a distribution of another family.
    """
    for name in (distribution.id, *distribution.like):
        if name in _KEYRING_PACKAGES:
            return name
    return None


def trusted_archives(host: Host) -> tuple[str, ...] | None:
    """Return the vendors whose packages a host can verify; None if that is not known.

    A host that does not tell the keys of its apt is taken to have its own vendor's keys.
    """
    if host.packages.archives:
        return host.packages.archives
    if host.platform.distribution is None:
        return None
    vendor = archive_vendor(host.platform.distribution)
    return (vendor,) if vendor else ()


def provider_obstacle(source: ToolkitSource, host: Host) -> str:
    """Return a clause that says why a host cannot use a source; "" if nothing is known against it.

    Of several obstacles it is the most fundamental: a machine without glibc gains nothing from apt.
    """
    if host.system != "linux":
        return "it is for Linux"
    if has_other_libc(host):
        return f"its programs need glibc, and the C library of this machine is {libc_name(host)}"
    if has_own_cuda(host) and source.kind != COMPILER:
        return "its aarch64 is that of servers, and a Jetson needs NVIDIA's toolkit for its JetPack"
    if source.provider == _DEBIAN:
        obstacle = _apt_obstacle(source, host)
        if obstacle:
            return obstacle
    glibc = _oldest_glibc(source, host.arch)
    if glibc and host.platform.glibc and Version(host.platform.glibc) < Version(glibc):
        return f"it needs glibc {glibc}, and this machine has {host.platform.glibc}"
    return _isl_obstacle(source, host)


def _oldest_glibc(source: ToolkitSource, arch: str) -> str:
    """Return the oldest glibc with which a source can be used on an architecture; "" if any will do.

    Packages of conda need that of their programs, and that of py-rattler, which fetches them.
    """
    bounds = [source.glibc or ""]
    if source.provider == _CONDA:
        bounds.append(_RATTLER_GLIBC.get(arch, ""))
    known_bounds = [bound for bound in bounds if bound]
    return max(known_bounds, key=Version, default="")


def has_other_libc(host: Host) -> bool:
    """Tell whether the C library of a Linux host is known to be another than glibc."""
    if host.system != "linux" or host.platform.glibc is not None:
        return False
    return host.complete or _has_musl(host)


def libc_name(host: Host) -> str:
    """Return the name of the C library of a host that has no glibc."""
    return "musl" if _has_musl(host) else "not glibc (perhaps musl)"


def _has_musl(host: Host) -> bool:
    """Tell whether a host is known to have musl in place of glibc."""
    if host.platform.distribution is None:
        return False
    names = {host.platform.distribution.id, *host.platform.distribution.like}
    return not names.isdisjoint(distributions.WITH_MUSL)


def board_kind(host: Host) -> Literal["own-cuda", "server-cuda"] | None:
    """Return whether a Jetson needs the CUDA of its own JetPack; None for another machine.

    A Jetson of which the JetPack is not known is taken to need it.
    """
    if host.platform.distribution is None or host.platform.distribution.l4t is None:
        return None
    jetpack = host.platform.distribution.jetpack
    if jetpack is None or jetpack < _FIRST_JETPACK_WITH_SERVER_CUDA:
        return "own-cuda"
    return "server-cuda"


def has_own_cuda(host: Host) -> bool:
    """Tell whether a host is a Jetson whose GPU needs the CUDA of its own JetPack."""
    return board_kind(host) == "own-cuda"


def _isl_obstacle(source: ToolkitSource, host: Host) -> str:
    """Return why a host cannot run the compiler of a source; "" if nothing is known against it.

    The gcc of a distribution loads libisl of the system, whose version is part of its file name.
    """
    release = distributions.find_recorded_release(host.platform.distribution)
    if not source.isl or release is None or not release.isl or release.isl == source.isl:
        return ""
    return f"it needs libisl{source.isl}, and {release.name} has libisl{release.isl}"


def _apt_obstacle(source: ToolkitSource, host: Host) -> str:
    """Return why a host cannot take packages from an archive of Debian or Ubuntu; "" if it can."""
    if host.packages.managers and "apt" not in host.packages.managers:
        return "it needs apt-get and dpkg-deb, which this machine does not have"
    vendor, suite, _ = source.places[0].split("/")  # "debian/bookworm/non-free"
    trusted = trusted_archives(host)
    if trusted is None or vendor in trusted:
        return ""
    keyring = _KEYRING_PACKAGES[vendor]
    return f"{vendor.title()}'s {suite} cannot be checked without {keyring} (a package with keys)"


def usable_sources(
    facts: Facts, request: ToolkitRequest, host: Host
) -> tuple[dict[str, Sequence[ToolkitSource]], list[ProviderRefusal]]:
    """Return the sources that a host can use, and a refusal of each provider that has none.

    The sources are keyed by provider, in the order in which the providers are asked.
    """
    usable: dict[str, Sequence[ToolkitSource]] = {}
    refusals: list[ProviderRefusal] = []
    for provider in PROVIDERS:
        sources = candidate_sources(request, provider, facts.toolkit_sources)
        if isinstance(sources, ProviderRefusal):
            refusals.append(sources)
            continue
        fitting: list[ToolkitSource] = []
        obstacles: dict[str, None] = {}  # an ordered set: several sources often share an obstacle
        for source in sources:
            obstacle = provider_obstacle(source, host)
            if obstacle:
                obstacles[obstacle] = None
            else:
                fitting.append(source)
        if fitting:
            usable[provider] = fitting
        else:
            refusals.append(ProviderRefusal(provider, "; ".join(obstacles)))
    return usable, refusals

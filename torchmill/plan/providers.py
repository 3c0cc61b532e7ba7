"""Which providers of toolkits, libraries and compilers a machine can use, by what is known of it."""

from collections.abc import Sequence

from packaging.version import Version

from torchmill.config import distributions
from torchmill.config.facts_model import ToolkitSource
from torchmill.config.facts_reader import PROVIDERS
from torchmill.config.model import Facts, Host, LinuxDistribution
from torchmill.core.files import read_table_beside
from torchmill.fetch.toolkit.request import ProviderRefusal, ToolkitRequest, candidate_sources
from torchmill.host.provisioned import COMPILER

CONDA, DEBIAN = "conda", "debian"
_FIRST_JETPACK_WITH_SERVER_CUDA = (
    7  # https://docs.nvidia.com/jetson/jetpack/: on Thor, CUDA is that of servers
)
_TABLE = read_table_beside(__file__, "providers.toml")
RATTLER_GLIBC: dict[str, str] = _TABLE["rattler_glibc"]
_KEYS: dict[str, str] = _TABLE["keys"]


def archive_vendor(distribution: LinuxDistribution) -> str | None:
    """Return whose archive a distribution's apt reads and has the keys of: "debian", "ubuntu"; None for neither."""
    names = (distribution.id, *distribution.like)
    return next((name for name in names if name in _KEYS), None)


def trusted_archives(host: Host) -> tuple[str, ...] | None:
    """Return the vendors whose packages a host can check; None where that is not known."""
    if host.archives:
        return host.archives
    if host.distribution is None:
        return None
    vendor = archive_vendor(host.distribution)
    return (vendor,) if vendor else ()


def provider_obstacle(source: ToolkitSource, host: Host) -> str:
    """Return why a host cannot use what a source has, as a clause; "" where nothing that is known stands in the way."""
    if host.system != "linux":
        return "it is for Linux"
    if has_other_libc(host):
        return f"its programs need glibc, and the C library of this machine is {libc_name(host)}"
    if has_own_cuda(host) and source.kind != COMPILER:
        return "its aarch64 is that of servers, and a Jetson needs NVIDIA's toolkit for its JetPack"
    if source.provider == DEBIAN and (obstacle := _apt_obstacle(source, host)):
        return obstacle
    needed = source.glibc or (RATTLER_GLIBC.get(host.arch) if source.provider == CONDA else None)
    if needed and host.glibc and Version(host.glibc) < Version(needed):
        return f"it needs glibc {needed}, and this machine has {host.glibc}"
    return _isl_obstacle(source, host)


def has_other_libc(host: Host) -> bool:
    """Tell whether the C library of a Linux host is known not to be glibc."""
    return host.system == "linux" and host.glibc is None and (host.complete or _has_musl(host))


def libc_name(host: Host) -> str:
    """Return what the C library of a host is called that has another than glibc."""
    return "musl" if _has_musl(host) else "not glibc (perhaps musl)"


def _has_musl(host: Host) -> bool:
    names = {host.distribution.id, *host.distribution.like} if host.distribution else set()
    return not names.isdisjoint(distributions.WITH_MUSL)


def has_own_cuda(host: Host) -> bool:
    """Tell whether a host is a Jetson whose GPU needs the CUDA of its own JetPack."""
    if host.distribution is None or host.distribution.l4t is None:
        return False
    jetpack = host.distribution.jetpack
    return jetpack is None or jetpack < _FIRST_JETPACK_WITH_SERVER_CUDA


def _isl_obstacle(source: ToolkitSource, host: Host) -> str:
    """Return why a host cannot run a compiler of another release, which takes libisl from the system."""
    release = distributions.find_release(host.distribution)
    if not source.isl or release is None or release.isl in {"", source.isl}:
        return ""
    return f"it needs libisl{source.isl}, and {release.name} has libisl{release.isl}"


def _apt_obstacle(source: ToolkitSource, host: Host) -> str:
    """Return why a host cannot take packages out of Debian's or Ubuntu's archive."""
    if host.managers and "apt" not in host.managers:
        return "it needs apt-get and dpkg-deb, which this machine does not have"
    vendor, suite, _ = source.where[0].split("/")
    trusted = trusted_archives(host)
    if trusted is None or vendor in trusted:
        return ""
    return f"{vendor.title()}'s {suite} cannot be checked without {_KEYS[vendor]} (a package with keys)"


def usable_sources(
    facts: Facts, request: ToolkitRequest, host: Host
) -> tuple[dict[str, Sequence[ToolkitSource]], list[ProviderRefusal]]:
    """Return the sources that a host can use, by their providers in the order in which they are asked.

    The second value has a refusal for each provider that has no such source.
    """
    usable: dict[str, Sequence[ToolkitSource]] = {}
    refusals: list[ProviderRefusal] = []
    for provider in PROVIDERS:
        sources = candidate_sources(request, provider, facts.toolkit_sources)
        if isinstance(sources, ProviderRefusal):
            refusals.append(sources)
            continue
        obstacles = {source: provider_obstacle(source, host) for source in sources}
        if fitting := [source for source, obstacle in obstacles.items() if not obstacle]:
            usable[provider] = fitting
        else:
            refusals.append(ProviderRefusal(provider, "; ".join(dict.fromkeys(obstacles.values()))))
    return usable, refusals

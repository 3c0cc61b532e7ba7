"""Check the C library of a Linux machine: which systems can install a wheel built on it."""

from collections.abc import Iterator

from packaging.version import Version

from torchmill.host.host import Host
from torchmill.plan.doctor.container_cures import glibc_cure
from torchmill.plan.doctor.finding import CheckContext, Finding, absence_text
from torchmill.plan.providers import has_other_libc, libc_name
from torchmill.plan.published import official_glibc
from torchmill.plan.wheel_name import promised_glibc

_SUBJECT = "glibc"


def check_c_library(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the C library of a Linux host."""
    if context.host.system != "linux":
        return
    official = official_glibc(context.cell.release.upstream.wheels, context.build.arch)
    needed = (
        f"{official}, like the official wheel" if official else "none: no official wheel exists"
    )
    if context.host.platform.glibc is None:
        yield _without_glibc(context, needed)
    else:
        yield _tag_finding(context, context.host.platform.glibc, official, needed)


def _tag_finding(context: CheckContext, glibc: str, official: str | None, needed: str) -> Finding:
    """Return the finding on which systems can install the wheel, by its tag and a host's glibc.

    `official` is the oldest glibc with which pip installs the official wheel; None if there is no
    official wheel.
    """
    plan = context.plan
    promised = promised_glibc(plan.wheel.platform_tag, context.build.arch)
    if promised is None:
        because = f"the wheel is tagged {plan.wheel.platform_tag}: it is for systems like this one"
        return Finding(_SUBJECT, glibc, needed, "ok", because=because)
    if Version(promised) < Version(glibc):
        cure = f"build on a system with glibc {promised}, or leave --plat out"
        because = (
            f"--plat {plan.wheel.platform_tag}: "
            "the wheel is refused if the code that is compiled here needs a newer glibc"
        )
        return Finding(
            _SUBJECT, glibc, f"{promised}, as its tag", "warning", cure=cure, because=because
        )
    or_older = ", or older if its symbols allow that" if plan.wheel.tag_is_upper_bound else ""
    because = (
        f"the wheel is tagged {plan.wheel.platform_tag}{or_older}: "
        "pip installs it on systems with that glibc or a newer one"
    )
    if official is not None and Version(official) < Version(glibc):
        because += (
            f"; to make a wheel that runs as widely as the official one, "
            f"build on a system with glibc {official}"
        )
    # "ok", whatever the tag: it does not matter to people who use the wheel on this machine.
    return Finding(_SUBJECT, glibc, "any, for a wheel used here", "ok", because=because)


def _without_glibc(context: CheckContext, needed: str) -> Finding:
    """Return the finding on the C library of a host that names no glibc."""
    if not has_other_libc(context.host):
        return Finding(_SUBJECT, absence_text(context.host), needed, "unknown")
    state = libc_name(context.host)
    cure = glibc_cure(context)
    because = (
        f"the C library here is {state}: PyTorch publishes no wheel for it, and what is built is "
        f"tagged {context.plan.wheel.platform_tag}, which package indexes do not take"
    )
    if not context.requirement("mkl-static"):
        return Finding(_SUBJECT, state, needed, "warning", cure=cure, because=because)
    because += "; the MKL that this build links is on PyPI for glibc alone"
    return Finding(_SUBJECT, state, needed, "failure", cure=cure, because=because)


def check_host_library(host: Host) -> Iterator[Finding]:
    """Yield a finding on a host whose C library is not glibc, for builds of any kind."""
    if has_other_libc(host):
        because = "NVIDIA's toolkits, PyPI's MKL and PyTorch's own wheels are for glibc alone"
        cure = "build on a system with glibc, such as an image of Debian or AlmaLinux"
        yield Finding(_SUBJECT, libc_name(host), "any", "warning", cure=cure, because=because)

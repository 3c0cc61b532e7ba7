"""Compare a build with the official wheel: what it lacks, and whether that wheel would do."""

from collections.abc import Iterator

from torchmill.plan.doctor.finding import CheckContext, Finding


def check_shortfalls(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding for each part of the official wheel that the planned wheel will lack."""
    for shortfall in context.plan.official.shortfalls:
        yield Finding(
            shortfall.part,
            "official wheel only",
            "",
            "warning",
            cure=shortfall.cure,
            because=shortfall.cost,
        )


def check_published(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding on the published wheel that comes nearest to the build, if there is any."""
    wheel = context.plan.official.published
    if wheel:
        because = f"{wheel}; no index was asked"
        yield Finding("official wheel", wheel.version, "none, to build", "ok", because=because)

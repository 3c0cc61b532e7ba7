"""Compare a build with the official wheel: its shortfalls, and whether that wheel would do."""

from collections.abc import Iterator

from torchmill.plan.doctor.finding import CheckContext, Finding


def check_shortfalls(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding for each thing that the official wheel has and this one will not."""
    for lack in context.plan.official.shortfalls:
        yield Finding(lack.part, "official wheel only", "", "warning", lack.cure, lack.cost)


def check_published(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding if there is a published wheel, whether it would do or not."""
    wheel = context.plan.official.published
    if wheel:
        because = f"{wheel}; no index was asked"
        yield Finding("official wheel", wheel.version, "none, to build", "ok", because=because)

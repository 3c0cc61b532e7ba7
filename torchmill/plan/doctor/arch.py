"""Check that a build is for the architecture of its host."""

from collections.abc import Iterator

from torchmill.plan.doctor.finding import CheckContext, Finding


def check_arch(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding if the build is for another kind of machine than its host."""
    arch = context.build.arch
    # A crossed build is for another machine than its host on purpose.
    if context.host.arch != arch and not context.host.crosses:
        cure = (
            f"build it on {arch} or in a container of it, "
            "or examine such a machine with --host FILE"
        )
        because = "a build is for the machine that it runs on"
        yield Finding("machine", context.host.arch, arch, "failure", cure=cure, because=because)

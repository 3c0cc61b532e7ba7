"""Say how many known vulnerabilities the wheel has, and how many a patch fixes."""

from collections.abc import Iterator

from torchmill.plan import exposure
from torchmill.plan.doctor.finding import CheckContext, Finding

VULNERABILITIES = "vulnerabilities"  # the subject


def check_vulnerabilities(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the known vulnerabilities of a build, if its package has any.

    It is no warning: to build an old release is what the user asked for.
    """
    exposures = context.plan.vulnerabilities
    read = context.facts.vulnerabilities.read
    summary = exposure.summarize(exposures, read)
    if not summary:
        return
    count = sum(vulnerability.state == "affected" for vulnerability in exposures)
    command = f"invoke plan {context.plan.identifier} --tag={context.plan.release.tag} --all"
    yield Finding(
        VULNERABILITIES,
        f"{count} known" if count else "none known",
        "none, to build",
        "ok",
        because=f"{summary}: `{command}` lists them",
    )

"""Check the source of a build: whether it is fetched, and which switches its build files name."""

import re
from collections.abc import Iterator

from torchmill.config.release_lookup import selecting_tag
from torchmill.core.errors import did_you_mean
from torchmill.plan import cell_lookup
from torchmill.plan.doctor.finding import CheckContext, Finding, Verdict

SOURCE = "source"  # the subject of the finding on whether the source is fetched
SWITCH = re.compile(r"\b(?:USE|BUILD|WITH|FORCE|ENABLE)_[A-Z0-9_]+\b")


def check_source(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the source of a build."""
    yield source_finding(context)
    yield from _check_suite(context)
    yield from _check_switches(context)


def source_finding(context: CheckContext) -> Finding:
    """Return the finding on whether the source is fetched, and unchanged since then."""
    source = context.source
    tag = context.cell.release.tag
    if source is None:
        cure = cell_lookup.fetch_command(context.facts, context.cell)
        because = "no session starts before it is fetched"
        return Finding(SOURCE, "not fetched", tag, "warning", cure=cure, because=because)
    if source.refusal:
        state = f"{source.tag}, changed after it was fetched"
        cure = f"{cell_lookup.fetch_command(context.facts, context.cell)} --discard"
        return Finding(SOURCE, state, tag, "failure", cure=cure, because=source.refusal)
    state = f"{source.tag} from {source.provider}, {source.title}"
    verdict: Verdict = "warning" if source.contradiction else "ok"
    return Finding(SOURCE, state, tag, verdict, because=source.unproven)


def _check_suite(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on whether this machine has the suite of Debian that a source is made for.

    Debian removes bundled libraries from its sources. Other source packages fill some submodules,
    which the facts name by suite. All other libraries are linked from the system, in the versions
    of that suite.
    """
    if context.source is None or context.source.provider != "debian":
        return
    package = context.package
    release = context.cell.release
    origin = package.source.debian.sources.get(release.version, "")  # "bookworm/pytorch"
    suite, _, _ = origin.partition("/")
    if suite not in package.source.debian.submodules:
        return
    host_suite = context.host.programs.versions.get("codename")
    because = (
        "the source links the libraries of that Debian, and other systems have other versions of "
        "them"
    )
    if host_suite == suite:
        yield Finding("Debian", host_suite, suite, "ok", because=because)
        return
    verdict: Verdict = "unknown" if host_suite is None else "failure"
    tag = selecting_tag(context.facts, release)
    image = f"invoke image --kind builder --purpose debian --tag {tag} --build"
    # A session with the arch in its name builds in a container, of that image.
    session = f"nox -s {context.build.identifier('')}"
    state = host_suite or "not described"
    yield Finding("Debian", state, suite, verdict, cure=f"{image}; {session}", because=because)


def doubtful_switches(context: CheckContext) -> set[str]:
    """Return the switches of the user's, such as USE_…, that no rule of the package sets.

    Switches of any rule are spelled right; some of them reach a build by other ways than the files
    that name switches.
    """
    set_by_rules: set[str] = set()
    for rule in context.package.rules:
        set_by_rules.update(rule.set)
    switches = {name for name in context.plan.variables if SWITCH.fullmatch(name)}
    return switches - set_by_rules


def _check_switches(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding for each switch of the user's, such as USE_…, that no build file names."""
    source_switches = context.source_switches
    if not source_switches:
        return  # of a source that names no switches at all, nothing can be said
    for name in sorted(doubtful_switches(context) - source_switches):
        needed = "one that the source's build files name"
        because = f"it would change nothing{did_you_mean(name, source_switches)}"
        yield Finding("switch", name, needed, "warning", because=because)

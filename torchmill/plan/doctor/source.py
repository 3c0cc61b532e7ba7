"""Check the source of a build: whether it is fetched, and which switches it reads."""

import re
from collections.abc import Iterator
from pathlib import Path

from torchmill.config.release_lookup import selecting_tag
from torchmill.core.errors import did_you_mean
from torchmill.plan import cell_lookup
from torchmill.plan.doctor.finding import CheckContext, Finding, Verdict

SOURCE = "source"  # the subject of the finding on whether it is fetched
_SWITCH = re.compile(r"\b(?:USE|BUILD|WITH|FORCE|ENABLE)_[A-Z0-9_]+\b")
# Files that read switches. The first ones have most of them, so that the trees, which take long to
# walk, are searched only for switches that are rare.
_BUILD_FILES = (
    "setup.py",
    "CMakeLists.txt",
    "cmake/*.cmake",
    "tools/**/*.py",
    "**/CMakeLists.txt",
    "**/*.cmake",
)


def check_source(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on the source of a build."""
    yield source_finding(context)
    yield from _check_suite(context)
    yield from _check_switches(context)


def source_finding(context: CheckContext) -> Finding:
    """Return the finding on whether the source is fetched, which a session waits for."""
    source = context.source
    tag = context.cell.release.tag
    if source is None:
        cure = cell_lookup.fetch_command(context.facts, context.cell)
        because = "no session starts before it is fetched"
        return Finding(SOURCE, "not fetched", tag, "warning", cure, because)
    if source.refusal:
        state = f"{source.tag}, changed after it was fetched"
        cure = f"{cell_lookup.fetch_command(context.facts, context.cell)} --discard"
        return Finding(SOURCE, state, tag, "failure", cure, source.refusal)
    state = f"{source.tag} from {source.provider}, {source.title}"
    return Finding(SOURCE, state, tag, "ok", because=source.unproven)


def _check_suite(context: CheckContext) -> Iterator[Finding]:
    """Yield the finding on the Debian whose libraries replace those that its source leaves out."""
    package = context.package
    release = context.cell.release
    suite = package.debian.get(release.version, "").partition("/")[0]  # "bookworm/non-free"
    if context.source is None or context.source.provider != "debian":
        return
    if suite not in package.debian_fill:
        return
    host_suite = context.host.programs.versions.get("codename")
    verdict: Verdict = "unknown"
    if host_suite is not None:
        verdict = "ok" if host_suite == suite else "failure"
    tag = selecting_tag(context.facts, release)
    image = f"invoke image --kind builder --purpose debian --tag {tag} --build"
    yield Finding(
        "Debian",
        host_suite or "not described",
        suite,
        verdict,
        f"{image}; nox -s {context.build.identifier('')}",
        "the source links the libraries of that Debian, "
        "and other systems have other versions of them",
    )


def _check_switches(context: CheckContext) -> Iterator[Finding]:
    """Yield a finding for each switch of the user's, USE_… or BUILD_…, that no build file names."""
    if context.source is None:
        return
    set_by_rules: set[str] = set()
    for rule in context.package.rules:
        set_by_rules.update(rule.set)
    switches = {name for name in context.plan.variables if _SWITCH.fullmatch(name)} - set_by_rules
    read_switches: set[str] = set()
    files = _build_files(context.source.path)
    while not switches <= read_switches:
        file = next(files, None)
        if file is None:
            break
        read_switches.update(_SWITCH.findall(file.read_text("utf-8", "replace")))
    if not read_switches:
        return  # of a source that names no switches at all, nothing can be said
    for name in sorted(switches - read_switches):
        needed = "one that the source's build files name"
        because = f"it would change nothing{did_you_mean(name, read_switches)}"
        yield Finding("switch", name, needed, "warning", because=because)


def _build_files(folder: Path) -> Iterator[Path]:
    for pattern in _BUILD_FILES:
        for path in folder.glob(pattern):
            if path.is_file():
                yield path

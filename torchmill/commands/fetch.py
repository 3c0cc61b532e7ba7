"""`invoke fetch`: fetch a release and its submodules, verify the commit, select the release."""

from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import partner_releases, releases_of
from torchmill.core import console
from torchmill.core.errors import ConfigError, NetworkError, SourceError
from torchmill.core.exits import print_now
from torchmill.core.paths import Layout
from torchmill.fetch.source import fetcher
from torchmill.fetch.source.request import source_requests
from torchmill.fetch.source.source import Source


def fetch_release(
    facts: Facts,
    layout: Layout,
    *,
    tag: str = "",
    package: list[str] | None = None,
    all_: bool = False,
    ref: str = "",
    mirror: str = "",
    from_: str = "",
    sha256: str = "",
    discard: bool = False,
) -> str:
    """Fetch the sources of a release and select it; return a sentence on the selected release.

    `tag` names the release of torch, "" the selected or else the newest; `package` are the packages
    to fetch for it, by default torch alone. A description of each source is printed as soon as it
    is fetched. If a package cannot be fetched, the others are fetched nevertheless, and SourceError
    or NetworkError is raised at the end; the release is selected then, too, unless torch is what
    failed.
    """
    if all_ and package:
        raise ConfigError(
            "--all fetches every package: leave out --package, or --all",
            code="contradictory-options",
        )
    release = selection.selected_or_newest(facts, layout, tag)
    names = package or []
    if all_:
        names = [partner.package for partner in releases_of(facts, release)]
    requests = source_requests(
        facts,
        partner_releases(facts, release, names),
        ref=ref,
        mirror=mirror,
        origin=from_,
        sha256=sha256,
        discard=discard,
    )
    failures: dict[str, SourceError | NetworkError] = {}
    with console.show_progress() as progress:
        for request in requests:
            try:
                source = fetcher.fetch_source(request, layout, progress)
            except (SourceError, NetworkError) as error:
                # Debian does not have every package. With --all, those that it lacks are left out.
                if all_ and error.code == "release-not-in-debian" and request.package.after:
                    print_now(f"left out: {error}")
                else:
                    failures[request.package.name] = error
            else:
                print_now(describe_source(source))
    if release.package not in failures:
        selection.select_release(layout, release)
    if failures:
        first = next(iter(failures.values()))
        raise type(first)("; ".join(map(str, failures.values())), code=first.code)
    selected = selection.selected_tag(layout)
    overridden = ""
    if selected != release.tag:
        overridden = f", but TORCHMILL_TAG is {selected}, which overrides it: unset it"
    return (
        f"selected {release.package} {release.tag}{overridden}: "
        "`nox -l` lists what this machine can build of it"
    )


def describe_source(source: Source) -> str:
    """Return two lines on a fetched source: its commit, and what proves that it is this one."""
    submodules = ""
    if source.submodules:
        submodules = f", {len(source.submodules)} submodules"
    if source.commit:
        trust = "the recorded commit" if source.verified else "not known to be the release's"
        identity = f"{source.commit} ({trust}){submodules}"
    else:
        claim = ""
        if source.declared:
            claim = f"; it is said to be {source.declared}"
        if source.verified:
            claim += ", the archive that is recorded for the release"
        identity = (
            f"not proven to be any commit ({source.unproven}{claim}), "
            f"contents {source.contents}{submodules}"
        )
    if source.contradiction:
        identity += f"; {source.contradiction}"
    return f"{source.package} {source.tag}: {identity}\n  from {source.origin} in {source.path}"

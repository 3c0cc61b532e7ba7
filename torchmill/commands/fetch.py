"""`invoke fetch`: fetch a release and its submodules, verify the commit, and select the release."""

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


def fetch_release(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    tag: str = "",
    package: list[str] | None = None,
    all_: bool = False,
    ref: str = "",
    mirror: str = "",
    from_: str = "",
    sha256: str = "",
    discard: bool = False,
) -> str:
    """Fetch a release, verify its commit, and select it."""
    if all_ and package:
        raise ConfigError(
            "--all fetches every package: leave out --package, or --all",
            code="contradictory-options",
        )
    release = selection.selected_or_newest(facts, layout, tag)
    names = [one.package for one in releases_of(facts, release)] if all_ else package or ()
    missing: dict[str, SourceError | NetworkError] = {}
    with console.show_progress() as progress:
        releases = partner_releases(facts, release, names)
        for request in source_requests(
            facts, releases, ref=ref, mirror=mirror, origin=from_, sha256=sha256, discard=discard
        ):
            try:
                print_now(describe_source(fetcher.fetch_source(request, layout, progress)))
            except (SourceError, NetworkError) as error:  # told once the others are there
                if all_ and error.code == "release-not-in-debian" and request.package.after:
                    print_now(f"left out: {error}")
                else:
                    missing[request.package.name] = error
    if release.package not in missing:
        selection.select_release(layout, release)
    if missing:
        first = next(iter(missing.values()))
        raise type(first)("; ".join(map(str, missing.values())), code=first.code)
    own = selection.selected_tag(layout)
    before = (
        f", but TORCHMILL_TAG is {own}, which overrides it: unset it" if own != release.tag else ""
    )
    return f"selected {release.package} {release.tag}{before}: `nox -l` lists what this machine can build of it"


def describe_source(source: Source) -> str:
    """Return two lines on a fetched source: what it is, and how far it can be trusted."""
    submodules = f", {len(source.submodules)} submodules" if source.submodules else ""
    if source.commit:
        trust = (
            "the recorded commit" if source.verified else "no commit is recorded to compare it with"
        )
        known = f"{source.commit} ({trust}){submodules}"
    else:
        named = f"; it is said to be {source.declared}" if source.declared else ""
        recorded = ", the archive that is recorded for the release" if source.verified else ""
        known = (
            f"not proven to be any commit ({source.unproven}{named}{recorded}), "
            f"contents {source.contents}{submodules}"
        )
    return f"{source.package} {source.tag}: {known}\n  from {source.origin} in {source.path}"

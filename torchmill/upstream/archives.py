"""What a package's own file declares against the source archives that the index has of it."""

from collections.abc import Iterable, Iterator

from packaging.version import Version

from torchmill.model import Edition, Package
from torchmill.upstream.compare import Difference
from torchmill.upstream.index import File, archives


def differences(package: Package, files: Iterable[File]) -> Iterator[Difference]:
    """Yield what the index says otherwise; newer versions too, which no [[release]] speaks of."""
    found = dict(archives(files, package.pypi or package.name))
    for edition in package.editions:
        file = found.get(Version(edition.version))
        for name, text in _of(edition, file):
            yield Difference(package.name, edition.version, name, text, None)
    newest = max(Version(one.version) for one in package.editions)
    for version, file in sorted(found.items()):
        if version > newest and not file.yanked and not version.is_prerelease:
            text = "PyPI has it, no [[release]] speaks of it"
            yield Difference(package.name, str(version), f"release {version}", text, None)


def _of(edition: Edition, file: File | None) -> Iterator[tuple[str, str]]:
    if file is None:
        yield "absent", "PyPI has no archive of it"
        return
    if edition.sha256 is not None and file.sha256 != edition.sha256:
        yield "sha256", f"PyPI says {file.sha256}, the file {edition.sha256}"
    day = (file.uploaded or "").partition("T")[0]
    if edition.date is not None and day and day != edition.date:
        yield "date", f"PyPI got it on {day}, the file says {edition.date}"

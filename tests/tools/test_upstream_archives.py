"""Releases that a package declares itself are compared with the archives of an index."""

from dataclasses import replace
from pathlib import Path

from tests.support.declared import declared
from tools.upstream_check import archive_differences
from torchmill.fetch.package_index import IndexFile


def archive(version: str, sha256: str = "abc", uploaded: str = "2023-10-06T08:49:07Z") -> IndexFile:
    name = f"tiny_scatter-{version}.tar.gz"
    return IndexFile(name, f"https://index/{name}", None, uploaded, yanked=False, sha256=sha256)


def test_only_differences_are_reported(configs: Path) -> None:
    package = declared(configs).packages["tiny-scatter"]
    package = replace(
        package, editions=tuple(replace(entry, date="2023-10-06") for entry in package.editions)
    )
    same = [
        archive("1.0"),
        archive("1.10.0"),
        archive("0.9", "d"),
        replace(archive("1.11"), yanked=True),
    ]
    same += [archive("2.0rc1"), replace(archive("3"), name="tiny_scatter-3-py3-none-any.whl")]
    assert list(archive_differences(package, same)) == []
    other = [archive("1.10", "def", "2023-10-07T08:49:07Z"), archive("1.11"), archive("1.12")]
    assert [
        (entry.version, entry.name, entry.text) for entry in archive_differences(package, other)
    ] == [
        ("1.0", "absent", "PyPI has no archive of it"),
        ("1.10", "sha256", "PyPI says def, the file abc"),
        ("1.10", "date", "PyPI got it on 2023-10-07, the file says 2023-10-06"),
        ("1.11", "release 1.11", "it is on PyPI, but has no [[release]]"),
        ("1.12", "release 1.12", "it is on PyPI, but has no [[release]]"),
    ]

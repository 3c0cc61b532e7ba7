"""The source of any package: where it is."""

import pytest

from tests.support.index_server import Index, serving
from torchmill.fetch.unpacked_package import locate_package


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("spam", "spam-1.0.tar.gz"),
        ("spam==1.*", "spam-1.0.tar.gz"),
        ("spam>=1.0", "spam-1.0.tar.gz"),
        ("spam==1.1", "spam-1.1.tar.gz"),
        ("spam===1.1", "spam-1.1.tar.gz"),
    ],
)
def test_a_withdrawn_release_counts_only_if_it_alone_is_named(
    text: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index()
    index.add("spam-1.0.tar.gz", b"x")
    index.add("spam-1.1.tar.gz", b"x", yanked="broken")
    with serving(index):
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        located = locate_package(text)
    assert located.file is not None
    assert located.file.name == name

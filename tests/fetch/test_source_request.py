"""What is asked of a provider, for one package or several."""

from tests.support.refusals import refused
from torchmill.config import matrix
from torchmill.config.model import Facts
from torchmill.fetch.source.request import source_requests


def test_a_release_is_asked_for_alone_or_with_its_partners(known: Facts) -> None:
    release = matrix.find_release(known, "base", "v1.0.0")
    alone = source_requests(known, release, (), ref="abc", mirror="file:///m", origin="")
    assert [(one.what, one.mirror, one.origin) for one in alone] == [("base abc", "file:///m", None)]
    both = source_requests(known, release, ["base", "vision"], ref="", mirror="", origin="debian")
    assert [(one.what, one.ref, one.origin) for one in both] == [
        ("base v1.0.0", None, "debian"),
        ("addon v0.1.0", None, "debian"),
    ]


def test_a_commit_is_of_one_package(known: Facts) -> None:
    release = matrix.find_release(known, "base", "v1.0.0")
    with refused("ref-of-several"):
        source_requests(known, release, ["base", "addon"], ref="abc", mirror="", origin="")

"""Names of members, and what must not be unpacked."""

import stat
from zipfile import ZipInfo

import pytest

from torchmill.wheel.pack import zip_reader


@pytest.mark.parametrize("name", ["../x", "a/../x", "a/..", "/x", "", "c:/x", "a\\..\\x", "a/x\0.so"])
def test_what_leads_out_is_found(name: str) -> None:
    assert zip_reader.leaves_folder(name)


@pytest.mark.parametrize("name", ["x", "a/x..y", "a/..x", ".x", "a/b:c", "a/"])
def test_what_stays_is_left(name: str) -> None:
    assert not zip_reader.leaves_folder(name)


def test_a_zip_is_asked_for_the_name_that_it_holds() -> None:
    assert zip_reader.unsafe_member(ZipInfo("a/x")) == ""
    assert zip_reader.unsafe_member(ZipInfo("a/x\0/../y")) == "the member 'a/x\\x00/../y' leaves the wheel"
    link = ZipInfo("a/x")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert zip_reader.unsafe_member(link) == "the member 'a/x' is a link"

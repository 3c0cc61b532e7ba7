"""Versions in labels of wheels."""

import pytest

from torchmill.config.facts import Facts
from torchmill.config.versions import cuda_label, labelled_cuda


@pytest.mark.parametrize(
    ("label", "version"),
    [
        ("cu75", "7.5"),
        ("cu92", "9.2"),
        ("cu100", "10.0"),
        ("cu118", "11.8"),
        ("cu128", "12.8"),
        ("cu130", "13.0"),
        ("cu9", "9"),
        ("cu12", "12"),
        ("cu", ""),
        ("cu1234", ""),
        ("cpu", ""),
        ("", ""),
    ],
)
def test_a_label_names_a_version_of_cuda(label: str, version: str) -> None:
    assert labelled_cuda(label) == version


def test_labels_of_all_toolkits_are_read(shipped: Facts) -> None:
    for toolkit in shipped.toolkits:
        assert cuda_label(toolkit.version) == toolkit.variant
        assert labelled_cuda(toolkit.variant) == toolkit.version

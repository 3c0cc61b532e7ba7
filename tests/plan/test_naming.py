"""How wheels are called."""

from dataclasses import replace

import pytest

from torchmill.config.model import Build, Facts
from torchmill.plan import wheel_name


@pytest.mark.parametrize(
    ("python", "tags"),
    [("3.7", "cp37-cp37m"), ("3.10", "cp310-cp310"), ("3.13t", "cp313-cp313t")],
)
def test_python_tags(python: str, tags: str) -> None:
    assert wheel_name.python_tag(python) == tags


def test_a_wheel_is_called_as_its_package_is_normalised(known: Facts) -> None:
    package = replace(known.packages["addon"], name="torch-Scatter.extra")
    release = known.releases["addon"][0]
    build = Build("addon", "vision", "3.10", "cu118", "x86_64", "11.8")
    named = wheel_name.wheel_file_name(package, release, build, "2.1.2+cu118", "linux_x86_64")
    assert named == "torch_scatter_extra-2.1.2+cu118-cp310-cp310-linux_x86_64.whl"

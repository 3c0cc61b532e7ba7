"""The libraries that only some commands need: the table, the error without them, what installs them."""

import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.commands import ROOT
from tests.support.refusals import refused
from tools.requirements_hook import OPTIONAL_LIBRARIES, read_extras, read_requirements
from torchmill.core import optional_libraries
from torchmill.core.optional_libraries import find_library, installed_version, require_library

TABLE = (ROOT / OPTIONAL_LIBRARIES).read_text("utf-8")
NAMES = list(tomllib.loads(TABLE))


def test_a_library_that_is_installed_can_be_imported() -> None:
    with require_library("matplotlib"):
        from matplotlib import __version__ as imported
    assert imported == version("matplotlib")


@pytest.mark.parametrize(
    ("installed", "command"),
    [(False, "pip install 'boto3>=1.36'"), (True, "pip install 'torchmill[s3]'")],
)
def test_the_error_names_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, installed: bool, command: str
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.setattr(optional_libraries, "installed_version", lambda _: "")
    monkeypatch.setattr(optional_libraries, "IS_INSTALLED", installed)
    with refused("boto3-missing") as caught, require_library("boto3"):
        import boto3  # noqa: F401
    assert str(caught.value).startswith(
        "uploading to a bucket needs boto3>=1.36, and it is not installed: run `"
    )
    assert command in str(caught.value)


def test_a_library_that_is_installed_and_broken_is_not_called_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optional_libraries, "installed_version", lambda _: "1.40.0")
    with refused("boto3-missing") as caught, require_library("boto3"):
        raise ImportError("No module named 'botocore'")
    assert "1.40.0 cannot be imported (No module named 'botocore')" in str(caught.value)


@pytest.mark.parametrize("wrong", ["1.35.99", "1.36rc1"])
def test_a_library_that_is_too_old_is_refused_before_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setattr(optional_libraries, "installed_version", lambda _: wrong)
    with refused("boto3-missing") as caught, require_library("boto3"):
        pytest.fail("it must not be imported")
    assert f"needs boto3>=1.36, and {wrong} is installed: run `" in str(caught.value)


def test_a_library_that_is_too_new_is_refused_as_well() -> None:
    assert not find_library("py-rattler").allows("0.29.0")
    assert find_library("py-rattler").allows("0.28.3")


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed_version("pytest") == pytest.__version__
    assert installed_version("torchmill-of-nobody") == ""


@pytest.mark.parametrize("name", NAMES)
def test_the_requirement_is_of_that_name(name: str) -> None:
    assert canonicalize_name(Requirement(find_library(name).requirement).name) == name


def test_the_tests_run_with_the_versions_of_the_table() -> None:
    """The other files with requirements name these libraries, too, and must not differ."""
    bounds = {}
    for file in ("requirements.txt", "requirements-dev.txt"):
        for line in read_requirements((ROOT / file).read_text("utf-8")):
            requirement = Requirement(line)
            bounds[canonicalize_name(requirement.name)] = requirement.specifier
    for name in NAMES:
        assert (
            bounds[canonicalize_name(name)] == Requirement(find_library(name).requirement).specifier
        )


def test_each_extra_has_its_libraries() -> None:
    extras = read_extras(TABLE)
    assert sorted(extras) == ["conda", "index", "report", "s3", "sign", "variants"]
    assert sorted(Requirement(line).name for line in extras["conda"]) == [
        "py-rattler",
        "py-rattler-build",
    ]


def test_the_table_names_every_library_that_is_required_in_the_code() -> None:
    """A misspelt name would be a KeyError, where somebody waits for the error that helps."""
    for folder in ("torchmill", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            for part in path.read_text("utf-8").split('require_library("')[1:]:
                assert part.partition('"')[0] in NAMES, Path(path)

"""The libraries that only some commands need: what installs them, and the error without them.

They are listed in optional_libraries.toml. A wheel of torchmill has an extra for each group of
them.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchmill.core.errors import HostError
from torchmill.core.package_data import read_table_beside
from torchmill.core.paths import IS_INSTALLED
from torchmill.core.programs import install_command


@dataclass(frozen=True, slots=True)
class OptionalLibrary:
    """A library that only some commands need."""

    requirement: str  # with the bounds of the version: "boto3>=1.36"
    extra: str  # the extra of torchmill's wheel that installs the library: "s3"
    use: str  # the work that needs the library: "uploading to a bucket"
    code: str  # of the error if the library is missing, or its version is out of bounds

    @property
    def pip_requirement(self) -> str:
        """Return what pip is asked to install: the library, or an installed torchmill's extra."""
        return f"torchmill[{self.extra}]" if IS_INSTALLED else self.requirement

    def allows(self, version: str) -> bool:
        """Tell whether a version of the library is within the bounds of its requirement."""
        from packaging.requirements import Requirement

        return Requirement(self.requirement).specifier.contains(version, prereleases=True)

    def error(self, state: str) -> HostError:
        """Return the error for the library's `state` ("it is not installed"), with the cure."""
        command = install_command([self.pip_requirement], Path(sys.executable))
        return HostError(
            f"{self.use} needs {self.requirement}, and {state}: run `{command}`", code=self.code
        )


def find_library(name: str) -> OptionalLibrary:
    """Return the library with a name on the package index. Raises KeyError for any other name."""
    return OptionalLibrary(**read_table_beside(__file__, "optional_libraries.toml")[name])


@contextlib.contextmanager
def require_library(name: str) -> Iterator[None]:
    """Raise HostError if the block cannot import a library, or its version is out of bounds.

    Any ImportError of the block counts, because the library may lack something that it imports.
    """
    library = find_library(name)
    version = installed_version(name)
    if version and not library.allows(version):
        raise library.error(f"{version} is installed")
    try:
        yield
    except ImportError as error:
        state = f"{version} cannot be imported ({error})" if version else "it is not installed"
        raise library.error(state) from None


def installed_version(name: str) -> str:
    """Return the version of an installed distribution, "" if it is not installed."""
    # Imported here, because it takes long to load.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return ""

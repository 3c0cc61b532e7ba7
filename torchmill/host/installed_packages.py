"""Packages that are installed in an environment, by the metadata that installers leave there.

https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

import re
from dataclasses import dataclass
from pathlib import Path

from torchmill.core.lenient_paths import read_text

# Ends the name of the folder that records an installed package: "torch-2.4.0.dist-info".
_DIST_INFO = ".dist-info"
_TAG = re.compile(r"^Tag: (.+)$", re.MULTILINE)
# The line of torch/version.py that names the toolkit: "cuda: Optional[str] = '11.8'". A build
# without CUDA has None.
_CUDA_LINE = re.compile(r"^cuda\b.*= (?:None|'([\d.]+)')$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EnvironmentPackage:
    """A package in a folder of packages, such as site-packages."""

    dist_info: Path  # the folder of its metadata: ".../site-packages/torch-2.4.0.dist-info"
    tags: tuple[str, ...] = ()  # of the wheel that was installed: "cp310-cp310-linux_x86_64"
    # The toolkit that its version module names, "12.1"; "" for a build without CUDA; None if the
    # module does not tell.
    cuda: str | None = None

    @property
    def version(self) -> str:
        """Return the version as the metadata folder has it, which may be no valid version."""
        return self.dist_info.name.removesuffix(_DIST_INFO).partition("-")[2]


def find_installed(name: str, folder: Path) -> tuple[EnvironmentPackage, ...]:
    """Return every installation of a package in an environment, in the order of their paths.

    `name` is both that of the package's folder of modules and that in its metadata: "torch".
    `folder` is the environment, or a folder of packages such as site-packages. An editable
    installation, whose code is in another tree, is left out.
    """
    # "site-packages", and Debian's "dist-packages"; on Windows, lib has no folder for the Python.
    package_folders = [folder, *folder.glob("lib/python*/*-packages")]
    package_folders += folder.glob("lib/site-packages")
    dist_infos: set[Path] = set()
    for package_folder in package_folders:
        # Without a folder of modules, it is an "editable" install: the code is in another tree.
        if (package_folder / name).is_dir():
            # Resolved, because a folder of packages may be a link to another: lib64 to lib.
            for dist_info in package_folder.glob(f"{name}-*{_DIST_INFO}"):
                dist_infos.add(dist_info.resolve())
    return tuple(_read_installed(name, dist_info) for dist_info in sorted(dist_infos))


def _read_installed(name: str, dist_info: Path) -> EnvironmentPackage:
    """Return the installation whose metadata a folder has; what cannot be read is left out."""
    cuda = None
    cuda_line = _CUDA_LINE.search(read_text(dist_info.parent / name / "version.py"))
    if cuda_line is not None:
        cuda = cuda_line[1] or ""
    tags = _TAG.findall(read_text(dist_info / "WHEEL"))
    return EnvironmentPackage(dist_info, tuple(tags), cuda)

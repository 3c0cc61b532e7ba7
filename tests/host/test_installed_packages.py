"""The packages that an environment has, read from their metadata."""

from pathlib import Path

import pytest

from torchmill.host.installed_packages import EnvironmentPackage, find_installed


def install_torch(folder: Path, version: str, *tags: str) -> Path:
    """Write an installed torch into a folder of packages; return its .dist-info."""
    dist_info = folder / f"torch-{version}.dist-info"
    dist_info.mkdir(parents=True)
    (folder / "torch").mkdir(exist_ok=True)
    lines = [f"Tag: {tag}\n" for tag in tags]
    (dist_info / "WHEEL").write_text(f"Wheel-Version: 1.0\n{''.join(lines)}")
    return dist_info


@pytest.mark.parametrize("place", ["env", "env/lib/python3.12/site-packages"])
def test_a_package_is_found_in_an_environment_and_in_its_folder(place: str, tmp_path: Path) -> None:
    packages = tmp_path / "env/lib/python3.12/site-packages"
    dist_info = install_torch(packages, "2.4.1a0+own", "cp312-cp312-linux_x86_64", "cp312-abi3-any")
    (tmp_path / "env/lib64").symlink_to("lib")
    (installed,) = find_installed("torch", tmp_path / place)
    assert installed == EnvironmentPackage(
        dist_info, ("cp312-cp312-linux_x86_64", "cp312-abi3-any"), None
    )
    assert installed.version == "2.4.1a0+own"


def test_every_installation_of_a_package_is_found_but_no_editable_one(tmp_path: Path) -> None:
    assert find_installed("torch", tmp_path) == ()
    install_torch(tmp_path, "2.4.1")
    install_torch(tmp_path, "2.4.0")
    versions = [installed.version for installed in find_installed("torch", tmp_path)]
    assert versions == ["2.4.0", "2.4.1"]
    (tmp_path / "torch").rmdir()  # as an "editable" install, whose code is elsewhere
    assert find_installed("torch", tmp_path) == ()


@pytest.mark.parametrize(
    ("line", "cuda"),
    [
        ("cuda: Optional[str] = '12.1'", "12.1"),
        ("cuda = '11.8'", "11.8"),
        ("cuda: Optional[str] = None", ""),
        ("hip = None", None),
        ("", None),
    ],
)
def test_the_version_module_tells_the_toolkit(line: str, cuda: str | None, tmp_path: Path) -> None:
    install_torch(tmp_path, "2.4.1")
    (tmp_path / "torch/version.py").write_text(f"__version__ = 'x'\n{line}\n")
    (installed,) = find_installed("torch", tmp_path)
    assert installed.cuda == cuda

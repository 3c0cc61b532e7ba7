"""Settings of the user's shell that a build passes over."""

from pathlib import Path

from torchmill.cell.environment import describe_ignored_toolkit
from torchmill.host.host import Host, HostResources, HostToolkits


def test_a_folder_that_the_shell_names_and_the_build_passes_over_is_described(
    tmp_path: Path,
) -> None:
    home = tmp_path / "cuda-11.8"
    other = tmp_path / "cuda-12.4"
    home.mkdir()
    other.mkdir()
    (tmp_path / "cuda").symlink_to(home)
    toolkits = HostToolkits(homes={"11.8": str(home), "12.4": str(other)})
    host = Host("x86_64", "linux", HostResources(4, 2**34), toolkits=toolkits)

    def describe(folder: Path, version: str | None = "11.8") -> str | None:
        return describe_ignored_toolkit({"CUDA_HOME": str(folder)}, host, version)

    assert describe(tmp_path / "cuda") is None, "it is the same folder"
    assert describe(other, None) is None, "a build without CUDA passes over nothing"
    assert describe_ignored_toolkit({}, host, "11.8") is None
    assert describe(other) == (
        f"CUDA_HOME={other} holds CUDA 12.4; the build needs CUDA 11.8, which it takes from {home}"
    )
    assert describe(tmp_path) == (
        f"CUDA_HOME={tmp_path} holds no toolkit that can be used; the build needs CUDA 11.8, which "
        f"it takes from {home}"
    )
    assert describe(other, "11.7") == (
        f"CUDA_HOME={other} holds CUDA 12.4; the build needs CUDA 11.7, which it finds nowhere"
    )


def test_a_toolkit_that_was_completed_is_not_passed_over(tmp_path: Path) -> None:
    completed = f"{tmp_path}, completed with nvidia-cufft-cu11 10.9.0.58"
    toolkits = HostToolkits(homes={"11.8": "/cache/11.8"}, completed={"11.8": completed})
    host = Host("x86_64", "linux", HostResources(4, 2**34), toolkits=toolkits)
    assert describe_ignored_toolkit({"CUDA_HOME": str(tmp_path)}, host, "11.8") is None

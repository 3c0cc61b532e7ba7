"""The links of a CUDA_HOME."""

from pathlib import Path

from torchmill.fetch.toolkit.layout import add_links, add_unversioned_names


def home(folder: Path) -> Path:
    """Return a toolkit as packages leave it."""
    for name in ("include/cuda.h", "lib64/libcudart.so.13", "lib64/libcudart_static.a", "bin/nvcc"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return folder


def test_a_toolkit_gets_the_links_of_nvidias_own(tmp_path: Path) -> None:
    whole = home(tmp_path / "making")
    add_links(whole, "x86_64")
    add_links(whole, "x86_64")  # nothing to do
    whole = whole.rename(tmp_path / "made")
    for name in ("targets/x86_64-linux/include/cuda.h", "targets/x86_64-linux/bin/nvcc", "lib/libcudart.so"):
        assert (whole / name).is_file(), name
    assert not (whole / "targets/x86_64-linux/nvvm").is_symlink(), "there is none"
    assert (whole / "targets/x86_64-linux/lib/libcudart.so").read_text() == "lib64/libcudart.so.13"


def test_the_profiling_interface_lies_where_torch_looks_for_it(tmp_path: Path) -> None:
    add_links(home(tmp_path), "x86_64")
    assert not (tmp_path / "extras").exists(), "the toolkit has none"
    (tmp_path / "include/cupti.h").touch()
    add_links(tmp_path, "x86_64")
    assert (tmp_path / "extras/CUPTI/include/cupti.h").is_file()
    assert (tmp_path / "extras/CUPTI/lib64/libcudart.so").is_file()


def test_servers_with_arm_have_another_target(tmp_path: Path) -> None:
    add_links(home(tmp_path), "aarch64")
    assert (tmp_path / "targets/sbsa-linux/include/cuda.h").is_file()


def test_a_link_that_is_there_stays(tmp_path: Path) -> None:
    for name in ("liba.so.1", "liba.so.2", "libnvrtc-builtins.so.13.0"):
        (tmp_path / name).touch()
    (tmp_path / "liba.so").symlink_to("liba.so.2")
    add_unversioned_names(tmp_path)
    assert (tmp_path / "liba.so").readlink() == Path("liba.so.2")
    assert (tmp_path / "libnvrtc-builtins.so").readlink() == Path("libnvrtc-builtins.so.13.0")

"""The switches that the build files of a source name."""

from pathlib import Path

from torchmill.cell.source_switches import find_switches


def test_the_switches_of_all_build_files_are_found(tmp_path: Path) -> None:
    assert find_switches(tmp_path, {"USE_LLVM"}) == set()
    options = 'option(USE_LLVM "" OFF)\noption(TORCH_USE_ASAN "" OFF)\n'
    (tmp_path / "CMakeLists.txt").write_text(options)
    part = tmp_path / "third_party" / "part"
    part.mkdir(parents=True)
    (part / "part.cmake").write_bytes(b"set(BUILD_PART ON) # \xff\n")
    (part / "folder.cmake").mkdir()
    # "TORCH_USE_ASAN" is another word than "USE_ASAN".
    assert find_switches(tmp_path, {"USE_ASAN"}) == {"USE_LLVM", "BUILD_PART"}


def test_the_search_ends_with_the_last_switch_that_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("USE_MPI")
    (tmp_path / "CMakeLists.txt").write_text("USE_LLVM")
    assert find_switches(tmp_path, set()) == set()
    assert find_switches(tmp_path, {"USE_MPI"}) == {"USE_MPI"}
    assert find_switches(tmp_path, {"USE_LLVM"}) == {"USE_MPI", "USE_LLVM"}

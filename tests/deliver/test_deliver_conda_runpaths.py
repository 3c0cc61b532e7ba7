"""Where libraries of a conda package look, tried with real ones."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from tests.support import tiny_wheels as tiny
from torchmill.deliver.conda import layout

pytestmark = tiny.needs_compiler

PYTHON = "{}.{}".format(*sys.version_info)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the repaired wheel of tinytorch."""
    folder = tmp_path_factory.mktemp("wheel")
    raw = tiny.build(folder)
    return tiny.finish(raw.torch, folder / "dist", folder / "stage", folders=(raw.outside,))[0]


def dynamic(path: Path) -> dict[str, str]:
    """Return the run paths of a file as another reader of ELF files has them."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        tags = section.iter_tags()
        return {
            tag.entry.d_tag: str(getattr(tag, "rpath", None) or getattr(tag, "runpath", None))
            for tag in tags
            if tag.entry.d_tag in {"DT_RPATH", "DT_RUNPATH"}
        }


def test_they_are_those_of_the_recipe_and_forced(wheel: Path, tmp_path: Path) -> None:
    """R3: `_C*.so` and `lib/*.so`."""
    prefix = tmp_path / "prefix"
    staged = layout.lay_out_wheel(wheel, prefix, PYTHON)
    edited = layout.apply_run_paths(staged, prefix / "lib")
    extension = next(staged.root.glob("tinytorch/_C*.so"))
    assert dynamic(extension) == {"DT_RPATH": "$ORIGIN:$ORIGIN/lib:$ORIGIN/../../.."}
    assert dynamic(staged.root / "tinytorch/lib/libtiny.so") == {"DT_RPATH": "$ORIGIN:$ORIGIN/../../../.."}
    assert {"tinytorch/lib/libtiny.so", extension.relative_to(staged.root).as_posix()} <= set(edited)
    assert all(dynamic(staged.root / name).keys() == {"DT_RPATH"} for name in edited)
    code = "import tinytorch; print(tinytorch.add(1, 2))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=staged.root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3.0"


def test_the_environment_comes_before_ld_library_path(wheel: Path, tmp_path: Path) -> None:
    """A library of the environment's lib/ is loaded, although LD_LIBRARY_PATH has one of that name."""
    prefix, module = tmp_path / "prefix", tmp_path / "module"
    staged = layout.lay_out_wheel(wheel, prefix, PYTHON)
    module.mkdir()
    for folder, number in ((prefix / "lib", 1), (module, 2)):
        tiny.shared(f"double lens(double x) {{ return {number}; }}", folder / "liblens.so.1")
    package = staged.root / "tinytorch"
    tiny.extension(package, "look", "lens(a)", module / "liblens.so.1")
    shutil.move(next(package.glob("_C*.so")), tmp_path / f"_C{tiny.SUFFIX}")
    library = shutil.move(tmp_path / f"_C{tiny.SUFFIX}", package / f"_C{tiny.SUFFIX}")
    layout.apply_run_paths(staged, prefix / "lib")
    assert set(dynamic(Path(library))) == {"DT_RPATH"}
    done = subprocess.run(
        [sys.executable, "-c", "from _C import look; print(look(0, 0))"],
        cwd=package,
        env={**os.environ, "LD_LIBRARY_PATH": str(module)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "1.0"

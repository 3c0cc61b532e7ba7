"""A setup.py with several modules, run by the real setuptools and compiler."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from torchmill.toolchain import setup_modules, shards

RUNNER = str(Path(setup_modules.__file__))
NAMES = ("one", "two", "three")


def project(folder: Path, **sources: str) -> Path:
    """Write a setup.py with a module for each source, whose builder prints lines as ninja does."""
    for name, text in sources.items():
        (folder / f"{name}.c").write_text(text)
    (folder / "setup.py").write_text(
        dedent(f"""\
        import os
        from setuptools import Extension, setup
        from setuptools.command.build_ext import build_ext

        class Builder(build_ext):
            def build_extensions(self):
                build_ext.build_extensions(self)

            def build_extension(self, extension):
                print("[1/2] compiling", extension.name, flush=True)
                build_ext.build_extension(self, extension)
                print("[2/2] linking", extension.name, flush=True)

        modules = [Extension(f"pkg.{{name}}", [name + ".c"], optional=name == "spare") for name in {sorted(sources)}]
        setup(name="pkg", version="1", ext_modules=modules, cmdclass={{"build_ext": Builder}})
        """)
    )
    return folder


def module(name: str) -> str:
    return (
        "#include <Python.h>\n"
        f'static struct PyModuleDef made = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1}};\n'
        f"PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&made); }}\n"
    )


def test_the_edges_of_all_modules_are_counted_together(tmp_path: Path) -> None:
    for name, edges in (("a", 2), ("b", 3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "build.ninja").write_text("rule cc\n" + "build x.o: cc x.c\n" * edges)
    progress = setup_modules.SharedProgress(str(tmp_path), ["a", "b", "made"])
    assert progress.renumber("a", "[1/2] one\n") == "[1/5] one\n"
    assert progress.renumber("b", "[1/1] two\n") == "[2/3] two\n"  # its others were there
    assert progress.renumber("a", "note: not of ninja\n") == "note: not of ninja\n"
    progress.end("a")  # after an edge of it failed
    assert progress.renumber("b", "[1/1] two\n") == "[2/2] two\n"


def run_setup(
    folder: Path, order: str = "parallel", **environ: str
) -> "subprocess.CompletedProcess[str]":
    argv = [
        sys.executable,
        RUNNER,
        order,
        "setup.py",
        "build_ext",
        "--build-lib",
        "lib",
        "--build-temp",
        "temp",
    ]
    env = {"PATH": f"{folder}:/usr/bin:/bin", **environ}
    return subprocess.run(
        argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="modules are forked on Linux"),
]


def test_modules_are_compiled_side_by_side_and_each_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """Each compile waits until three of them run, so modules in sequence would fail."""
    project(tmp_path, **{name: module(name) for name in NAMES})
    compiler = tmp_path / "meeting"
    compiler.write_text(
        dedent("""\
        #!/bin/sh
        case "$*" in *" -c "*) touch "$MET/$$"
            for _ in $(seq 600); do [ "$(ls "$MET" | wc -l)" -ge 3 ] && exec cc "$@"; sleep 0.1; done; exit 1;;
        esac
        exec cc "$@"
        """)
    )
    compiler.chmod(0o755)
    (tmp_path / "met").mkdir()
    completed = run_setup(tmp_path, CC="meeting", LDSHARED="cc -shared", MET=str(tmp_path / "met"))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert {path.name.split(".")[0] for path in (tmp_path / "lib/pkg").iterdir()} == {*NAMES}
    assert {path.name for path in (tmp_path / "temp").iterdir()} == {
        f"pkg.{name}" for name in NAMES
    }
    numbers = [
        line.partition(" ")[0] for line in completed.stdout.splitlines() if line.startswith("[")
    ]
    assert len(numbers) == 6
    assert numbers[-1] == "[6/6]"


def test_what_fails_is_named_and_the_others_are_made(tmp_path: Path) -> None:
    project(tmp_path, one=module("one"), two="#error broken", spare="#error broken")
    completed = run_setup(tmp_path)
    assert completed.returncode != 0
    assert "not compiled: pkg.two" in completed.stderr
    assert "pkg.spare" not in completed.stderr.splitlines()[-1]
    assert "two.c:1:2: error: #error broken" in completed.stdout  # the output of the compiler
    assert [path.name.split(".")[0] for path in (tmp_path / "lib/pkg").iterdir()] == ["one"]


def test_a_share_is_made_of_all_modules_in_one_folder(tmp_path: Path) -> None:
    """The program in place of ninja fails for each module, so no module is linked."""
    assert setup_modules.SHARE_VARIABLE == shards.ORDER_VARIABLE
    project(tmp_path, one="#error of one", two="#error of two", three=module("three"))
    completed = run_setup(tmp_path, **{shards.ORDER_VARIABLE: "order.json"})
    assert completed.returncode != 0
    assert [
        name
        for name in ("one", "two")
        if f"{name}.c:1:2: error: #error of {name}" in completed.stderr
    ] == [
        "one",
        "two",
    ]
    assert "#error of two" in completed.stderr
    assert [path.name for path in (tmp_path / "temp").iterdir()] == ["three.o"]


def test_a_single_module_is_made_where_setuptools_makes_it(tmp_path: Path) -> None:
    project(tmp_path, one=module("one"))
    completed = run_setup(tmp_path)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert [path.name for path in (tmp_path / "temp").iterdir()] == ["one.o"]


def test_a_single_module_may_fail_if_it_is_optional(tmp_path: Path) -> None:
    project(tmp_path, spare="#error broken")
    completed = run_setup(tmp_path)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "#error broken" in completed.stderr


MOVED = """\
        folder = os.getcwd()
        os.makedirs("elsewhere", exist_ok=True)
        extension.sources = [os.path.abspath(path) for path in extension.sources]
        self.build_lib = os.path.abspath(self.build_lib)
        os.chdir("elsewhere")
        build_ext.build_extension(self, extension)
        os.chdir(folder)
"""


@pytest.mark.parametrize("order", ["parallel", "serial"])
def test_headers_are_found_from_every_folder(tmp_path: Path, order: str) -> None:
    """The builder compiles in another folder, as ninja does."""
    project(tmp_path, one=module("one"), two=f'#include "two.h"\n{module("two")}')
    setup = tmp_path / "setup.py"
    text = setup.read_text().replace('[name + ".c"],', '[name + ".c"], include_dirs=["headers"],')
    text = text.replace("        build_ext.build_extension(self, extension)\n", MOVED)
    setup.write_text(text)
    assert text.count("headers") == text.count("os.chdir(folder)") == 1
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers/two.h").touch()
    completed = run_setup(tmp_path, order)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    names = sorted(path.name.split(".")[0] for path in (tmp_path / "lib/pkg").iterdir())
    assert names == ["one", "two"]

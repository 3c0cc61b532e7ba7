"""Trees that the real ninja and the real compiler compile for made-up Pythons."""

import os
import re
import subprocess
from pathlib import Path

from torchmill.cell import retarget
from torchmill.cell.folders import BuildTree
from torchmill.host.tree_users import TreeUser

# Two files depend on no Python, one on Python's headers, one on those of a package.
SOURCES = {
    "free": "int free_of_it(void) { return 1; }\n",
    "also": "int also(void) { return 2; }\n",
    "python": "#include <Python.h>\nconst char* python(void) { return PY_VERSION; }\n",
    "number": "#include <number.h>\nconst char* number(void) { return NUMBER_VERSION; }\n",
}
NINJA = """\
rule cc
  command = cc -MD -MF $out.d {flags} -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = $out
rule link
  command = cc -shared $in -o $out
  description = $out
{objects}
build lib.so: link {names}
"""


class Python:
    """What compilers see of an interpreter: its headers, and those of a package in its environment."""

    def __init__(self, folder: Path, version: str, number: str) -> None:
        self.headers = folder / "base" / "include" / f"python{version}"
        self.venv = folder / f"wheel-{version}"
        self.package = self.venv / "lib" / "site-packages" / "number"
        self.version, self.number = version, number
        for file, text in {
            self.headers / "Python.h": f'#define PY_VERSION "python {version}"\n',
            self.package / "number.h": f'#define NUMBER_VERSION "number {number}"\n',
        }.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def user(self, tree: BuildTree) -> TreeUser:
        own = (str(self.headers),)
        return TreeUser(f"{self.version} {self.number}", own, (str(tree.env), str(self.venv), *own))


class Site:
    """A tree, in which CMake's work is done by a few lines."""

    def __init__(self, folder: Path) -> None:
        self.tree = BuildTree(folder / "tree")
        self.tree.build.mkdir(parents=True)
        for name, text in SOURCES.items():
            (self.tree.source / f"{name}.c").write_text(text)

    def given(self, to: Python) -> int | None:
        return retarget.retarget_tree(self.tree, to.user(self.tree), to.venv)

    def configure(self, python: Python) -> None:
        """Write build.ninja as CMake does: unless it remembers, then nothing changes."""
        remembered = self.tree.build / "CMakeCache.txt"
        if remembered.exists():
            return
        inside = os.path.relpath(
            self.tree.env, self.tree.build
        )  # relative, as with a base_dir of ccache
        package = python.package.relative_to(python.venv)
        flags = f"-isystem {python.headers} -isystem {inside}/{package}"
        names = [f"{name}.o" for name in SOURCES]
        rules = [f"build {name}.o: cc ../{name}.c" for name in SOURCES]
        text = NINJA.format(flags="", objects="\n".join(rules[:2]), names=" ".join(names))
        text = text.replace("build lib.so", "\n".join([*rules[2:], "build lib.so"]))
        for name in ("python", "number"):
            text = text.replace(f"../{name}.c", f"../{name}.c\n  flags = {flags}")
        text = text.replace("$out.d  -c", "$out.d $flags -c")
        (self.tree.build / "build.ninja").write_text(text)
        remembered.touch()

    def compile(self, *targets: str) -> set[str]:
        """Return what ninja made."""
        done = subprocess.run(
            ["ninja", *targets], cwd=self.tree.build, capture_output=True, text=True, check=True
        )
        return set(re.findall(r"^\[\d+/\d+\] (\S+)$", done.stdout, re.MULTILINE))

    def built(self, python: Python) -> set[str]:
        self.configure(python)
        return self.compile()

    def versions(self) -> set[str]:
        """Return the versions that were compiled in."""
        data = (self.tree.build / "lib.so").read_bytes()
        return {match.decode() for match in re.findall(rb"(?:python|number) [\d.]+", data)}

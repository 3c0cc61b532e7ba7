"""Start compilers in many ways, plain and by `millguard --`, and count those that the guard sees.

python benchmarks/guarded_ways.py --results FILE [--only NAME …]
python benchmarks/guarded_ways.py --render FILE

Each way builds a program of seven small C++ files, or of what its tool takes. Exit codes and products are compared
with those of a plain build in the same folder. A way is left out if its first program is not installed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import results
from results import Row

LIMIT_SECONDS = 1800.0
FILES = 6  # beside main.cpp
SOURCE = """#include <map>
#include <string>
#include <vector>
int f%d() { std::map<std::string, std::vector<int>> m; m["a"].push_back(%d); return (int)m.size(); }
"""
MAKEFILE = """CXX = g++
OBJECTS = f1.o f2.o f3.o f4.o f5.o f6.o main.o
prog: $(OBJECTS)
\t$(CXX) -o $@ $(OBJECTS)
%.o: %.cpp
\t$(CXX) -O1 -c $< -o $@
"""
PRODUCTS = ("*.o", "*.so", "*.a", "*.whl", "*.rlib", "prog")


@dataclass(frozen=True, slots=True)
class Way:
    """A way to start compilers."""

    name: str
    program: str  # without which it is left out
    build: str  # shell commands
    prepare: str = ""  # shell commands before both builds, without the guard


CMAKE = """cat > CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.18)
project(p CXX)
add_executable(prog main.cpp f1.cpp f2.cpp f3.cpp f4.cpp f5.cpp f6.cpp)
END
rm Makefile
"""
MESON_TEXT = (
    "\"project('p','cpp')\\nexecutable('prog','main.cpp',$(printf \"'f%d.cpp',\" 1 2 3 4 5 6))\\n\""
)
MESON = f"printf {MESON_TEXT} > meson.build"
SETUPTOOLS = """cat > setup.py <<END
from setuptools import Extension, setup
setup(name="p", version="1", py_modules=[], ext_modules=[Extension("p", ["f1.cpp", "f2.cpp", "f3.cpp"])])
END
printf '[build-system]\\nrequires = ["setuptools"]\\nbuild-backend = "setuptools.build_meta"\\n' > pyproject.toml
"""
CARGO = """mkdir src
printf '[package]\\nname = "p"\\nversion = "0.1.0"\\nedition = "2021"\\n' > Cargo.toml
echo 'fn main() {}' > src/main.rs
echo 'pub fn f() {}' > src/lib.rs
"""
CGO = """rm *.cpp
printf 'package main\\n// int f() { return 1; }\\nimport "C"\\nfunc main() { println(C.f()) }\\n' > main.go
printf 'module m\\n' > go.mod
"""
LOOP = "for i in 1 2 3 4 5 6; do g++ -c f$i.cpp -o f$i.o; done"
CLEAN = "env -i PATH=/usr/bin:/bin"
BWRAP = "bwrap --bind / / --dev /dev --proc /proc"
WAYS = (
    Way("make", "make", "make -j2"),
    Way("make, compiler by its absolute path", "make", 'make -j2 CXX="$(command -v g++)"'),
    Way("make below env -i", "make", f"{CLEAN} make -j2"),
    Way("make below busybox's env -i (static)", "busybox", f"busybox {CLEAN} make -j2"),
    Way("make below busybox's shell (static)", "busybox", "busybox sh -c 'make -j2'"),
    Way("busybox's shell starts g++", "busybox", f"busybox sh -c '{LOOP}'"),
    Way("make below sudo, as root", "sudo", "sudo make -j2"),
    Way("make below fakeroot", "fakeroot", "fakeroot make -j2"),
    Way("make below proot", "proot", "proot make -j2"),
    Way("make below bwrap", "bwrap", f"{BWRAP} make -j2"),
    Way("make below bwrap, read-only", "bwrap", f"{BWRAP} --ro-bind / / --bind $PWD $PWD make -j2"),
    Way("make below bwrap, without /tmp", "bwrap", f"{BWRAP} --tmpfs /tmp make -j2"),
    Way("CMake and make", "cmake", "cmake -B build . && cmake --build build", CMAKE),
    Way("CMake and ninja", "ninja", "cmake -G Ninja -B build . && cmake --build build", CMAKE),
    Way(
        "CMake, launcher ccache",
        "ccache",
        "cmake -G Ninja -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -B build . && cmake --build build",
        f"{CMAKE}rm -rf $CCACHE_DIR",
    ),
    Way(
        "ccache with a CCACHE_PREFIX",
        "ccache",
        "CCACHE_PREFIX=$PWD/prefix.sh make -j2 CXX='ccache g++'",
        "printf '#!/bin/sh\\nexec \"$@\"\\n' > prefix.sh; chmod +x prefix.sh; rm -rf $CCACHE_DIR",
    ),
    Way("Meson", "meson", "CXX=g++ meson setup build && CXX=g++ meson compile -C build", MESON),
    Way("build, setuptools, isolated", "pyproject-build", "pyproject-build -w .", SETUPTOOLS),
    Way("uv, setuptools, isolated", "uv", "uv build --wheel .", SETUPTOOLS),
    Way("cargo", "cargo", "cargo build --offline", CARGO),
    Way("go with cgo", "go", "GOCACHE=$PWD/cache go build -a -o prog .", CGO),
    Way(
        "musl-gcc",
        "musl-gcc",
        "for i in 1 2 3; do musl-gcc -c m$i.c -o m$i.o; done",
        "for i in 1 2 3; do echo 'int a;' > m$i.c; done",
    ),
    Way(
        "nvcc",
        "nvcc",
        "for i in 1 2 3; do nvcc -c k$i.cu -o k$i.o; done",
        "for i in 1 2 3; do echo '__global__ void k() {}' > k$i.cu; done",
    ),
)


def write_tree(folder: Path) -> None:
    """Write the sources and the Makefile."""
    folder.mkdir()
    numbers = range(1, FILES + 1)
    for number in numbers:
        (folder / f"f{number}.cpp").write_text(SOURCE % (number, number), encoding="utf-8")
    calls = " + ".join(f"f{number}()" for number in numbers)
    declarations = " ".join(f"int f{number}();" for number in numbers)
    main = f"{declarations}\nint main() {{ return {calls} - {FILES}; }}\n"
    (folder / "main.cpp").write_text(main, encoding="utf-8")
    (folder / "Makefile").write_text(MAKEFILE, encoding="utf-8")


def build(
    way: Way, folder: Path, environ: dict[str, str], words: Sequence[str]
) -> tuple[int, dict[str, str], str]:
    """Build in a fresh folder; return the exit code, the digests of the products, and stderr."""
    shutil.rmtree(folder, ignore_errors=True)
    write_tree(folder)
    subprocess.run(["sh", "-c", way.prepare], cwd=folder, env=environ, check=True)
    done = subprocess.run(
        [*words, "sh", "-c", way.build],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    digests = {}
    for pattern in PRODUCTS:
        for path in folder.rglob(pattern):
            if path.is_file():
                digests[str(path.relative_to(folder))] = hashlib.sha256(
                    path.read_bytes()
                ).hexdigest()
    return done.returncode, digests, done.stderr


def run(asked: Namespace) -> None:
    """Build each way twice plain and once guarded."""
    for way in WAYS:
        if shutil.which(way.program) is None or (asked.only and way.name not in asked.only):
            continue
        with tempfile.TemporaryDirectory(prefix="guarded-ways-", dir=Path.home()) as name:
            work = Path(name, "work")
            cache = str(Path(name, "cache"))
            environ = {
                **os.environ,
                "SOURCE_DATE_EPOCH": "1700000000",
                "PYTHONHASHSEED": "0",
                "CCACHE_DIR": str(Path(name, "ccache")),
                "MILLGUARD_CACHE": cache,
                "MILLGUARD_BOARD": "",
            }
            millguard = [sys.executable, "-P", "-m", "millguard"]
            plain_code, plain, _ = build(way, work, environ, [])
            code, guarded, said = build(way, work, environ, [*millguard, "--"])
            _, again, _ = build(way, work, environ, [])
            costs = subprocess.run(
                [*millguard, "costs", "list"],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
        stable = {path for path in plain if plain[path] == again.get(path)}
        lines = [line for line in said.splitlines() if line.startswith("millguard: ")]
        row = {
            "way": way.name,
            "codes": [plain_code, code],
            "seen": len(costs.stdout.splitlines()),
            "files": len(plain),
            "stable": len(stable),
            "different": sorted(path for path in stable if guarded.get(path) != plain[path]),
            "messages": lines,
        }
        results.record(asked.results, row)


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of the runs."""
    heads = ["compilers are started by", "seen", "exit codes", "files", "the same", "different"]
    lines = []
    for row in rows:
        codes = " and ".join(map(str, row["codes"]))
        counts = [row["files"], row["stable"], len(row["different"])]
        lines.append([row["way"], row["seen"], codes, *counts])
    yield results.table(heads, lines)


def main() -> None:
    """Run or render."""
    parser = results.parser(__doc__)
    parser.add_argument("--only", nargs="*", help="names of ways")
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()

"""Build ten projects that nobody tuned for plain and by `millguard --`, and compare the files.

python benchmarks/guarded_projects.py --results FILE [--only NAME …]
python benchmarks/guarded_projects.py --render FILE

Each has a build system of its own, and comes from PyPI or from Debian's archive (`apt-get source`, which needs a line
`deb-src`). It is built three times in one folder: plain, guarded, and plain once more. A file that differs between the
two plain builds is not reproducible by itself, and is not compared.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import results
from results import Row
from timed_command import run_timed

LIMIT_SECONDS = 3600.0
PYPI = "pypi"
DEBIAN = "debian"
# What is put together from compiled files; others of a build are logs and intermediate files.
PRODUCTS = (".o", ".so", ".a", ".whl", ".pyd", ".rlib")


@dataclass(frozen=True, slots=True)
class Project:
    """A project, and how it is built by hand."""

    name: str
    system: str  # of its build
    origin: str
    build: str  # shell commands, in its source's folder


WHEEL = f"{sys.executable} -m pip wheel -q --no-deps --no-cache-dir -w products ."
PROJECTS = (
    Project("ujson", "setuptools, C++", PYPI, WHEEL),
    Project("contourpy", "meson-python", PYPI, WHEEL),
    Project("spglib", "scikit-build-core, CMake", PYPI, WHEEL),
    Project("psutil", "setuptools, C", PYPI, WHEEL),
    Project("cffi", "setuptools, isolated", PYPI, WHEEL),
    Project("lzo2", "autotools, a library of C", DEBIAN, "./configure -q && make -s -j2"),
    Project("jansson", "autotools", DEBIAN, "autoreconf -fi && ./configure -q && make -s"),
    Project(
        "fmtlib",
        "CMake and ninja",
        DEBIAN,
        "cmake -G Ninja -DFMT_TEST=OFF -B build . && cmake --build build",
    ),
    Project("zlib", "a configure of its own", DEBIAN, "./configure && make -s"),
    Project("libjson-xs-perl", "MakeMaker", DEBIAN, "perl Makefile.PL && make -s"),
)


def fetch(project: Project, folder: Path) -> Path:
    """Fetch and unpack a project's source; return its folder."""
    folder.mkdir(parents=True)
    if project.origin == PYPI:
        words = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            project.name,
        ]
        subprocess.run([*words, project.name], cwd=folder, check=True)
        (archive,) = folder.glob("*.tar.gz")
        subprocess.run(["tar", "xf", archive.name], cwd=folder, check=True)
    else:
        subprocess.run(["apt-get", "-qq", "source", project.name], cwd=folder, check=True)
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return source


def build(
    project: Project, source: Path, work: Path, words: Sequence[str]
) -> tuple[float, dict[str, str]]:
    """Build a fresh copy of a source; return the seconds, and the digests of what was made."""
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(source, work, symlinks=True)
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": "0"}
    argv = [*words, "sh", "-ec", project.build]
    done, seconds = run_timed(argv, work, environ, LIMIT_SECONDS)
    if done.returncode != 0:
        sys.exit(f"{project.name}: {shlex.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seconds, {
        **dict(_digests(work)),
        "": done.stderr.splitlines()[-1] if done.stderr else "",
    }


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix not in PRODUCTS or not path.is_file():
            continue
        name = str(path.relative_to(folder))
        if path.suffix == ".whl":
            with ZipFile(path) as wheel:
                for member in wheel.infolist():
                    yield f"{name}/{member.filename}", _digest(wheel.read(member))
        else:
            yield name, _digest(path.read_bytes())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def run(asked: Namespace) -> None:
    """Build each project three times."""
    with tempfile.TemporaryDirectory(prefix="guarded-projects-") as folder:
        for project in PROJECTS:
            if asked.only and project.name not in asked.only:
                continue
            source = fetch(project, Path(folder, project.name))
            work = Path(folder, "work")
            guard = [sys.executable, "-P", "-m", "millguard", "--"]
            plain_seconds, plain = build(project, source, work, [])
            guarded_seconds, guarded = build(project, source, work, guard)
            again_seconds, again = build(project, source, work, [])
            message = guarded.pop("")
            plain.pop("")
            again.pop("")
            stable = {name for name in plain if plain[name] == again.get(name)}
            row = {
                "project": project.name,
                "system": project.system,
                "files": len(plain),
                "stable": len(stable),
                "different": sorted(name for name in stable if guarded.get(name) != plain[name]),
                "missing": sorted(plain.keys() ^ guarded.keys()),
                "plain": [round(plain_seconds, 2), round(again_seconds, 2)],
                "guarded": round(guarded_seconds, 2),
                "guard": message,
            }
            results.record(asked.results, row)


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of the runs."""
    heads = [
        "project",
        "build system",
        "files",
        "stable by themselves",
        "different",
        "missing",
        "plain, s",
        "guarded, s",
    ]
    lines = []
    for row in rows:
        plain = " and ".join(map(str, row["plain"]))
        counts = [row["files"], row["stable"], len(row["different"]), len(row["missing"])]
        lines.append([row["project"], row["system"], *counts, plain, row["guarded"]])
    yield results.table(heads, lines)


def main() -> None:
    """Run or render."""
    parser = results.parser(__doc__)
    parser.add_argument("--only", nargs="*", help="names of projects")
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()

"""Stand-ins for the packages that ours need in a conda channel: a Python, and wheels of PyPI."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import rattler
import rattler_build
from rattler.platform import Subdir

VERSION = "{}.{}".format(*sys.version_info)
NEXT = f"{sys.version_info.major}.{sys.version_info.minor + 1}"


def package(
    channel: Path,
    subdir: str,
    name: str,
    version: str,
    files: Path,
    *,
    build: str = "0",
    depends: Sequence[str] = (),
) -> Path:
    """Write a package of all files below a folder."""
    place = channel / subdir
    place.mkdir(parents=True, exist_ok=True)
    assembled = rattler_build.assemble_package(
        name,
        version,
        subdir,
        build,
        place,
        files=rattler_build.collect_files(files, include_hidden=True),
        depends=list(depends),
        compression_level=1,
        detect_prefix=False,
    )
    return assembled.path


def python(channel: Path, subdir: str, scratch: Path, interpreter: Path | None = None) -> Path:
    """Write a package `python` that leads to an interpreter of this machine, as an environment does.

    It has no standard library of its own, but uses that of the interpreter.
    """
    target = interpreter or Path(sys.base_prefix, "bin", f"python{VERSION}")
    version = subprocess.run(
        [target, "-c", "import platform; print(platform.python_version())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    short = version.rpartition(".")[0]
    (scratch / "bin").mkdir(parents=True)
    site_packages = scratch / "lib" / f"python{short}" / "site-packages"
    site_packages.mkdir(parents=True)
    (site_packages / "README").write_text("nothing is installed yet\n")
    for name in ("python", f"python{short}"):
        (scratch / "bin" / name).symlink_to(target)
    (scratch / "pyvenv.cfg").write_text(f"home = {target.parent}\nversion = {version}\n")
    return package(channel, subdir, "python", version, scratch, build="0_cpython")


def of_wheel(
    channel: Path, subdir: str, scratch: Path, requirement: str, *, name: str, python: str = VERSION
) -> Path:
    """Write a package of the files that pip installs for a requirement, without its dependencies."""
    site = scratch / "lib" / f"python{python}" / "site-packages"
    words = ["install", "--quiet", "--no-deps", "--only-binary=:all:", "--target", str(site)]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, "--python-version", python, requirement], check=True
    )
    info = next(site.glob("*.dist-info")).name.removesuffix(".dist-info")
    major, minor = python.split(".")
    depends = [f"python >={python},<{major}.{int(minor) + 1}.0a0"]
    return package(
        channel, subdir, name, info.partition("-")[2], scratch, build="py_0", depends=depends
    )


def index(channel: Path) -> None:
    """Index a channel of stand-ins."""
    (channel / "noarch").mkdir(exist_ok=True)
    asyncio.run(rattler.index.index_fs(channel))


def install(
    channels: Iterable[Path], subdir: str, prefix: Path, cache: Path, *specs: str
) -> list[rattler.RepoDataRecord]:
    """Solve for some packages in channels on this disk, and install them into a prefix."""
    records = solve(channels, subdir, cache, *specs)
    asyncio.run(rattler.install(records, prefix, cache_dir=cache / "packages", show_progress=False))
    return records


def solve(
    channels: Iterable[Path], subdir: str, cache: Path, *specs: str
) -> list[rattler.RepoDataRecord]:
    """Return the packages that fulfil the specs together, without virtual packages."""
    work = rattler.solve(
        [rattler.Channel(channel.resolve().as_uri()) for channel in channels],
        list(specs),
        gateway=rattler.Gateway(cache_dir=cache / "repodata"),
        platforms=[Subdir(subdir), Subdir("noarch")],
        virtual_packages=rattler.VirtualPackage.detect(),
    )
    return asyncio.run(work)


def run(prefix: Path, code: str) -> str:
    """Run a line of Python by the interpreter of a prefix, without this process's PYTHON variables."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [prefix / "bin" / "python", "-c", code],
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

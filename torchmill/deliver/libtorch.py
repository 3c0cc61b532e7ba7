"""Make the libtorch archive for C++ users from a verified wheel, and try it with a CMake project."""

import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO
from zipfile import ZipFile

from packaging.requirements import Requirement

from torchmill.core.errors import VerifyError
from torchmill.core.files import fresh_path, hash_file, report_unwritable
from torchmill.core.locks import hold_lock
from torchmill.core.process import CommandError, program_output, stream
from torchmill.core.stat_cache import StatCache, digest_code, digest_data
from torchmill.deliver import products
from torchmill.deliver.products import Product, ProductParts, VerifiedWheel
from torchmill.host import measurement, native, programs
from torchmill.plan import cuda_toolkit, first_error
from torchmill.wheel import dist_files
from torchmill.wheel.pack import elf, staging, wheel_writer, zip_archive
from torchmill.wheel.pack.wheel_writer import open_compressor
from torchmill.wheel.pack.zip_archive import ZipWriter
from torchmill.wheel.verify import clean_environment

PROJECTS = Path(__file__).parent / "consumers"
TOOLS = ("cmake>=3.18", "ninja")
FOLDERS = ("include", "lib", "share")  # of the package's own; its bin/ serves the build, and Python
PYTHON = re.compile(r"_?Py[A-Z_]\w+")  # how all names of CPython's C API begin
ABI = re.compile(rb"_GLIBCXX_USE_CXX11_ABI=(\d)")
EPOCH = time.gmtime(wheel_writer.EPOCH_SECONDS)


def try_archive(
    archive: Path, project: str, home: str | None, scratch: Path, *, empty: Path, log: TextIO
) -> str:
    """Unzip the archive into `scratch`, build the consumer `project` against it and run it; return what it printed.

    `home` is the CUDA toolkit, None without one. CMake and ninja come from PyPI where the machine has none,
    into an environment out of one in `empty`. Raises VerifyError where any of it fails.
    """
    with ZipFile(archive) as packed:
        packed.extractall(scratch)
        root = scratch / packed.namelist()[0].partition("/")[0]
    source = shutil.copytree(PROJECTS / project, scratch / "consumer")
    build, cmake, ninja = source / "build", *_tools(scratch, empty, log)
    definitions = [
        f"CMAKE_PREFIX_PATH={root}",
        f"CMAKE_MAKE_PROGRAM={ninja}",
        "CMAKE_BUILD_TYPE=Release",
    ]
    environ = clean_environment.clean_variables()
    if home is not None:
        definitions.append(f"CUDA_TOOLKIT_ROOT_DIR={home}")
        environ |= {"CUDA_HOME": home, "CUDACXX": f"{home}/bin/nvcc"}
    steps: dict[str, list[str | Path]] = {
        "configured": [
            cmake,
            "-G",
            "Ninja",
            "-S",
            source,
            "-B",
            build,
            *(f"-D{one}" for one in definitions),
        ],
        "compiled": [cmake, "--build", build],
        "run": [build / "consumer"],
    }
    printed: list[str] = []
    for step, argv in steps.items():
        printed.clear()
        words = [str(word) for word in argv]
        log.write(f"+ {' '.join(words)}\n")
        try:
            stream(words, cwd=scratch, env=environ, log=log, on_line=printed.append)
        except CommandError as error:
            cause = (
                first_error.first_failure(first_error.last_run(error.output.splitlines()).lines)
                or error
            )
            raise VerifyError(
                f"{archive.name}: a C++ program could not be {step} against it, so it is not published "
                f"({cause}): see {log.name}",
                code="libtorch-check-failed",
            ) from None
    return "\n".join(printed)


def _tools(scratch: Path, empty: Path, log: TextIO) -> tuple[str, str]:
    """Return CMake and ninja: this machine's if they will do, or those of PyPI in an environment of their own."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    version = (
        programs.parse_tool_version("cmake", program_output(cmake, "--version")) if cmake else None
    )
    if cmake and ninja and Requirement(TOOLS[0]).specifier.contains(version or "0"):
        return cmake, ninja
    python = clean_environment.create_environment(
        Path(sys.executable), scratch / "tools", log, empty
    )
    clean_environment.install_packages(python, TOOLS, log)
    suffix = ".exe" if sys.platform == "win32" else ""
    return str(python.with_name(f"cmake{suffix}")), str(python.with_name(f"ninja{suffix}"))


def cxx_files(package: Path) -> dict[str, Path]:
    """Return the files of an unpacked import package that belong to C++, by their place in the archive.

    Left out is what needs a Python to be loaded into: `libtorch_python`, and whatever needs that.
    """
    every = {
        path.relative_to(package).as_posix(): path
        for folder in FOLDERS
        for path in sorted((package / folder).rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    left_out = set(python_libraries([path for path in every.values() if path.parent.name == "lib"]))
    return {name: path for name, path in every.items() if path not in left_out}


def python_libraries(libraries: list[Path]) -> Iterator[Path]:
    """Yield the libraries that call Python, or need one that does; what is no ELF file goes by its name."""
    found = {path: elf.read_elf(path) for path in libraries if elf.is_elf(path)}
    named = [path for path in libraries if path not in found and "_python" in path.name]
    dropped = {
        path for path in found if any(PYTHON.match(name) for name in elf.undefined_symbols(path))
    }
    names = {path.name for path in dropped}
    while more := {
        path
        for path, info in found.items()
        if path not in dropped and info and names & set(info.needed)
    }:
        dropped |= more
        names |= {path.name for path in more}
    yield from (*named, *dropped)


def uses_cxx11_abi(package: Path) -> bool:
    """Say whether the package's CMake files tell consumers to compile for libstdc++'s ABI of 2015."""
    files = sorted((package / "share").rglob("*.cmake"))
    return any(match[1] == b"1" for file in files for match in ABI.finditer(file.read_bytes()))


def archive_name(import_name: str, version: str, system: str, arch: str, abi: str) -> str:
    """Return the archive's name, as the official ones are called: "libtorch-shared-with-deps-1.13.1+cpu.zip".

    `abi` is "cxx11-abi-" or "". Official names for Linux have no machine: here all but x86_64 have one.
    """
    stem = f"lib{import_name}"
    if system == "macos":
        return f"{stem}-macos-{arch}-{version}.zip"
    if system == "windows":
        return f"{stem}-win-shared-with-deps-{version}.zip"
    machine = "" if arch == "x86_64" else f"-{arch}"
    return f"{stem}-{abi}shared-with-deps-{version}{machine}.zip"


def write_zip(
    archive: Path, top: str, files: Mapping[str, Path], texts: Mapping[str, str], members: Path
) -> str:
    """Write `files` and `texts`, by their place below the folder `top`, and return the archive's sha256.

    Compressed members are kept in the folder `members`, and copied from there. Raises HostError where the
    disk refuses it.
    """
    listed = [
        wheel_writer.member_source(f"{top}/{name}", path, path.stat())
        for name, path in sorted(files.items())
    ]
    with (
        report_unwritable(archive),
        archive.open("wb") as sink,
        open_compressor(members) as compressor,
    ):
        whole = ZipWriter(sink, EPOCH)
        deque(compressor.add_files(whole, listed), 0)
        for name, text in sorted(texts.items()):
            compressor.add_bytes(whole, f"{top}/{name}", text.encode())
        whole.close()
    return hash_file(archive)


def make_libtorch(found: VerifiedWheel) -> Product:
    """Return the archive of a wheel, made beside it in dist/, and tried by a C++ program that CMake builds.

    An archive that would be the same is kept. Raises DeliveryError where the wheel is not the file that its
    manifest describes, VerifyError where no program can be built or run with the archive.
    """
    stat_cache = StatCache(found.layout.stat_cache)
    parts = _parts(found, stat_cache)
    unchanged = products.find_unchanged(
        sorted(found.layout.dist.glob("lib*.zip")), parts, stat_cache
    )
    stat_cache.save()
    return (
        Product(unchanged, unchanged=True)
        if unchanged
        else Product(_make_archive(found, parts), unchanged=False)
    )


def _parts(found: VerifiedWheel, stat_cache: StatCache) -> dict[str, str]:
    """Return all that can change an archive; what a program is compiled with that tries it does not."""
    build = found.plan.build
    package = found.facts.packages[build.package]
    named = [package.import_name, package.checks, found.plan.version, _texts(found)]
    return {
        **products.wheel_parts(found, stat_cache),
        "facts": digest_data(
            [*named, found.facts.arches[build.arch].system, build.arch, found.plan.toolkit]
        ),
        "code": digest_code(stat_cache, "deliver/libtorch.py", "deliver/consumers", "wheel/pack"),
        "tools": str(zip_archive.best_codec()),
    }


def _make_archive(found: VerifiedWheel, parts: ProductParts) -> Path:
    plan, layout = found.plan, found.layout
    identifier = replace(plan.build, session="libtorch").identifier(native.native_arch())
    package, arch = found.facts.packages[plan.build.package], plan.build.arch
    scratch = layout.tree(plan.release.tag, identifier)
    layout.logs.mkdir(parents=True, exist_ok=True)
    log = layout.logs / f"{plan.release.tag}-{identifier}.log"
    with (
        hold_lock(scratch, identifier),
        log.open("w", encoding="utf-8") as output,
        fresh_path(scratch / "wheel") as unpacked,
        fresh_path(scratch / "consumer") as consumer,
    ):
        unpacked.mkdir()
        root = staging.stage_wheel(found.wheel, unpacked).root / package.import_name
        abi = "cxx11-abi-" if uses_cxx11_abi(root) else ""
        archive = scratch / archive_name(
            package.import_name, plan.version, found.facts.arches[arch].system, arch, abi
        )
        top, members = f"lib{package.import_name}", layout.cache / "members"
        sha256 = write_zip(archive, top, cxx_files(root), _texts(found), members)
        home = None
        if plan.toolkit is not None:
            host = measurement.measure_host(layout.root)
            home = cuda_toolkit.cuda_placeholders(plan, host).get("cuda_home", "/usr/local/cuda")
        printed = try_archive(
            archive, package.checks, home, consumer, empty=layout.environments, log=output
        )
        place = layout.dist / archive.name
        dist_files.move_file(archive, place)
        products.write_record(place, parts, sha256, {"consumer": printed})
    return place


def _texts(found: VerifiedWheel) -> dict[str, str]:
    """Return the two files by which an official archive says what it is."""
    commit = dist_files.proven_commit(found.manifest)
    return {"build-version": f"{found.plan.version}\n"} | (
        {"build-hash": f"{commit}\n"} if commit else {}
    )

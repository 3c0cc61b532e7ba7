"""Make the libtorch archive for C++ users from a verified wheel, and try it with CMake.

The archive has the headers, libraries and CMake files of the wheel, and no Python. To try it, the
consumer, a small CMake project in consumers/, is built and run against it.
"""

import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TextIO
from zipfile import ZipFile

from millguard.limits import LimitMeter
from millpress import elf, staging, wheel_writer, zip_archive
from millpress.wheel_writer import open_compressor
from millpress.zip_archive import ZipWriter
from packaging.requirements import Requirement

from torchmill.core.atomic_writes import fresh_path
from torchmill.core.digests import hash_file
from torchmill.core.errors import VerifyError
from torchmill.core.locks import hold_work_folder
from torchmill.core.process import CommandError, program_output, stream
from torchmill.core.stat_cache import StatCache, digest_code, digest_data, package_folder
from torchmill.core.system_errors import report_unwritable
from torchmill.deliver import products
from torchmill.deliver.products import Product, ProductParts, VerifiedWheel
from torchmill.host import measurement, native, programs
from torchmill.plan import cuda_toolkit, first_error, log_lines
from torchmill.wheel import dist_files
from torchmill.wheel.verify import clean_environment

# The CMake projects that try an archive, one folder for each value of a package's `checks`.
PROJECTS = Path(__file__).parent / "consumers"

# The requirements that are installed from PyPI on a machine without usable tools.
TOOLS = ("cmake>=3.18", "ninja")

# The folders of the import package that C++ needs. Its bin/ serves the build, and Python.
FOLDERS = ("include", "lib", "share")

# All names of CPython's C API begin like this.
PYTHON_SYMBOL = re.compile(r"_?Py[A-Z_]\w+")

# The flag that PyTorch's CMake files hand to consumers.
ABI_FLAG = re.compile(rb"_GLIBCXX_USE_CXX11_ABI=(\d)")

# The time of all members, so that the same files give the same archive.
MEMBER_TIME = time.gmtime(wheel_writer.EPOCH_SECONDS)


class BuildTools(NamedTuple):
    """The paths of the programs that build a consumer."""

    cmake: str
    ninja: str


def try_archive(
    archive: Path, project: str, home: str | None, scratch: Path, *, empty: Path, log: TextIO
) -> str:
    """Build and run a C++ program against an archive; return what the program printed.

    The archive is unpacked into `scratch`, and the consumer `project` is built there. `home` is
    the folder of the CUDA toolkit, None without CUDA. If this machine has no usable CMake and
    ninja, they are installed from PyPI into a copy of an environment that is kept in `empty`.
    Raises VerifyError if the program cannot be configured, compiled or run.
    """
    with ZipFile(archive) as packed:
        packed.extractall(scratch)
        top = packed.namelist()[0].partition("/")[0]
    source = shutil.copytree(PROJECTS / project, scratch / "consumer")
    tools = _find_tools(scratch, empty, log)
    environ = clean_environment.clean_variables()
    if home is not None:
        environ["CUDA_HOME"] = home
        environ["CUDACXX"] = f"{home}/bin/nvcc"
    steps = _consumer_steps(source, scratch / top, tools, home)
    printed: list[str] = []
    for step, command in steps.items():
        printed.clear()  # only the lines of the last step are returned
        log.write(f"+ {' '.join(command)}\n")
        try:
            stream(command, cwd=scratch, env=environ, log=log, on_line=printed.append)
        except CommandError as error:
            last_run = log_lines.last_run(error.output.splitlines())
            cause = first_error.first_failure(last_run.lines) or error
            raise VerifyError(
                f"{archive.name}: a C++ program could not be {step} against it, so it is not "
                f"published ({cause}): see {log.name}",
                code="libtorch-check-failed",
            ) from None
    return "\n".join(printed)


def _consumer_steps(
    source: Path, libtorch: Path, tools: BuildTools, home: str | None
) -> dict[str, list[str]]:
    """Return the commands for a consumer, in order: "configured", "compiled" and "run".

    `source` is the folder of the consumer, `libtorch` that of the unpacked archive, and `home` that
    of the CUDA toolkit, None without CUDA.
    """
    build = source / "build"
    configure = [tools.cmake, "-G", "Ninja", "-S", str(source), "-B", str(build)]
    # ninja is named, because CMake would look for it on PATH, where there may be none.
    configure += [f"-DCMAKE_PREFIX_PATH={libtorch}", f"-DCMAKE_MAKE_PROGRAM={tools.ninja}"]
    configure.append("-DCMAKE_BUILD_TYPE=Release")
    if home is not None:
        configure.append(f"-DCUDA_TOOLKIT_ROOT_DIR={home}")
    return {
        "configured": configure,
        "compiled": [tools.cmake, "--build", str(build)],
        "run": [str(build / "consumer")],
    }


def _find_tools(scratch: Path, empty: Path, log: TextIO) -> BuildTools:
    """Return the CMake and ninja of this machine if they are new enough, else those of PyPI."""
    cmake = shutil.which("cmake")
    ninja = shutil.which("ninja")
    if cmake and ninja:
        answer = program_output(cmake, "--version")
        version = programs.parse_tool_version("cmake", answer) or "0"
        if Requirement(TOOLS[0]).specifier.contains(version):
            return BuildTools(cmake, ninja)
    python = clean_environment.create_environment(
        Path(sys.executable), scratch / "tools", log, empty
    )
    clean_environment.install_packages(python, TOOLS, log)
    suffix = ".exe" if sys.platform == "win32" else ""
    return BuildTools(
        cmake=str(python.with_name(f"cmake{suffix}")),
        ninja=str(python.with_name(f"ninja{suffix}")),
    )


def cxx_files(package: Path) -> dict[str, Path]:
    """Return the files of an unpacked import package that C++ needs, by their place in the archive.

    Libraries that can only be loaded into a Python are left out: `libtorch_python`, and the
    libraries that need it.
    """
    files = {}
    for folder in FOLDERS:
        for path in sorted((package / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                files[path.relative_to(package).as_posix()] = path
    libraries = [path for path in files.values() if path.parent.name == "lib"]
    excluded = python_libraries(libraries)
    return {name: path for name, path in files.items() if path not in excluded}


def python_libraries(libraries: Sequence[Path]) -> set[Path]:
    """Return the libraries that call Python, and those that need one of these.

    A file that is no ELF file, as on macOS and Windows, is judged by its name.
    """
    excluded = set()
    needed_names = {}
    for path in libraries:
        if not elf.is_elf(path):
            if "_python" in path.name:
                excluded.add(path)
            continue
        info = elf.read_elf(path)
        needed_names[path] = set(info.needed) if info else set()
        if any(PYTHON_SYMBOL.match(symbol) for symbol in elf.undefined_symbols(path)):
            excluded.add(path)
    # A library that needs an excluded library is excluded, too, and so on until nothing changes.
    excluded_names = {path.name for path in excluded if path in needed_names}
    grown = True
    while grown:
        grown = False
        for path, names in needed_names.items():
            if path not in excluded and names & excluded_names:
                excluded.add(path)
                excluded_names.add(path.name)
                grown = True
    return excluded


def uses_cxx11_abi(package: Path) -> bool:
    """Tell if the package's CMake files make consumers compile for libstdc++'s ABI of 2015."""
    for file in sorted((package / "share").rglob("*.cmake")):
        if any(match[1] == b"1" for match in ABI_FLAG.finditer(file.read_bytes())):
            return True
    return False


def archive_name(import_name: str, version: str, system: str, arch: str, abi: str) -> str:
    """Return the file name of an archive, such as "libtorch-shared-with-deps-1.13.1+cpu.zip".

    Official archives have these names, and those for Linux name no machine: here, all but the
    archives for x86_64 do. `abi` is "cxx11-abi-" or "".
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
    """Write an archive and return its sha256.

    `files` and `texts` are its members, by their place below the folder `top`. Members that were
    compressed once are kept in the folder `members`, and copied from there the next time. Raises
    HostError if the disk refuses.
    """
    sources = []
    for name, path in sorted(files.items()):
        sources.append(wheel_writer.member_source(f"{top}/{name}", path, path.stat()))
    with (
        report_unwritable(archive),
        archive.open("wb") as sink,
        open_compressor(members, threads=LimitMeter().cores().count) as compressor,
    ):
        writer = ZipWriter(sink, MEMBER_TIME)
        # Members are written as the iterator advances: nothing happens until it is exhausted.
        for _ in compressor.add_files(writer, sources):
            pass
        for name, text in sorted(texts.items()):
            compressor.add_bytes(writer, f"{top}/{name}", text.encode())
        writer.close()
    return hash_file(archive)


def make_libtorch(verified: VerifiedWheel) -> Product:
    """Return the libtorch archive of a wheel in dist/, made and tried unless it is unchanged.

    Raises DeliveryError if the wheel is not the file that its manifest describes, VerifyError if
    no C++ program can be built or run with the archive.
    """
    stat_cache = StatCache(verified.layout.stat_cache)
    parts = _archive_parts(verified, stat_cache)
    archives = sorted(verified.layout.dist.glob("lib*.zip"))
    unchanged = products.find_unchanged(archives, parts, stat_cache)
    stat_cache.save()
    if unchanged:
        return Product(unchanged, unchanged=True)
    return Product(_make_archive(verified, parts), unchanged=False)


def _archive_parts(verified: VerifiedWheel, stat_cache: StatCache) -> dict[str, str]:
    """Return the parts of an archive: everything that can change its bytes.

    The compiler of the program that tries the archive cannot, so it is not among them.
    """
    plan = verified.plan
    build = plan.build
    package = verified.facts.packages[build.package]
    facts = [
        package.import_name,
        package.checks.script,
        plan.wheel.version,
        _version_files(verified),
        verified.facts.arches[build.arch].system,
        build.arch,
        plan.cuda.toolkit,
    ]
    return {
        **products.wheel_parts(verified, stat_cache),
        "facts": digest_data(facts),
        "code": digest_code(
            stat_cache, "deliver/libtorch.py", "deliver/consumers", package_folder("millpress")
        ),
        "tools": str(zip_archive.best_codec()),
    }


def _make_archive(verified: VerifiedWheel, parts: ProductParts) -> Path:
    """Make an archive in dist/, try it, write its record, and return its path."""
    plan = verified.plan
    layout = verified.layout
    arch = plan.build.arch
    package = verified.facts.packages[plan.build.package]
    identifier = replace(plan.build, session="libtorch").identifier(native.native_arch())
    scratch = layout.tree(plan.release.tag, identifier)
    layout.logs.mkdir(parents=True, exist_ok=True)
    log = layout.logs / f"{plan.release.tag}-{identifier}.log"
    with (
        hold_work_folder(scratch, identifier),
        log.open("w", encoding="utf-8") as output,
        fresh_path(scratch / "wheel") as unpacked,
        fresh_path(scratch / "consumer") as consumer,
    ):
        unpacked.mkdir()
        root = staging.stage_wheel(verified.wheel, unpacked).root / package.import_name
        abi = "cxx11-abi-" if uses_cxx11_abi(root) else ""
        system = verified.facts.arches[arch].system
        archive = scratch / archive_name(package.import_name, plan.wheel.version, system, arch, abi)
        sha256 = write_zip(
            archive,
            f"lib{package.import_name}",
            cxx_files(root),
            _version_files(verified),
            layout.cache / "members",
        )
        home = None
        if plan.cuda.toolkit is not None:
            host = measurement.measure_host(layout.root)
            home = cuda_toolkit.cuda_placeholders(plan, host).get("cuda_home", "/usr/local/cuda")
        printed = try_archive(
            archive, package.checks.script, home, consumer, empty=layout.environments, log=output
        )
        place = layout.dist / archive.name
        dist_files.move_file(archive, place)
        products.write_record(place, parts, sha256, {"consumer": printed})
    return place


def _version_files(verified: VerifiedWheel) -> dict[str, str]:
    """Return the files with an archive's version and commit, by their names in official archives."""
    texts = {"build-version": f"{verified.plan.wheel.version}\n"}
    commit = dist_files.proven_commit(verified.manifest)
    if commit:
        texts["build-hash"] = f"{commit}\n"
    return texts

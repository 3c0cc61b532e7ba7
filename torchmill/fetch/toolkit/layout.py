"""The layout of a toolkit's folder: the places of files, and the links between them.

Packages of different providers have the files of a toolkit in different folders. Each file is moved
to its "place", the path below CUDA_HOME at which torch's build expects it.
"""

import contextlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from millpress.zip_archive import leaves_folder

from torchmill.core.atomic_writes import fresh_path
from torchmill.core.errors import HostError
from torchmill.core.package_data import read_table_beside
from torchmill.core.process import CommandError, capture
from torchmill.host.crossing import crossed_arches, triplet
from torchmill.host.native import native_arch

PACKAGES = read_table_beside(__file__, "packages.toml")
TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}  # arch -> nvcc's name of it
# Returns the place of a file by its path in its package; None: the file is left out.
Place = Callable[[str], str | None]
_C_COMPILERS = ("cc", "gcc", "clang")
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY, which every function of a stub returns
# What declares a function in the headers of the driver's interface: a declaration; a macro that
# replaces the name of a function; a macro for a function with a second form, for per-thread
# streams.
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*)\s*$", re.MULTILINE)
_STREAMED = re.compile(r"__CUDA_API_(PTDS|PTSZ)\((cu[A-Z]\w*)\)")
# Links in targets/MACHINE -> folders of a toolkit. nvcc and CMake look there.
_TARGET_LINKS = {"include": "include", "lib": "lib64", "bin": "bin", "nvvm": "nvvm"}
_NVCC_PROFILE = Path(__file__).with_name("nvcc.profile")  # nvcc's settings for this layout
_TRIAL_PROGRAM = Path(__file__).with_name("trial.cpp")
_COMPLAINT_LENGTH = 200  # characters of a compiler's output in a message


def placer(table: str, arch: str = "") -> Place:
    """Return the function that returns places by a table of packages.toml ("debian", "conda", …).

    The first pattern in the table that matches a path decides; `arch` replaces the word ARCH in it.
    A path that would lead out of the folder has no place.
    """
    rules = []
    for pattern, template in PACKAGES["places"][table]:
        rules.append((re.compile(pattern.replace("ARCH", arch)), template))

    def place(path: str) -> str | None:
        if leaves_folder(path):
            return None
        for pattern, template in rules:
            match = pattern.fullmatch(path)
            if match:
                return match.expand(template) or None  # an empty template: left out
        return None

    return place


def place_files(root: Path, home: Path, place: Place) -> None:
    """Move the files of an unpacked package from the folder `root` to their places in `home`.

    A file replaces another one at its place. A symbolic link is made anew, from its own place to
    the place of its target. It is left out if its target has no place, or if its own is taken.
    """
    paths = []
    for folder, folders, files in os.walk(root):
        paths += [Path(folder, name) for name in (*folders, *files)]
    # The links come last: the file itself is placed before a link that has the same place.
    paths.sort(key=lambda path: (path.is_symlink(), path))
    for path in paths:
        name = path.relative_to(root)
        place_of_path = place(str(name))
        if place_of_path is None or (path.is_dir() and not path.is_symlink()):
            continue
        target = home / place_of_path
        if not path.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            continue
        # The path of the link's target, with "/" for the top of the package. If the link is
        # absolute, this is its target alone: Path drops what comes before an absolute path.
        destination = os.path.normpath(Path("/", name.parent, path.readlink()))
        place_of_destination = place(destination[1:])
        if place_of_destination is None:
            continue
        # conda has each library in targets/MACHINE/lib, and a link to it in lib. Both have the same
        # place, which the library itself has taken.
        if place_of_destination == place_of_path:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        # Another path of this package, or a thread with another package, may have taken the place.
        with contextlib.suppress(FileExistsError):
            target.symlink_to(os.path.relpath(home / place_of_destination, target.parent))


def add_driver_stub(home: Path, arch: str) -> None:
    """Make `lib64/stubs/libcuda.so`, unless the toolkit has one.

    It is a stub of the driver's library, against which programs are linked, because a machine that
    builds need not have a driver. Its functions are those that the headers declare. The stub is for
    `arch`. Raises HostError if there is no C compiler for that, or if it fails.
    """
    stub = home / "lib64/stubs/libcuda.so"
    if stub.exists():
        return
    headers = sorted((home / "include").glob("cuda*.h"))
    functions = driver_functions(file.read_text(errors="replace") for file in headers)
    compiler = _find_c_compiler(arch)
    stub.parent.mkdir(parents=True, exist_ok=True)
    code = stub.with_suffix(".c")
    lines = [f"int {name}(void) {{ return {_STUB_LIBRARY}; }}\n" for name in functions]
    code.write_text("".join(lines), encoding="utf-8")
    flags = (
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-Wl,-soname,libcuda.so.1",  # the name of the driver's library
        "-Wl,--build-id=none",  # the stub is the same in each run
    )
    try:
        capture([compiler, *flags, "-o", str(stub), str(code)])
    except CommandError as error:
        complaint = error.output.strip()[-_COMPLAINT_LENGTH:]
        raise HostError(
            f"{compiler} could not make the stub of the driver's library ({complaint}): install "
            "gcc, and run the command again",
            code="driver-stub-failed",
        ) from None
    finally:
        code.unlink()


def _find_c_compiler(arch: str) -> str:
    """Return the path of a C compiler that makes code for an arch. Raises HostError if none does.

    For an arch that this machine's builds cannot be crossed for, it is the machine's own compiler.
    """
    names: tuple[str, ...] = _C_COMPILERS
    missing = "gcc"
    if arch != native_arch() and arch in crossed_arches():
        missing = f"{triplet(arch)}-gcc"
        names = (missing,)
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise HostError(
        "the stub of the driver's library needs a C compiler, and this machine has none: install "
        f"{missing}",
        code="no-c-compiler",
    )


def driver_functions(headers: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the driver's functions that headers declare, with their other names."""
    functions = set()
    for text in headers:
        functions.update(_DECLARED.findall(text))
        functions.update(_RENAMED.findall(text))
        for form, name in _STREAMED.findall(text):
            functions |= {name, f"{name}_{form.lower()}"}
    return tuple(sorted(functions))


def add_links(home: Path, arch: str) -> None:
    """Add links to a toolkit whose libraries are in `lib64`, for programs that look elsewhere."""
    _link(home / "lib", "lib64")
    target = home / "targets" / TARGETS[arch]
    target.mkdir(parents=True, exist_ok=True)
    for name, folder in _TARGET_LINKS.items():
        if (home / folder).is_dir():
            _link(target / name, f"../../{folder}")
    # Where nvcc of another machine looks if it is given a compiler for this one, unless -target-dir
    # names the folder above (nvcc 13.0).
    plain_target = home / "targets" / f"{arch}-linux"
    if plain_target != target:
        _link(plain_target, target.name)
    if (home / "include/cupti.h").exists():
        _link_cupti(home)
    add_unversioned_names(home / "lib64")


def _link_cupti(home: Path) -> None:
    """Link the profiling interface into the folder in which torch's build looks first."""
    cupti = home / "extras/CUPTI"
    cupti.mkdir(parents=True, exist_ok=True)
    for name in ("include", "lib64"):
        _link(cupti / name, f"../../{name}")


def add_unversioned_names(folder: Path) -> None:
    """Give each library of a folder the name that linkers look for: libcudart.so."""
    for file in sorted(folder.glob("lib*.so.*")):
        name = file.name.partition(".so.")[0]
        _link(folder / f"{name}.so", file.name)


def _link(link: Path, target: str) -> None:
    """Make a link, unless something, or a dangling link, has its name."""
    if not link.exists() and not link.is_symlink():
        link.symlink_to(target)


def finish_debian_toolkit(folder: Path, version: str, arch: str) -> None:
    """Add the files and links that NVIDIA's own toolkits have, and Debian's packages do not.

    They are nvcc's settings for this layout, the file with the toolkit's version, and links such as
    those of the profiling interface.
    """
    (folder / "bin").mkdir(exist_ok=True)
    shutil.copyfile(_NVCC_PROFILE, folder / "bin/nvcc.profile")
    document = {"cuda": {"name": "CUDA SDK", "version": version}}
    (folder / "version.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
    add_links(folder, arch)
    _link_cupti(folder)


def try_compiler(program: Path, arch: str, title: str) -> None:
    """Raise HostError if a C++ compiler in the bin/ of a toolkit makes no program that runs here.

    A compiler for another machine (`arch`) is not tried. `title` names it in the message. The trial
    makes a temporary folder beside the bin/, so that this user must be able to write there.
    """
    if arch != platform.machine():
        return
    # The program is made beside the compiler: some systems let no program run from /tmp.
    with fresh_path(program.parents[1] / "trial") as folder:
        folder.mkdir()
        executable = str(folder / "trial")
        try:
            capture([str(program), "-O1", "-o", executable, str(_TRIAL_PROGRAM)])
            capture([executable])
        except CommandError as error:
            errors = [line for line in error.output.splitlines() if "error" in line.lower()]
            complaint = str(error).strip()
            if errors:
                complaint = errors[0].strip()
            raise HostError(
                f"{title} does not work on this machine ({complaint}): install the machine's own "
                "with its package manager",
                code="compiler-does-not-work",
            ) from None

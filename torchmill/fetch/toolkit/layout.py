"""The layout of a toolkit's folder: the places of files, and the links between them."""

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

PACKAGES = read_table_beside(__file__, "packages.toml")
TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}  # arch -> nvcc's name of it
# Returns a file's path in the toolkit by its path in its package; None: it is left out.
Place = Callable[[str], str | None]
_C_COMPILERS = ("cc", "gcc", "clang")
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY, which every function of a stub returns
# In the headers of the driver's interface: functions, other names of functions (macros), and
# functions that have a second form for per-thread streams.
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*)\s*$", re.MULTILINE)
_STREAMED = re.compile(r"__CUDA_API_(PTDS|PTSZ)\((cu[A-Z]\w*)\)")
# Links in targets/MACHINE -> folders of a toolkit. nvcc and CMake look there.
_TARGET_LINKS = {"include": "include", "lib": "lib64", "bin": "bin", "nvvm": "nvvm"}
_NVCC_PROFILE = Path(__file__).with_name("nvcc.profile")  # nvcc's settings if all is in one folder
_TRIAL_PROGRAM = Path(__file__).with_name("trial.cpp")
_COMPLAINT_LENGTH = 200  # characters of a compiler's output in a message


def placer(table: str, arch: str = "") -> Place:
    """Return the function that places the files of packages by one of the tables in packages.toml.

    The first pattern that matches a path decides. Paths that would leave the folder are left out.
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
    """Move the files of an unpacked package from `root` to their places in `home`.

    Links follow when all files are there; a link is kept only if its target has a place.
    """
    paths = []
    for folder, folders, files in os.walk(root):
        paths += [Path(folder, name) for name in (*folders, *files)]
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
        # "/" stands for the top of the package; of an absolute link, joining leaves only its target
        destination = os.path.normpath(Path("/", name.parent, path.readlink()))
        place_of_destination = place(destination[1:])
        if place_of_destination is None:
            continue
        # conda has each library twice: in the prefix' own folder there is a link to the target's,
        # and both have the same place
        if place_of_destination == place_of_path or os.path.lexists(target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.relpath(home / place_of_destination, target.parent))


def add_driver_stub(home: Path) -> None:
    """Make `lib64/stubs/libcuda.so`, unless the toolkit has one.

    Programs are linked against this stub of the driver's library, because a machine that builds
    need not have a driver. It has the functions that the headers declare. Raises HostError if there
    is no C compiler, or it fails.
    """
    stub = home / "lib64/stubs/libcuda.so"
    if stub.exists():
        return
    headers = sorted((home / "include").glob("cuda*.h"))
    functions = driver_functions(file.read_text(errors="replace") for file in headers)
    compiler = _find_c_compiler()
    stub.parent.mkdir(parents=True, exist_ok=True)
    code = stub.with_suffix(".c")
    lines = [f"int {name}(void) {{ return {_STUB_LIBRARY}; }}\n" for name in functions]
    code.write_text("".join(lines), encoding="utf-8")
    flags = (
        "-shared",
        "-fPIC",
        "-nostdlib",
        "-Wl,-soname,libcuda.so.1",  # as the driver's own library has it
        "-Wl,--build-id=none",  # nothing that differs from run to run
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


def _find_c_compiler() -> str:
    """Return the path of a C compiler. Raises HostError if there is none."""
    for name in _C_COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    raise HostError(
        "the stub of the driver's library needs a C compiler, and this machine has none: install "
        "gcc",
        code="no-c-compiler",
    )


def driver_functions(headers: Iterable[str]) -> tuple[str, ...]:
    """Return the driver's functions that headers declare, by all names that code may link to."""
    functions = set()
    for text in headers:
        functions.update(_DECLARED.findall(text))
        functions.update(_RENAMED.findall(text))
        for form, name in _STREAMED.findall(text):
            functions |= {name, f"{name}_{form.lower()}"}
    return tuple(sorted(functions))


def add_links(home: Path, arch: str) -> None:
    """Add the links that are missing to a toolkit whose libraries are in `lib64`."""
    _link(home / "lib", "lib64")
    target = home / "targets" / TARGETS[arch]
    target.mkdir(parents=True, exist_ok=True)
    for name, folder in _TARGET_LINKS.items():
        if (home / folder).is_dir():
            _link(target / name, f"../../{folder}")
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


def complete_toolkit(folder: Path, version: str, arch: str) -> None:
    """Add what the packages of a distribution leave out of a toolkit.

    That is nvcc's settings, the toolkit's version, and the profiling interface and other parts in
    the folders in which NVIDIA's own toolkits have them.
    """
    (folder / "bin").mkdir(exist_ok=True)
    shutil.copyfile(_NVCC_PROFILE, folder / "bin/nvcc.profile")
    document = {"cuda": {"name": "CUDA SDK", "version": version}}
    (folder / "version.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
    add_links(folder, arch)
    _link_cupti(folder)


def try_compiler(program: Path, arch: str, title: str) -> None:
    """Raise HostError if a compiler makes no program that runs here.

    A compiler for another machine is not tried. `title` names it in the message.
    """
    if arch != platform.machine():
        return
    # not in /tmp, from which programs may be kept from running
    with fresh_path(program.parents[1] / "trial") as folder:
        folder.mkdir()
        executable = str(folder / "trial")
        try:
            capture([str(program), "-O1", "-o", executable, str(_TRIAL_PROGRAM)])
            capture([executable])
        except CommandError as error:
            errors = [line for line in error.output.splitlines() if "error" in line.lower()]
            complaint = errors[0].strip() if errors else str(error).strip()
            raise HostError(
                f"{title} does not work on this machine ({complaint}): install the machine's own "
                "with its package manager",
                code="compiler-does-not-work",
            ) from None

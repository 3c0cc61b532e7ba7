"""Place downloads and toolkits in the user's cache, each complete or not at all, with the links they need."""

import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from torchmill.config.toolkit import ProviderPackage
from torchmill.core import locks
from torchmill.core.console import ProgressBar
from torchmill.core.errors import HostError
from torchmill.core.files import delete_paths, fresh_path, read_table_beside, report_unwritable
from torchmill.core.process import CommandError, capture
from torchmill.fetch.download import download_file
from torchmill.fetch.toolkit.request import ToolkitRequest
from torchmill.host import provisioned
from torchmill.host.provisioned import ProvisionedFolder, ProvisionRecord
from torchmill.wheel.pack.zip_archive import leaves_folder

_OTHERWISE = "use another provider (`--from conda|debian|pypi`)"
_REFUSED = f"the index lists a file that is not there: run the command again later, or {_OTHERWISE}"
PACKAGES = read_table_beside(__file__, "packages.toml")
Place = Callable[
    [str], str | None
]  # a file's path in its package to its path in the toolkit; None: left out
_COMPILERS = ("cc", "gcc", "clang")
_STUB_LIBRARY = 34  # CUDA_ERROR_STUB_LIBRARY: what a function of a stub returns
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(r"^\s*#\s*define\s+cu[A-Z]\w*\s+(cu[A-Z]\w*)\s*$", re.MULTILINE)
_STREAMED = re.compile(
    r"__CUDA_API_(PTDS|PTSZ)\((cu[A-Z]\w*)\)"
)  # of which there is a form for each thread
TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}  # how nvcc calls a machine
_LINKED = {"include": "include", "lib": "lib64", "bin": "bin", "nvvm": "nvvm"}
_PROFILE = Path(__file__).with_name(
    "nvcc.profile"
)  # settings of nvcc for a toolkit that is one folder
_TRIAL = Path(__file__).with_name("trial.cpp")


def downloads_folder(cache: Path, provider: str) -> Path:
    """Return where a provider's files are downloaded to; they are deleted after installing."""
    return cache / "downloads" / provider


def fetch_piece(piece: ProviderPackage, cache: Path, bar: ProgressBar) -> Path:
    """Return the file of a package that has a URL, complete and checked; a broken download is resumed.

    Raises NetworkError, HostError for a full disk, SourceError for a file that is not what the index lists.
    """
    folder = downloads_folder(cache, piece.provider)
    return download_file(
        piece.url,
        folder,
        bar,
        network_hint=_OTHERWISE,
        refusal_hint=_REFUSED,
        sha256=piece.sha256,
        size=piece.size or None,
    )


def make_in_store(
    cache: Path,
    request: ToolkitRequest,
    find: Callable[[], ProvisionedFolder | None],
    fill: Callable[[Path], tuple[str, ProvisionRecord]],
    note: Callable[[str], None],
) -> ProvisionedFolder:
    """Return what `find` finds installed; if that is nothing, `fill` puts what is requested into an empty folder first.

    One process assembles it, others wait. `fill` returns the name to install it under, and its record. If it raises,
    nothing stays but what was downloaded. Raises HostError for a full disk.
    """
    arch = request.arch
    place = cache / provisioned.FOLDER / f"{provisioned.MAKING}{request.name}-{arch}"
    who = f"the run that installs {request.name} (process {os.getpid()})"
    with locks.wait_for_lock(place, who, lambda _: note(f"waiting for {locks.read_holder(place)}")):
        if (there := find()) is not None:
            return there
        whole = place / provisioned.WHOLE
        with report_unwritable(place):
            delete_paths([whole])  # what an interrupted run left
            whole.mkdir()
            try:
                name, record = fill(whole)
                final = cache / provisioned.FOLDER / f"{name}-{arch}"
                delete_paths([final])  # it has lost its record
                made = datetime.now(UTC).isoformat(timespec="seconds")
                text = provisioned.format_provision_record(record, arch, made)
                (whole / provisioned.RECORD).write_text(text, encoding="utf-8")
                whole.rename(final)
            finally:
                shutil.rmtree(whole, ignore_errors=True)
    return ProvisionedFolder(name, arch, final, record)


def placer(packages: str, arch: str = "") -> Place:
    """Return what tells where the files of some packages go: one of the tables in packages.toml."""
    rules = [
        (re.compile(pattern.replace("ARCH", arch)), place)
        for pattern, place in PACKAGES["places"][packages]
    ]

    def place(path: str) -> str | None:
        matches = (
            ()
            if leaves_folder(path)
            else ((pattern.fullmatch(path), new) for pattern, new in rules)
        )
        return next((match.expand(new) for match, new in matches if match), None) or None

    return place


def place_files(root: Path, home: Path, place: Place) -> None:
    """Move the files of an unpacked package to where they belong, then the links that lead to such files."""
    paths = (
        Path(folder, name) for folder, inner, names in os.walk(root) for name in (*inner, *names)
    )
    for path in sorted(paths, key=lambda one: (one.is_symlink(), one)):
        name = path.relative_to(root)
        target = place(str(name))
        if target is None or (path.is_dir() and not path.is_symlink()):
            continue
        new = home / target
        if path.is_symlink():
            linked = Path("/", name.parent, path.readlink())  # of an absolute link only that counts
            to = place(os.path.normpath(linked)[1:])
            if to is None or to == target or os.path.lexists(new):
                continue  # conda has each library twice: the prefix' own folder links to the target's
            new.parent.mkdir(parents=True, exist_ok=True)
            new.symlink_to(os.path.relpath(home / to, new.parent))
        else:
            new.parent.mkdir(parents=True, exist_ok=True)
            path.replace(new)


def add_driver_stub(home: Path) -> None:
    """Make `lib64/stubs/libcuda.so` of what the headers declare, unless the toolkit has one.

    Raises HostError where no C compiler makes it.
    """
    stub = home / "lib64/stubs/libcuda.so"
    if stub.exists():
        return
    texts = [
        file.read_text(errors="replace") for file in sorted((home / "include").glob("cuda*.h"))
    ]
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise HostError(
            "the stub of the driver's library needs a C compiler, and this machine has none: install gcc",
            code="no-c-compiler",
        )
    stub.parent.mkdir(parents=True, exist_ok=True)
    code = stub.with_suffix(".c")
    functions = (
        f"int {name}(void) {{ return {_STUB_LIBRARY}; }}\n" for name in driver_functions(texts)
    )
    code.write_text("".join(functions), encoding="utf-8")
    # a fixed soname, as the driver's own library has it, and nothing that differs from run to run
    flags = ("-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-Wl,--build-id=none")
    try:
        capture([compiler, *flags, "-o", str(stub), str(code)])
    except CommandError as error:
        raise HostError(
            f"{compiler} could not make the stub of the driver's library ({error.output.strip()[-200:]}): "
            "install gcc, and run the command again",
            code="driver-stub-failed",
        ) from None
    finally:
        code.unlink()


def driver_functions(headers: Iterable[str]) -> tuple[str, ...]:
    """Return the functions of the driver that headers declare, under all names that code may ask for."""
    found = set()
    for text in headers:
        found |= set(_DECLARED.findall(text)) | set(_RENAMED.findall(text))
        for form, name in _STREAMED.findall(text):
            found |= {name, f"{name}_{form.lower()}"}
    return tuple(sorted(found))


def add_links(home: Path, arch: str) -> None:
    """Add the links that are missing to a toolkit whose libraries are in `lib64`."""
    _link(home / "lib", "lib64")
    target = home / "targets" / TARGETS[arch]
    target.mkdir(parents=True, exist_ok=True)
    for name, real in _LINKED.items():
        if (home / real).is_dir():
            _link(target / name, f"../../{real}")
    if (home / "include/cupti.h").exists():
        _link_cupti(home)
    add_unversioned_names(home / "lib64")


def _link_cupti(home: Path) -> None:
    """Put the profiling interface where torch's build looks for it first."""
    (home / "extras/CUPTI").mkdir(parents=True, exist_ok=True)
    for name in ("include", "lib64"):
        _link(home / "extras/CUPTI" / name, f"../../{name}")


def add_unversioned_names(folder: Path) -> None:
    """Give each library of a folder the name by which linkers ask for it: libcudart.so."""
    for file in sorted(folder.glob("lib*.so.*")):
        _link(folder / f"{file.name.partition('.so.')[0]}.so", file.name)


def _link(link: Path, to: str) -> None:
    if not link.exists() and not link.is_symlink():
        link.symlink_to(to)


def complete_toolkit(folder: Path, version: str, arch: str) -> None:
    """Add what the packages of a distribution leave out.

    That is nvcc's settings, the toolkit's version, and the profiling interface and other parts where NVIDIA has them.
    """
    (folder / "bin").mkdir(exist_ok=True)
    shutil.copyfile(_PROFILE, folder / "bin/nvcc.profile")
    content = {"cuda": {"name": "CUDA SDK", "version": version}}
    (folder / "version.json").write_text(json.dumps(content) + "\n", encoding="utf-8")
    add_links(folder, arch)
    _link_cupti(folder)


def try_compiler(program: Path, arch: str, what: str) -> None:
    """Raise HostError if a compiler makes no program that runs here; another machine's is not tried."""
    if arch != platform.machine():
        return
    with fresh_path(
        program.parents[1] / "trial"
    ) as place:  # programs may be kept from running in /tmp
        place.mkdir()
        try:
            capture([str(program), "-O1", "-o", str(place / "trial"), str(_TRIAL)])
            capture([str(place / "trial")])
        except CommandError as error:
            complaint = next(
                (line for line in error.output.splitlines() if "error" in line.lower()), str(error)
            )
            raise HostError(
                f"{what} does not work on this machine ({complaint.strip()}): install the machine's own "
                "with its package manager",
                code="compiler-does-not-work",
            ) from None

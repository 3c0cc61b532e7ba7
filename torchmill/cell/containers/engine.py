"""The container engine of this machine, what its kernel emulates, and the run of one program in a container."""

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from torchmill.core import process, reaper
from torchmill.core.errors import HostError, InterruptedBuildError, require_choice
from torchmill.core.lenient_paths import find_paths, read_text
from torchmill.core.package_data import read_table_beside
from torchmill.core.process import CommandError

_MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}  # e_machine in an ELF file
_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}  # as engines call them
_PROGRAM, _LIBRARY = 2, 3  # e_type: a program is either, by whether it can lie anywhere in memory
ANSWER_TIMEOUT_SECONDS = (
    60.0  # for an engine to print its version: the daemon may be on another machine
)
_ENGINES = read_table_beside(__file__, "engines.toml")  # in order of preference
INSTALL = (
    "Debian and Ubuntu: `apt-get install podman` or `buildah`; Fedora: `dnf install podman`; "
    "macOS: Docker Desktop, or `brew install podman` and `podman machine init --now`"
)
# Where the kernel has no overlay for it (in a container without privileges), whole copies still work.
COPIES = ("--storage-driver", "vfs")
PLATFORMS = {arch: f"linux/{name}" for arch, name in _NAMES.items()}
CROSS_LABEL = "torchmill.cross-compilers"  # of an image: the arch on which its cross compilers run
MARK = "INSIDE_TORCHMILL"  # the variable by which what runs in a container is known; builds keep it


@dataclass(frozen=True, slots=True)
class BinfmtHandler:
    """An entry of binfmt_misc: what runs the files that begin in a certain way."""

    name: str
    interpreter: str
    flags: str  # "F": the interpreter was opened when it was registered, so that containers need not have it
    magic: bytes
    mask: bytes

    def takes(self, header: bytes) -> bool:
        """Tell whether a file with this header is run by it."""
        meant = zip(header, self.magic, self.mask, strict=False)
        return len(self.magic) <= len(header) and all(
            one & mask == two & mask for one, two, mask in meant
        )


def read_binfmt_entries(root: Path = Path("/")) -> dict[str, str]:
    """Return the kernel's description of each entry, by name; none where binfmt_misc is not mounted."""
    entries = find_paths(root / "proc/sys/fs/binfmt_misc", "*")
    return {
        path.name: read_text(path) for path in entries if path.name not in {"register", "status"}
    }


def find_handler(arch: str, entries: Mapping[str, str]) -> BinfmtHandler | None:
    """Return the enabled entry that runs programs of an arch; None where there is none."""
    start = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bits, little-endian
    machine = _MACHINES[arch].to_bytes(2, "little")
    headers = [start + kind.to_bytes(2, "little") + machine for kind in (_PROGRAM, _LIBRARY)]
    handlers = (_parse_handler(name, text) for name, text in entries.items())
    able = [one for one in handlers if one and all(map(one.takes, headers))]
    return max(able, key=lambda one: "F" in one.flags, default=None)


def explain_no_emulation(arch: str, entries: Mapping[str, str]) -> str | None:
    """Return why no container can run programs of an arch here, with the fix; None where one can."""
    handler = find_handler(arch, entries)
    if handler is None:
        return (
            f"the kernel of this machine does not run programs for {arch}: register QEMU with it, by "
            f"`docker run --privileged --rm tonistiigi/binfmt --install {_NAMES[arch]}`, or on Debian "
            "and Ubuntu `apt-get install qemu-user-static binfmt-support` (where /proc/sys/fs/binfmt_misc is "
            "empty, with `mount -t binfmt_misc none /proc/sys/fs/binfmt_misc` and "
            f"`update-binfmts --enable qemu-{arch}` after it)"
        )
    if "F" not in handler.flags:
        return (
            f"programs for {arch} are run by {handler.interpreter}, which containers cannot see: register "
            "one that is opened beforehand (flag F), as Debian's qemu-user-static is, or "
            f"`docker run --privileged --rm tonistiigi/binfmt --install {_NAMES[arch]}`"
        )
    return None


def _parse_handler(name: str, text: str) -> BinfmtHandler | None:
    """Return an entry as the kernel describes it; None where it is disabled, or goes by a file's name."""
    lines = text.splitlines()
    rows = {key.rstrip(":"): value for key, _, value in (line.partition(" ") for line in lines)}
    with contextlib.suppress(KeyError, ValueError):
        magic = bytes.fromhex(rows["magic"])
        mask = bytes.fromhex(rows["mask"]) if "mask" in rows else b"\xff" * len(magic)
        if lines[0] == "enabled" and int(rows.get("offset", "0")) == 0:
            return BinfmtHandler(name, rows["interpreter"], rows.get("flags", ""), magic, mask)
    return None


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine that answers."""

    name: str  # "docker", "podman", "buildah"
    program: str  # its path
    options: tuple[str, ...]  # that stand before every verb: ("--storage-driver", "vfs")
    version: str  # of the program; of the daemon, where it has one

    def command(self, verb: str, *words: str) -> tuple[str, ...]:
        """Return the command line of a verb ("build", "run") with its words."""
        return (self.program, *self.options, verb, *words)


def find_engine(environ: Mapping[str, str], asked: str = "") -> Engine:
    """Return the engine that was asked for by name, or the first of the three that answers.

    `environ` is the environment whose PATH is searched and in which the engine runs.
    Raises ConfigError for a name that is none of the three, HostError where none of them answers.
    """
    chosen = asked and require_choice(
        "container engine", asked, _ENGINES, "unknown-container-engine"
    )
    names = (chosen,) if chosen else tuple(_ENGINES)
    silent: dict[str, str] = {}  # those that are installed, and what they printed
    for name in names:
        program = shutil.which(name, path=environ.get("PATH", ""))
        if program is None:
            continue
        for options in _storages(name, environ):
            try:
                version = _answer((program, *options, *_ENGINES[name]["version"]), environ)
                if name == "buildah":  # "buildah version 1.28.2 (image-spec …)"
                    version = [*_answer((program, "--version"), environ).split(), *["unknown"] * 3][
                        2
                    ]
                return Engine(name, program, options, version)
            except (CommandError, HostError) as error:
                said = error.output.strip() if isinstance(error, CommandError) else ""
                silent.setdefault(name, said.rpartition("\n")[2] or str(error))
    raise HostError(_refusal(names, silent), code="no-container-engine")


def _storages(name: str, environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the options with which an engine is tried, one after the other, until it answers."""
    driver = environ.get("STORAGE_DRIVER", "")
    if name != "docker" and driver:
        return [("--storage-driver", driver)]  # buildah 1.28 does not read the variable itself
    return [()] if name == "docker" else [(), COPIES]


def _answer(argv: Sequence[str], environ: Mapping[str, str] | None) -> str:
    return process.ask(argv, environ, ANSWER_TIMEOUT_SECONDS).strip()


def _refusal(names: tuple[str, ...], silent: Mapping[str, str]) -> str:
    """Say in one sentence why there is no engine, and what to do."""
    if not silent:
        missing = (
            f"{names[0]} is not" if len(names) == 1 else "none of docker, podman and buildah is"
        )
        return f"{missing} on PATH: install a container engine ({INSTALL})"
    answers = "; ".join(
        f"{name} is installed but does not answer ({said})" for name, said in silent.items()
    )
    first = next(iter(silent))
    cure = "start its daemon" if first == "docker" else f"make `{first} info` work"
    others = "" if len(names) == 1 else f", or install one that needs no daemon ({INSTALL})"
    return f"{answers}: {cure}{others}"


@dataclass(frozen=True, slots=True)
class EngineHost:
    """Where the containers of an engine run."""

    arch: str  # of its processor: "x86_64"
    rootless: bool  # root in a container is the user who started it
    remote: bool  # it is another machine, which does not see our files


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this machine that a container sees."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """One run of a program."""

    name: str
    image: str
    arch: str
    argv: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    passed: tuple[
        str, ...
    ] = ()  # variables from the engine's own environment: nobody sees their values
    user: tuple[int, int] | None = (
        None  # numbers of user and group here; None: whoever the image names
    )


@dataclass(frozen=True, slots=True)
class ContainerCommands:
    """The commands of one run, in their order."""

    before: tuple[tuple[str, ...], ...]
    trial: tuple[str, ...]  # says which machine a program in the container believes to be on
    main: tuple[str, ...]
    after: tuple[str, ...]  # ends the container and removes it; fails where it is gone


def container_commands(
    engine: Engine, engine_host: EngineHost, container: Container
) -> ContainerCommands:
    """Return the commands with which an engine runs a program in a container."""
    options = (*_user(engine, engine_host, container), *_mounts_and_variables(engine, container))
    name, image = container.name, container.image
    # By namespaces a build is cut off from the network (cell/compile.py). These engines let nobody make them without
    # this right, which a user other than root cannot take up; podman lets everybody.
    namespaces = ("--cap-add", "CAP_SYS_ADMIN")
    platform = ("--platform", PLATFORMS[container.arch])
    if engine.name == "buildah":  # which runs programs in a container that was made before
        isolation = ("--isolation", "chroot")  # needs no more than the right to mount
        return ContainerCommands(
            before=(engine.command("from", "--name", name, *platform, "--pull-never", image),),
            trial=engine.command("run", *isolation, name, "--", "uname", "-m"),
            main=engine.command(
                "run", *isolation, *namespaces, *options, name, "--", *container.argv
            ),
            after=engine.command("rm", name),
        )
    own: tuple[str, ...] = ()
    if engine.name == "docker":
        # --init: so that signals arrive; podman's program for it is often not installed
        own = ("--init", *namespaces, "--security-opt", "no-new-privileges")
    local = (*platform, "--pull", "never")
    outside = ("--name", name, "--network", "host", "--security-opt", "label=disable")
    program, *words = container.argv
    return ContainerCommands(
        before=(),
        trial=engine.command("run", "--rm", *local, "--entrypoint", "uname", image, "-m"),
        main=engine.command(
            "run", "--rm", *own, *local, *outside, *options, "--entrypoint", program, image, *words
        ),
        after=engine.command("rm", "--force", name),
    )


def _user(engine: Engine, engine_host: EngineHost, container: Container) -> tuple[str, ...]:
    """Return what makes the files of the container's program those of our user."""
    if container.user is None:
        return ()
    user = ":".join(map(str, container.user))
    if engine.name == "podman":
        return ("--userns", "keep-id", "--user", user) if engine_host.rootless else ("--user", user)
    return ("--user", "0:0" if engine_host.rootless or engine.name == "buildah" else user)


def _mounts_and_variables(engine: Engine, container: Container) -> list[str]:
    words: list[str] = []
    writable = (
        ",rw" if engine.name == "buildah" else ""
    )  # which mounts read-only unless told otherwise
    for one in container.mounts:
        ending = writable if one.writable else ",readonly"
        words += ["--mount", f"type=bind,source={one.source},target={one.target}{ending}"]
    variables = {**container.variables, MARK: container.name}
    for variable in (*(f"{name}={value}" for name, value in variables.items()), *container.passed):
        words += ["--env", variable]
    return words


def find_engine_host(engine: Engine, environ: Mapping[str, str], system: str) -> EngineHost:
    """Ask an engine where its containers run; `system` is this machine's: "linux", "macos".

    Raises HostError where it does not say.
    """
    try:
        arch, rootless, remote = json.loads(
            _answer(engine.command(*_ENGINES[engine.name]["host"]), None)
        )
    except (CommandError, ValueError) as error:
        raise HostError(
            f"{engine.name} does not say where its containers run ({error}): make `{engine.name} info` work",
            code="container-engine-unclear",
        ) from None
    if engine.name == "docker":
        rootless = any("name=rootless" in one for one in rootless or ())
        daemon = environ.get("DOCKER_HOST", "")
        if not daemon:
            with contextlib.suppress(CommandError):
                question = engine.command(
                    "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"
                )
                daemon = _answer(question, None)
        remote = daemon.startswith(("tcp://", "ssh://", "http://", "https://"))
    # On a Mac every engine has a virtual machine, which sees the user's folders.
    native = next((one for one, name in _NAMES.items() if name == arch), arch)
    return EngineHost(native, bool(rootless), bool(remote) and system == "linux")


def run_container(
    container: Container,
    steps: ContainerCommands,
    environ: Mapping[str, str],
    out: TextIO,
    assure: Callable[[str], None],
) -> None:
    """Run a program in a container, and leave nothing of it behind; what it says goes to `out`.

    Where this process is killed, another one ends the container.

    `assure` is given the machine that the container believes to be on, and raises where it is not the one.
    Raises HostError where the engine cannot run it, CommandError where the program fails,
    InterruptedBuildError where the user stops it.
    """
    # buildah's programs are processes of this machine's, and so is buildah all the while
    mark = {MARK: container.name} if steps.before else {}
    marked = {**environ, **mark}
    with process.interrupt_on_sigterm(), reaper.watch_container(mark, steps.after, environ):
        try:
            for argv in steps.before:
                process.capture(argv, env=marked)
            assure(process.capture(steps.trial, env=marked).strip())
            main, others = (
                _filled(steps, marked),
                bool(mark),
            )  # buildah stops what runs in the container itself
            process.stream(
                main, cwd=None, env=marked, log=out, on_line=lambda _: None, kills_others=others
            )
        except CommandError as error:  # the values of variables stand in no message
            argv = error.argv if error.argv in {*steps.before, steps.trial} else steps.main
            raise CommandError(argv, error.returncode, error.output) from None
        except (KeyboardInterrupt, InterruptedBuildError):
            raise InterruptedBuildError(
                f"interrupted: {container.name} was stopped; run the same command again to go on from there",
                code="container-stopped",
            ) from None
        finally:
            reaper.end_marked(mark, steps.after, environ)


def _filled(steps: ContainerCommands, environ: Mapping[str, str]) -> list[str]:
    """Return the main command; buildah takes no variables from its own environment: it gets the values."""
    return [
        f"{word}={environ.get(word, '')}"
        if steps.before and before == "--env" and "=" not in word
        else word
        for before, word in pairwise(("", *steps.main))
    ]


def describe_image(engine: Engine, image: str, environ: Mapping[str, str]) -> str | None:
    """Return what an engine says of an image, JSON without spaces; None where it has none of that name."""
    question = ("inspect", "--type", "image") if engine.name == "buildah" else ("image", "inspect")
    with contextlib.suppress(CommandError):
        return "".join(_answer(engine.command(*question, image), environ).split())
    return None

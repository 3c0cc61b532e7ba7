"""Container engines: find the engine that answers, and run a program in a container by it.

Docker, podman and buildah are engines. Docker's containers are children of its daemon; those of the
other two are processes that the command itself starts.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TextIO

from torchmill.core import process, reaper
from torchmill.core.errors import HostError, InterruptedBuildError, require_choice
from torchmill.core.package_data import read_table_beside
from torchmill.core.process import CommandError

ARCHES_OF_ENGINES = {"x86_64": "amd64", "aarch64": "arm64"}  # our names -> theirs
PLATFORMS = {arch: f"linux/{name}" for arch, name in ARCHES_OF_ENGINES.items()}
_ENGINES = read_table_beside(__file__, "engines.toml")  # in order of preference
# For an engine to print its version: its daemon may run on another machine.
ANSWER_TIMEOUT_SECONDS = 60.0
INSTALL = (  # advice on how to get an engine
    "Debian and Ubuntu: `apt-get install podman` or `buildah`; Fedora: `dnf install podman`; "
    "macOS: Docker Desktop, or `brew install podman` and `podman machine init --now`"
)
# Options of podman and buildah that store each layer of an image as a whole copy. That works even
# if the kernel offers no overlay, as in a container without privileges.
COPIES = ("--storage-driver", "vfs")
CROSS_LABEL = "torchmill.cross-compilers"  # of an image: the arch its cross compilers run on
# The variable that marks all processes of a container, so that the reaper finds those of buildah. A
# build passes it on to its compilers.
MARK = "INSIDE_TORCHMILL"


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine that answers."""

    name: str  # "docker", "podman", "buildah"
    program: str  # its path
    options: tuple[str, ...]  # before every verb: ("--storage-driver", "vfs")
    version: str  # of the program; of the daemon, if it has one

    def command(self, verb: str, *arguments: str) -> tuple[str, ...]:
        """Return the command line of a verb ("build", "run") with its arguments."""
        return (self.program, *self.options, verb, *arguments)


def find_engine(environ: Mapping[str, str], requested: str = "") -> Engine:
    """Return the requested engine, or else the first of docker, podman and buildah that answers.

    `environ` is the environment whose PATH is searched and in which the engine runs. Raises
    ConfigError if the requested name is not one of these three, HostError if no engine answers.
    """
    names = tuple(_ENGINES)
    if requested:
        code = "unknown-container-engine"
        names = (require_choice("container engine", requested, _ENGINES, code),)
    complaints: dict[str, str] = {}  # of those that are installed and do not answer
    for name in names:
        program = shutil.which(name, path=environ.get("PATH", ""))
        if program is None:
            continue
        for options in _storage_options(name, environ):
            try:
                version = _read_version(name, program, options, environ)
            except CommandError as error:
                last_line = error.output.strip().rpartition("\n")[2]
                complaints.setdefault(name, last_line or str(error))
            except HostError as error:
                complaints.setdefault(name, str(error))
            else:
                return Engine(name, program, options, version)
    raise _no_engine(names, complaints)


def _storage_options(name: str, environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the options to try with an engine, one after the other, until it answers."""
    if name == "docker":
        return [()]
    driver = environ.get("STORAGE_DRIVER", "")
    if driver:
        return [("--storage-driver", driver)]  # buildah 1.28 does not read the variable itself
    return [(), COPIES]


def _read_version(
    name: str, program: str, options: tuple[str, ...], environ: Mapping[str, str]
) -> str:
    """Return an engine's version, from a question that it answers only if it can work.

    Raises CommandError or HostError if it does not answer.
    """
    answer = _ask((program, *options, *_ENGINES[name]["version"]), environ)
    if name != "buildah":
        return answer
    # `buildah info` has no version: "buildah version 1.28.2 (image-spec …)" is of --version.
    words = _ask((program, "--version"), environ).split()
    version_words = words[2:3]
    return version_words[0] if version_words else "unknown"


def _ask(argv: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return what an engine's command prints.

    Raises CommandError if it fails, HostError if it does not answer in time.
    """
    return process.ask(argv, environ, ANSWER_TIMEOUT_SECONDS).strip()


def _no_engine(names: tuple[str, ...], complaints: Mapping[str, str]) -> HostError:
    """Return the error that says why none of the named engines can be used, and how to get one.

    `complaints` are the answers of those that are installed.
    """
    code = "no-container-engine"
    if not complaints:
        subject = "none of docker, podman and buildah is"
        if len(names) == 1:
            subject = f"{names[0]} is not"
        install = f"install a container engine ({INSTALL})"
        return HostError(f"{subject} on PATH", code=code, cure=install)
    clauses = []
    for name, complaint in complaints.items():
        clauses.append(f"{name} is installed but does not answer ({complaint})")
    first = next(iter(complaints))
    cure = "start its daemon" if first == "docker" else f"make `{first} info` work"
    alternative = f", or install one that needs no daemon ({INSTALL})"
    if len(names) == 1:
        alternative = ""  # the user requested this one
    return HostError("; ".join(clauses), code=code, cure=f"{cure}{alternative}")


@dataclass(frozen=True, slots=True)
class EngineHost:
    """The machine on which the containers of an engine run."""

    arch: str  # of its processor: "x86_64"
    is_rootless: bool  # root in a container is the user who started it
    is_remote: bool  # it is another machine, which does not see our files


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this machine that a container sees."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """One run of a program in a container."""

    name: str
    image: str
    arch: str
    argv: tuple[str, ...]
    mounts: tuple[Mount, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    # Names of variables that the engine takes from its own environment, so that their values, which
    # may be secret, stand in no command line.
    passed: tuple[str, ...] = ()
    # Numbers of this machine's user and group; None: the user that the image names.
    user: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ContainerCommands:
    """The commands of one run, in their order."""

    creation: tuple[tuple[str, ...], ...]  # create the container; () if `main` does
    trial: tuple[str, ...]  # prints the machine (`uname -m`) that a program in the container sees
    main: tuple[str, ...]  # runs the program
    removal: tuple[str, ...]  # ends and removes the container; fails if it is gone


def container_commands(
    engine: Engine, engine_host: EngineHost, container: Container
) -> ContainerCommands:
    """Return the commands by which an engine runs a program in a container."""
    options = (
        *_user_options(engine, engine_host, container),
        *_mount_options(engine, container),
        *_variable_options(container),
    )
    # A build is cut off from the network by a namespace of its own (cell/sandbox.py). In a
    # container of docker or buildah nobody can make one without this capability, and only root can
    # have it; in podman's everybody can.
    namespaces = ("--cap-add", "CAP_SYS_ADMIN")
    platform = ("--platform", PLATFORMS[container.arch])
    if engine.name == "buildah":
        return _buildah_commands(engine, container, platform, (*namespaces, *options))
    init: tuple[str, ...] = ()
    if engine.name == "docker":
        # --init makes signals arrive. Podman's program for it is a package of its own, which is
        # often missing.
        init = ("--init", *namespaces, "--security-opt", "no-new-privileges")
    local = (*platform, "--pull", "never")
    identity = ("--name", container.name, "--network", "host", "--security-opt", "label=disable")
    program, *arguments = container.argv
    entry = ("--entrypoint", program, container.image, *arguments)
    uname = ("--entrypoint", "uname", container.image, "-m")  # prints the machine
    return ContainerCommands(
        creation=(),
        trial=engine.command("run", "--rm", *local, *uname),
        main=engine.command("run", "--rm", *init, *local, *identity, *options, *entry),
        removal=engine.command("rm", "--force", container.name),
    )


def _buildah_commands(
    engine: Engine, container: Container, platform: tuple[str, ...], options: tuple[str, ...]
) -> ContainerCommands:
    """Return buildah's commands: it runs programs in a container that exists already."""
    name = container.name
    isolation = ("--isolation", "chroot")  # needs no more than the right to mount
    create = engine.command("from", "--name", name, *platform, "--pull-never", container.image)
    return ContainerCommands(
        creation=(create,),
        trial=engine.command("run", *isolation, name, "--", "uname", "-m"),
        main=engine.command("run", *isolation, *options, name, "--", *container.argv),
        removal=engine.command("rm", name),
    )


def _user_options(engine: Engine, engine_host: EngineHost, container: Container) -> tuple[str, ...]:
    """Return the options with which the files of the container's program belong to our user."""
    if container.user is None:
        return ()
    user, group = container.user
    numbers = f"{user}:{group}"
    if engine.name == "podman":
        if engine_host.is_rootless:
            return ("--userns", "keep-id", "--user", numbers)
        return ("--user", numbers)
    # Root in such a container is the user who started it.
    if engine_host.is_rootless or engine.name == "buildah":
        return ("--user", "0:0")
    return ("--user", numbers)


def _mount_options(engine: Engine, container: Container) -> list[str]:
    """Return the options that show files of this machine to a container."""
    # Without ",rw" buildah mounts everything read-only.
    writable_suffix = ",rw" if engine.name == "buildah" else ""
    words = []
    for mount in container.mounts:
        suffix = writable_suffix if mount.writable else ",readonly"
        words += ["--mount", f"type=bind,source={mount.source},target={mount.target}{suffix}"]
    return words


def _variable_options(container: Container) -> list[str]:
    """Return the options that set a container's variables, and its mark among them."""
    words = []
    for name, value in container.variables.items():
        words += ["--env", f"{name}={value}"]
    words += ["--env", f"{MARK}={container.name}"]
    for name in container.passed:
        words += ["--env", name]
    return words


def find_engine_host(engine: Engine, environ: Mapping[str, str], system: str) -> EngineHost:
    """Return the machine on which an engine runs its containers, as the engine describes it.

    `environ` is the environment in which the engine is asked, and `system` is this machine's:
    "linux", "macos". Raises HostError if the answer is not clear.
    """
    try:
        answer = _ask(engine.command(*_ENGINES[engine.name]["host"]), environ)
        machine, is_rootless, is_remote = json.loads(answer)
    except (CommandError, ValueError) as error:
        raise HostError(
            f"{engine.name} does not say where its containers run ({error})",
            code="container-engine-unclear",
            cure=f"make `{engine.name} info` work",
        ) from None
    if engine.name == "docker":
        # Its second value is the list of its security options, and it does not tell whether its
        # daemon runs elsewhere.
        security_options = is_rootless or ()
        is_rootless = any("name=rootless" in option for option in security_options)
        daemon = _docker_daemon(engine, environ)
        is_remote = daemon.startswith(("tcp://", "ssh://", "http://", "https://"))
    # Podman and buildah print the architecture as uname does, or as images name it ("arm64").
    arch = machine
    for our_name, docker_name in ARCHES_OF_ENGINES.items():
        if machine == docker_name:
            arch = our_name
    # On a Mac every engine has a virtual machine, which sees the user's folders.
    return EngineHost(
        arch, is_rootless=bool(is_rootless), is_remote=bool(is_remote) and system == "linux"
    )


def _docker_daemon(engine: Engine, environ: Mapping[str, str]) -> str:
    """Return the address of docker's daemon; "" if it is not known."""
    daemon = environ.get("DOCKER_HOST", "")
    if daemon:
        return daemon
    try:
        template = "{{.Endpoints.docker.Host}}"
        return _ask(engine.command("context", "inspect", "--format", template), environ)
    except CommandError:
        return ""


def run_container(
    container: Container,
    steps: ContainerCommands,
    environ: Mapping[str, str],
    out: TextIO,
    check_machine: Callable[[str], None],
) -> None:
    """Run a program in a container, write its output to `out`, and remove the container.

    `environ` is the environment of the engine. `check_machine` gets the machine that programs in
    the container see ("aarch64"), and raises an error if it is the wrong one. If this process is
    killed, the reaper, a process that outlives it, ends the container. Raises HostError if the
    engine cannot run it, CommandError if the program fails, InterruptedBuildError if the user stops
    it.
    """
    # Buildah alone has commands before. It has no daemon: the programs in its container are
    # processes of this machine, which the variable marks, and buildah lives as long as they do.
    is_buildah = bool(steps.creation)
    mark = {MARK: container.name} if is_buildah else {}
    engine_environ = {**environ, **mark}
    with process.interrupt_on_sigterm(), reaper.watch_container(mark, steps.removal, environ):
        try:
            for argv in steps.creation:
                process.capture(argv, env=engine_environ)
            check_machine(process.capture(steps.trial, env=engine_environ).strip())
            process.stream(
                _fill_in_values(steps, engine_environ),
                cwd=None,
                env=engine_environ,
                log=out,
                on_line=lambda _: None,
                kills_others=is_buildah,  # it stops the container's programs itself
            )
        except CommandError as error:
            argv = error.argv
            if argv not in (*steps.creation, steps.trial):
                # The main command that ran may have secret values of variables (_fill_in_values):
                # the message shows the command without them.
                argv = steps.main
            raise CommandError(argv, error.returncode, error.output) from None
        except (KeyboardInterrupt, InterruptedBuildError):
            raise InterruptedBuildError(
                f"interrupted: {container.name} was stopped; "
                "run the same command again to go on from there",
                code="container-stopped",
            ) from None
        finally:
            reaper.end_marked(mark, steps.removal, environ)


def _fill_in_values(steps: ContainerCommands, environ: Mapping[str, str]) -> list[str]:
    """Return the main command, with the values of variables if the engine is buildah.

    Buildah does not take the value of `--env NAME` from its own environment.
    """
    if not steps.creation:
        return list(steps.main)
    words = [steps.main[0]]
    for previous, word in pairwise(steps.main):
        if previous == "--env" and "=" not in word:
            words.append(f"{word}={environ.get(word, '')}")
        else:
            words.append(word)
    return words


def describe_image(engine: Engine, image: str, environ: Mapping[str, str]) -> str | None:
    """Return the description of an image, JSON without blanks; None if the engine lacks the image.

    Nothing is pulled. Raises HostError if the engine does not answer.
    """
    question = ("inspect", "--type", "image") if engine.name == "buildah" else ("image", "inspect")
    try:
        answer = _ask(engine.command(*question, image), environ)
    except CommandError:
        return None
    return "".join(answer.split())  # callers look for `"key":"value"` in it

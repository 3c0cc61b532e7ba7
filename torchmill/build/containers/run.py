"""Run one program in a container: the commands for each engine, and the run itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TextIO

from torchmill.build.containers import watch
from torchmill.build.containers.engine import Engine
from torchmill.core import process
from torchmill.core.errors import HostError, InterruptedBuildError
from torchmill.core.process import CommandError

PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
MARK = "INSIDE_TORCHMILL"  # the variable by which what runs in a container is known; builds keep it
_ARCHES = {"amd64": "x86_64", "arm64": "aarch64"}  # where an engine has another name for it
_QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "docker": ("info", "--format", "[{{json .Architecture}},{{json .SecurityOptions}},false]"),
    "podman": (
        "info",
        "--format",
        "[{{json .Host.Arch}},{{json .Host.Security.Rootless}},{{json .Host.ServiceIsRemote}}]",
    ),
    "buildah": ("info", "--format", '["{{.host.arch}}",{{.host.rootless}},false]'),
}


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
    passed: tuple[str, ...] = ()  # variables from the engine's own environment: nobody sees their values
    user: tuple[int, int] | None = None  # numbers of user and group here; None: whoever the image names


@dataclass(frozen=True, slots=True)
class ContainerCommands:
    """The commands of one run, in their order."""

    before: tuple[tuple[str, ...], ...]
    trial: tuple[str, ...]  # says which machine a program in the container believes to be on
    main: tuple[str, ...]
    after: tuple[str, ...]  # ends the container and removes it; fails where it is gone


def container_commands(engine: Engine, engine_host: EngineHost, container: Container) -> ContainerCommands:
    """Return the commands with which an engine runs a program in a container."""
    options = (*_user(engine, engine_host, container), *_mounts_and_variables(engine, container))
    name, image = container.name, container.image
    # By namespaces a build is cut off from the network (build/sandbox.py). These engines let nobody make them without
    # this right, which a user other than root cannot take up; podman lets everybody.
    namespaces = ("--cap-add", "CAP_SYS_ADMIN")
    platform = ("--platform", PLATFORMS[container.arch])
    if engine.name == "buildah":  # which runs programs in a container that was made before
        isolation = ("--isolation", "chroot")  # needs no more than the right to mount
        return ContainerCommands(
            before=(engine.command("from", "--name", name, *platform, "--pull-never", image),),
            trial=engine.command("run", *isolation, name, "--", "uname", "-m"),
            main=engine.command("run", *isolation, *namespaces, *options, name, "--", *container.argv),
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
        main=engine.command("run", "--rm", *own, *local, *outside, *options, "--entrypoint", program, image, *words),
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
    writable = ",rw" if engine.name == "buildah" else ""  # which mounts read-only unless told otherwise
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
        arch, rootless, remote = json.loads(process.capture(engine.command(*_QUESTIONS[engine.name])))
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
                question = engine.command("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
                daemon = process.capture(question)
        remote = daemon.startswith(("tcp://", "ssh://", "http://", "https://"))
    # On a Mac every engine has a virtual machine, which sees the user's folders.
    return EngineHost(_ARCHES.get(arch, arch), bool(rootless), bool(remote) and system == "linux")


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
    with process.interrupt_on_sigterm(), watch.watch_container(mark, steps.after, environ) as ended:
        try:
            for argv in steps.before:
                process.capture(argv, env=marked)
            assure(process.capture(steps.trial, env=marked).strip())
            process.stream(_filled(steps, marked), cwd=None, env=marked, log=out, on_line=lambda _: None)
        except CommandError as error:  # the values of variables stand in no message
            argv = error.argv if error.argv in {*steps.before, steps.trial} else steps.main
            raise CommandError(argv, error.returncode, error.output) from None
        except (KeyboardInterrupt, InterruptedBuildError):
            raise InterruptedBuildError(
                f"interrupted: {container.name} was stopped", code="container-stopped"
            ) from None
        finally:
            watch.end_container(mark, steps.after, environ)
            ended()


def _filled(steps: ContainerCommands, environ: Mapping[str, str]) -> list[str]:
    """Return the main command; buildah takes no variables from its own environment: it gets the values."""
    return [
        f"{word}={environ.get(word, '')}" if steps.before and before == "--env" and "=" not in word else word
        for before, word in pairwise(("", *steps.main))
    ]


def has_image(engine: Engine, image: str, environ: Mapping[str, str]) -> bool:
    """Tell whether an engine has an image."""
    question = ("inspect", "--type", "image") if engine.name == "buildah" else ("image", "inspect")
    try:
        process.capture(engine.command(*question, image), env=environ)
    except CommandError:
        return False
    return True

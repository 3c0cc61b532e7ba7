"""Run one program in a container: the commands for each engine, and the run itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
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
    passed: tuple[
        str, ...
    ] = ()  # variables that the engine takes from its own environment: nobody sees their values
    user: tuple[int, int] | None = None  # numbers of user and group here; None: whoever the image names


@dataclass(frozen=True, slots=True)
class ContainerCommands:
    """The commands of one run, in their order."""

    before: tuple[tuple[str, ...], ...]
    trial: tuple[str, ...]  # says which machine a program in the container believes to be on
    main: tuple[str, ...]
    after: tuple[str, ...]  # ends the container and removes it; fails where it is gone


def container_commands(engine: Engine, ground: EngineHost, container: Container) -> ContainerCommands:
    """Return what an engine is told to run a program in a container."""
    options = (*_user(engine, ground, container), *_mounts(engine, container), *_variables(container))
    if engine.name == "buildah":
        return _of_buildah(engine, container, options)
    platform = ("--platform", PLATFORMS[container.arch], "--pull", "never")
    name = ("--name", container.name, "--network", "host", "--security-opt", "label=disable")
    return ContainerCommands(
        before=(),
        trial=engine.command("run", "--rm", *platform, "--entrypoint", "uname", container.image, "-m"),
        main=engine.command(
            "run", "--rm", *_init(engine), *platform, *name, *options,
            "--entrypoint", container.argv[0], container.image, *container.argv[1:],
        ),
        after=engine.command("rm", "--force", container.name),
    )  # fmt: skip


def _of_buildah(engine: Engine, container: Container, options: tuple[str, ...]) -> ContainerCommands:
    """Return what buildah is told, which runs programs in a container that was made before."""
    inside = ("--isolation", "chroot")  # needs no more than the right to mount
    platform = ("--platform", PLATFORMS[container.arch], "--pull-never")
    return ContainerCommands(
        before=(engine.command("from", "--name", container.name, *platform, container.image),),
        trial=engine.command("run", *inside, container.name, "--", "uname", "-m"),
        main=engine.command("run", *inside, *options, container.name, "--", *container.argv),
        after=engine.command("rm", container.name),
    )


def _init(engine: Engine) -> tuple[str, ...]:
    """Return what makes signals arrive; podman's program for it is often not installed."""
    return ("--init",) if engine.name == "docker" else ()


def _user(engine: Engine, ground: EngineHost, container: Container) -> tuple[str, ...]:
    """Return what makes the files of the container's program those of our user."""
    if container.user is None:
        return ()
    user = ":".join(map(str, container.user))
    if engine.name == "podman":
        return ("--userns", "keep-id", "--user", user) if ground.rootless else ("--user", user)
    return ("--user", "0:0" if ground.rootless or engine.name == "buildah" else user)


def _mounts(engine: Engine, container: Container) -> tuple[str, ...]:
    words: list[str] = []
    writable = ",rw" if engine.name == "buildah" else ""  # which mounts read-only where nothing is said
    for one in container.mounts:
        ending = writable if one.writable else ",readonly"
        words += ["--mount", f"type=bind,source={one.source},target={one.target}{ending}"]
    return tuple(words)


def _variables(container: Container) -> tuple[str, ...]:
    told = [f"{name}={value}" for name, value in {**container.variables, MARK: container.name}.items()]
    return tuple(word for one in (*told, *container.passed) for word in ("--env", one))


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
        remote = _address(engine, environ).startswith(("tcp://", "ssh://", "http://", "https://"))
    # On a Mac every engine has a virtual machine, which sees the user's folders.
    return EngineHost(_ARCHES.get(arch, arch), bool(rootless), bool(remote) and system == "linux")


def _address(engine: Engine, environ: Mapping[str, str]) -> str:
    """Return where docker's daemon is asked."""
    if environ.get("DOCKER_HOST"):
        return environ["DOCKER_HOST"]
    with contextlib.suppress(CommandError):
        return process.capture(
            engine.command("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
        ).strip()
    return ""


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
            _stream(steps, marked, out)
        except (KeyboardInterrupt, InterruptedBuildError):
            raise InterruptedBuildError(f"interrupted: {container.name} was stopped") from None
        finally:
            watch.end_container(mark, steps.after, environ)
            ended()


def _stream(steps: ContainerCommands, environ: Mapping[str, str], out: TextIO) -> None:
    """Run the program; the values of variables stand in no message."""
    argv = _filled(steps.main, environ) if steps.before else steps.main
    try:
        process.stream(argv, cwd=None, env=environ, log=out, on_line=lambda _: None)
    except CommandError as error:
        raise CommandError(steps.main, error.returncode, error.output) from None


def _filled(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return buildah's words with the values of variables: it takes none from its own environment."""
    return [
        f"{word}={environ.get(word, '')}" if before == "--env" and "=" not in word else word
        for before, word in pairwise(("", *argv))
    ]


def has_image(engine: Engine, image: str, environ: Mapping[str, str]) -> bool:
    """Tell whether an engine has an image."""
    question = ("inspect", "--type", "image") if engine.name == "buildah" else ("image", "inspect")
    try:
        process.capture(engine.command(*question, image), env=environ)
    except CommandError:
        return False
    return True


def find_unmountable(paths: Sequence[str]) -> str | None:
    """Return the first of some paths that no engine can be told to mount; None where all can be."""
    return next((path for path in paths if "," in path or '"' in path), None)

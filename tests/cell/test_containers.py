"""Container engines: which one answers, the commands of a run and how it ends."""

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.cell.containers import engine
from torchmill.cell.containers.engine import (
    CROSS_LABEL,
    Container,
    Engine,
    EngineHost,
    Mount,
    container_commands,
    describe_image,
    find_engine_host,
    run_container,
)
from torchmill.core.errors import HostError
from torchmill.core.process import CommandError

DEAD = 'echo "Cannot connect to the Docker daemon at unix:///var/run/docker.sock." >&2; exit 1'


def _program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_docker_is_taken_where_its_daemon_answers(tmp_path: Path) -> None:
    _program(tmp_path, "docker", '[ "$1" = version ] && echo 28.2.2')
    _program(tmp_path, "podman", "echo 5.4.0")
    answering = engine.find_engine({"PATH": str(tmp_path)})
    assert answering == engine.Engine("docker", str(tmp_path / "docker"), (), "28.2.2")
    assert answering.command("build", "--tag", "a") == (
        str(tmp_path / "docker"),
        "build",
        "--tag",
        "a",
    )


def test_a_client_without_a_daemon_is_passed_over(tmp_path: Path) -> None:
    _program(tmp_path, "docker", DEAD)
    _program(
        tmp_path, "buildah", '[ "$1" = info ] || echo "buildah version 1.28.2 (image-spec 1.0)"'
    )
    answering = engine.find_engine({"PATH": str(tmp_path)})
    assert (answering.name, answering.version, answering.options) == ("buildah", "1.28.2", ())


def test_a_storage_of_copies_is_taken_where_the_kernel_has_no_other(tmp_path: Path) -> None:
    answers = (
        '--version) echo "buildah version 1.28.2" ;; "--storage-driver vfs info"*) ;; *) exit 1 ;;'
    )
    _program(tmp_path, "buildah", f'case "$*" in {answers} esac')
    assert engine.find_engine({"PATH": str(tmp_path)}).options == ("--storage-driver", "vfs")


def test_the_storage_that_a_user_names_is_passed_on(tmp_path: Path) -> None:
    _program(tmp_path, "podman", 'echo "$2"')
    answering = engine.find_engine({"PATH": str(tmp_path), "STORAGE_DRIVER": "btrfs"})
    assert (answering.options, answering.version) == (("--storage-driver", "btrfs"), "btrfs")


def test_no_engine_names_the_three_and_how_to_install_one(tmp_path: Path) -> None:
    with pytest.raises(HostError) as error:
        engine.find_engine({"PATH": str(tmp_path)})
    for word in ("docker", "podman", "buildah", "apt-get install", "dnf install", "brew install"):
        assert word in str(error.value)


def test_an_engine_that_does_not_answer_is_told_with_its_words(tmp_path: Path) -> None:
    _program(tmp_path, "docker", DEAD)
    with refused("no-container-engine") as caught:
        engine.find_engine({"PATH": str(tmp_path)}, "docker")
    assert "docker is installed but does not answer (Cannot connect" in str(caught.value)
    assert str(caught.value).endswith("start its daemon")
    assert isinstance(caught.value, HostError)
    assert caught.value.cure == "start its daemon"
    with refused("no-container-engine") as caught:
        engine.find_engine({"PATH": str(tmp_path)})
    assert "or install one that needs no daemon" in str(caught.value)


def test_an_engine_that_is_silent_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ANSWER_TIMEOUT_SECONDS", 0.2)
    _program(tmp_path, "docker", "exec /bin/sleep 60")
    with refused("no-container-engine") as caught:
        engine.find_engine({"PATH": str(tmp_path)}, "docker")
    assert "did not answer within 0.2 s" in str(caught.value)


def test_the_engine_that_is_asked_for_is_not_replaced(tmp_path: Path) -> None:
    _program(tmp_path, "docker", "echo 28")
    with refused("no-container-engine") as caught:
        engine.find_engine({"PATH": str(tmp_path)}, "podman")
    assert str(caught.value).startswith("podman is not on PATH")
    with refused("unknown-container-engine"):
        engine.find_engine({"PATH": str(tmp_path)}, "nerdctl")


DOCKER = Engine("docker", "/usr/bin/docker", (), "27.5")
PODMAN = Engine("podman", "/usr/bin/podman", ("--storage-driver", "vfs"), "4.3.1")
BUILDAH = Engine("buildah", "/usr/bin/buildah", (), "1.28.2")
LOCAL = EngineHost("x86_64", is_rootless=False, is_remote=False)
ROOTLESS = EngineHost("x86_64", is_rootless=True, is_remote=False)
CONTAINER = Container(
    name="torchmill-1",
    image="debian-arm64",
    arch="aarch64",
    argv=("/bin/sh", "/suite/inside.sh", "wheel-3.11-cpu"),
    mounts=(
        Mount("/home/me/suite", "/suite"),
        Mount("/home/me/dist", "/torchmill/dist", writable=True),
    ),
    variables={"TORCHMILL_HOME": "/torchmill"},
    passed=("PIP_INDEX_URL",),
    user=(1000, 100),
)

GIVEN = (
    "--mount type=bind,source=/home/me/suite,target=/suite,readonly "
    "--mount type=bind,source=/home/me/dist,target=/torchmill/dist{} "
    "--env TORCHMILL_HOME=/torchmill --env INSIDE_TORCHMILL=torchmill-1 --env PIP_INDEX_URL"
)


def lines(engine: Engine, engine_host: EngineHost = LOCAL) -> list[str]:
    commands = container_commands(engine, engine_host, CONTAINER)
    return [
        " ".join(argv)
        for argv in (*commands.creation, commands.trial, commands.main, commands.removal)
    ]


def test_docker() -> None:
    assert lines(DOCKER) == [
        "/usr/bin/docker run --rm --platform linux/arm64 --pull never --entrypoint uname debian-arm64 -m",
        (
            "/usr/bin/docker run --rm --init --cap-add CAP_SYS_ADMIN --security-opt no-new-privileges "
            "--platform linux/arm64 --pull never --name torchmill-1 "
            f"--network host --security-opt label=disable --user 1000:100 {GIVEN.format('')} "
            "--entrypoint /bin/sh debian-arm64 /suite/inside.sh wheel-3.11-cpu"
        ),
        "/usr/bin/docker rm --force torchmill-1",
    ]


def test_podman_keeps_who_the_user_is() -> None:
    main = lines(PODMAN, ROOTLESS)[1]
    assert main.startswith(
        "/usr/bin/podman --storage-driver vfs run --rm --platform linux/arm64 --pull never "
    )
    assert "--userns keep-id --user 1000:100 " in main
    assert "--init" not in main, "its program for it is a package of its own"
    assert "--userns" not in lines(PODMAN)[1]


def test_root_is_the_user_where_an_engine_has_no_rights_of_its_own() -> None:
    assert " --user 0:0 " in lines(DOCKER, ROOTLESS)[1]
    assert " --user 0:0 " in lines(BUILDAH, ROOTLESS)[2]


def test_buildah_runs_in_a_container_that_it_made_before() -> None:
    assert lines(BUILDAH) == [
        "/usr/bin/buildah from --name torchmill-1 --platform linux/arm64 --pull-never debian-arm64",
        "/usr/bin/buildah run --isolation chroot torchmill-1 -- uname -m",
        (
            f"/usr/bin/buildah run --isolation chroot --cap-add CAP_SYS_ADMIN --user 0:0 {GIVEN.format(',rw')} "
            "torchmill-1 -- /bin/sh /suite/inside.sh wheel-3.11-cpu"
        ),
        "/usr/bin/buildah rm torchmill-1",
    ]


def saying(folder: Path, name: str, script: str) -> Engine:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return Engine(name, str(program), (), "1")


SAID = {  # as the engines write it, by what they are asked here
    "docker": '["aarch64",["name=seccomp,profile=default","name=rootless"],false]',
    "podman": '["arm64",true,false]',
    "buildah": '["arm64",true,false]',
}


@pytest.mark.parametrize("name", SAID)
def test_an_engine_says_where_it_runs(tmp_path: Path, name: str) -> None:
    engine = saying(tmp_path, name, f"[ $1 = info ] && echo '{SAID[name]}'")
    assert find_engine_host(engine, {}, "linux") == EngineHost(
        "aarch64", is_rootless=True, is_remote=False
    )


def test_an_engine_on_another_machine_is_known(tmp_path: Path) -> None:
    docker = saying(tmp_path, "docker", "[ $1 = info ] && echo '[\"x86_64\",null,false]'")
    local = find_engine_host(docker, {"DOCKER_HOST": "unix:///run/docker.sock"}, "linux")
    assert local == EngineHost("x86_64", is_rootless=False, is_remote=False)
    assert find_engine_host(docker, {"DOCKER_HOST": "ssh://me@arm"}, "linux").is_remote
    script = (
        "case $1 in info) echo '[\"aarch64\",[],false]' ;; context) echo tcp://arm:2376 ;; esac"
    )
    assert find_engine_host(saying(tmp_path, "docker", script), {}, "linux").is_remote
    podman = saying(tmp_path, "podman", "echo '[\"arm64\",true,true]'")
    assert find_engine_host(podman, {}, "linux").is_remote
    assert not find_engine_host(podman, {}, "macos").is_remote, (
        "its own virtual machine sees the user's files"
    )


@pytest.mark.parametrize("script", ["exit 1", "echo nothing"])
def test_an_engine_that_does_not_say_it(tmp_path: Path, script: str) -> None:
    with refused("container-engine-unclear"):
        find_engine_host(saying(tmp_path, "podman", script), {}, "linux")


ENGINE = """\
echo "$*" >> {log}
case "$*" in
  *" -m") uname -m ;;
  from*) [ -z "$BROKEN" ] || exit 125 ;;
  *inside*) echo building >&2; {body} ;;
esac"""


def ran(
    tmp_path: Path, body: str, **variables: str
) -> tuple[str, list[str], type[Exception] | None]:
    """Run with a program in buildah's place; return what it said, its orders, and what was raised."""
    log = tmp_path / "orders"
    engine = saying(tmp_path, "buildah", ENGINE.format(log=log, body=body))
    steps = container_commands(engine, LOCAL, CONTAINER)
    out, raised = io.StringIO(), None
    try:
        run_container(CONTAINER, steps, {**os.environ, **variables}, out, lambda _: None)
    except CommandError as error:
        raised = type(error)
    return out.getvalue(), [line.split()[0] for line in log.read_text().splitlines()], raised


@pytest.mark.parametrize(("body", "raised"), [("exit 0", None), ("exit 1", CommandError)])
def test_a_container_is_removed_however_the_program_ends(
    tmp_path: Path, body: str, raised: type[Exception] | None
) -> None:
    assert ran(tmp_path, body) == ("building\n", ["from", "run", "run", "rm"], raised)


def test_a_container_that_cannot_be_made_runs_nothing(tmp_path: Path) -> None:
    assert ran(tmp_path, "exit 0", BROKEN="1") == ("", ["from", "rm"], CommandError)


def test_a_container_elsewhere_runs_nothing(tmp_path: Path) -> None:
    engine = saying(tmp_path, "buildah", ENGINE.format(log=tmp_path / "orders", body="exit 0"))

    def refuse(machine: str) -> None:
        raise HostError(machine, code="test-machine")

    with refused("test-machine") as caught:
        run_container(
            CONTAINER,
            container_commands(engine, LOCAL, CONTAINER),
            os.environ,
            io.StringIO(),
            refuse,
        )
    assert str(caught.value) == os.uname().machine
    orders = [line.split()[0] for line in (tmp_path / "orders").read_text().splitlines()]
    assert orders == ["from", "run", "rm"]


STOPPED = """\
import os, sys
from torchmill.cell.containers.engine import Container, Engine, EngineHost, Mount, container_commands, run_container
from torchmill.core.errors import InterruptedBuildError
program, image, arch, folder, *options = sys.argv[1:]
mounts = (Mount(folder, "/torchmill/dist", writable=True),)
container = Container(f"torchmill-{os.getpid()}", image, arch, ("/bin/sh", "inside", "waits"), mounts)
engine = Engine("buildah", program, tuple(options), "1")
steps = container_commands(engine, EngineHost(arch, False, False), container)
try:
    run_container(container, steps, os.environ, sys.stderr, lambda _: None)
except InterruptedBuildError as error:
    sys.exit(str(error))
"""


def to_be_stopped(engine: Engine, image: str, arch: str, folder: Path) -> subprocess.Popen[str]:
    """Start a container in a process of its own, with a folder in it for what the program there writes."""
    script = STOPPED.replace("buildah", engine.name)
    words = (
        sys.executable,
        "-c",
        script,
        engine.program,
        image,
        arch,
        str(folder),
        *engine.options,
    )
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + 30
    while not holds() and time.monotonic() < until:
        time.sleep(0.05)
    return holds()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_stopped_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    """The program in the container leaves a child behind that belongs to nobody, as QEMU's may."""
    log, child = tmp_path / "orders", tmp_path / "child"
    body = f"setsid sleep 600 >/dev/null 2>&1 & echo $! > {child}.new; mv {child}.new {child}; wait"
    engine = saying(tmp_path, "buildah", ENGINE.format(log=log, body=body))
    started = to_be_stopped(engine, "image", "aarch64", tmp_path)
    assert eventually(child.exists)
    started.send_signal(number)
    _, output = started.communicate(timeout=60)
    assert started.returncode == 1
    assert f"interrupted: torchmill-{started.pid} was stopped" in output
    status = Path(f"/proc/{child.read_text().strip()}/status")
    assert not status.exists() or "zombie" in status.read_text()
    assert log.read_text().splitlines()[-1] == f"rm torchmill-{started.pid}"


@pytest.mark.parametrize("name", ["buildah", "podman"])
def test_what_is_killed_leaves_nothing_running_either(tmp_path: Path, name: str) -> None:
    """A second process ends the container of one that cannot do so any more."""
    log, child = tmp_path / "orders", tmp_path / "child"
    body = f"setsid sleep 600 >/dev/null 2>&1 & echo $! > {child}.new; mv {child}.new {child}; wait"
    script = f"[ $1 != rm ] || [ {name} = buildah ] || kill $(cat {child})\n" + ENGINE.format(
        log=log, body=body
    )
    engine = saying(tmp_path, name, script)
    started = to_be_stopped(engine, "image", "aarch64", tmp_path)
    assert eventually(child.exists)
    started.kill()
    started.communicate()
    status = Path(f"/proc/{child.read_text().strip()}/status")
    assert eventually(lambda: not status.exists() or "zombie" in status.read_text())
    assert eventually(lambda: log.read_text().splitlines()[-1].startswith("rm "))


def test_buildah_gets_values_when_it_runs_and_no_message_has_them(tmp_path: Path) -> None:
    """It takes no variable from its own environment, unlike the others."""
    body = 'echo "$*" | grep -o "PIP_INDEX_URL=[^ ]*"; echo it failed; exit 3'
    engine = saying(tmp_path, "buildah", ENGINE.format(log=tmp_path / "orders", body=body))
    environ, out = os.environ | {"PIP_INDEX_URL": "https://me:secret@index"}, io.StringIO()
    with pytest.raises(CommandError) as raised:
        run_container(
            CONTAINER, container_commands(engine, LOCAL, CONTAINER), environ, out, lambda _: None
        )
    assert "PIP_INDEX_URL=https://me:secret@index" in out.getvalue()
    assert raised.value.returncode == 3
    assert "secret" not in str(raised.value)
    assert "secret" not in " ".join(raised.value.argv)


def test_what_a_container_is_told_is_no_secret() -> None:
    """Values that may be passwords are taken from the engine's environment, and stand in no command line."""
    for container_engine in (DOCKER, PODMAN, BUILDAH):
        words = container_commands(container_engine, LOCAL, CONTAINER).main
        assert words[words.index("PIP_INDEX_URL") - 1] == "--env"
        assert not [word for word in words if word.startswith("PIP_INDEX_URL=")]


PROGRAM = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
static volatile int asked;
static void hear(int number) { asked = number; }
static int until_asked_to_stop(void) {
    signal(SIGINT, hear);
    fclose(fopen("/torchmill/dist/waits", "w"));
    while (!asked) usleep(10000);
    usleep(500000);
    fclose(fopen("/torchmill/dist/put-away", "w"));
    return 1;
}
int main(int count, char **words) {
    struct utsname seen;
    if (strstr(words[0], "uname")) return uname(&seen) ? 1 : puts(seen.machine) < 0;
    if (count > 2 && !strcmp(words[2], "waits")) return until_asked_to_stop();
    printf("%s %s\n", getenv("PIP_INDEX_URL"), getenv("TORCHMILL_HOME"));
    printf("%d %d\n", fopen("/torchmill/dist/made", "w") != NULL, fopen("/suite/made", "w") != NULL);
    return count > 2 ? 7 : 0;
}
"""


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Make an image with one program that says what it sees, in a storage of its own."""
    program = shutil.which("buildah")
    if program is None or os.getuid() != 0:
        pytest.skip("needs buildah, and to be root")
    folder = tmp_path_factory.mktemp("buildah")
    (folder / "seen.c").write_text(PROGRAM)
    done = subprocess.run(["cc", "-static", "-o", folder / "seen", folder / "seen.c"], check=False)
    if done.returncode:
        pytest.skip("this compiler links no static program")
    options = (
        "--root",
        str(folder / "root"),
        "--runroot",
        str(folder / "run"),
        "--storage-driver",
        "vfs",
    )
    engine = Engine("buildah", program, options, "")
    for name in ("sh", "uname"):
        shutil.copy(folder / "seen", folder / name)
    for verb in (
        ("from", "--name", "making", "scratch"),
        ("copy", "making", str(folder / "sh"), str(folder / "uname"), "/bin/"),
        ("config", "--label", f"{CROSS_LABEL}=amd9", "making"),
        ("commit", "--quiet", "making", "seen"),
    ):
        order = subprocess.run(engine.command(*verb), capture_output=True, text=True, check=False)
        if order.returncode:
            pytest.skip(f"buildah does not work here: {order.stderr}")
    return engine


@pytest.mark.parametrize(("words", "code"), [((), None), (("fails",), 7)])
def test_a_real_engine_does_what_it_is_told(
    buildah: Engine, tmp_path: Path, words: tuple[str, ...], code: int | None
) -> None:
    """Mounts are writable where that is said and nowhere else, and a value comes from our environment."""
    folders = {name: tmp_path / name for name in ("suite", "dist")}
    for folder in folders.values():
        folder.mkdir()
    container = replace(
        CONTAINER,
        name=f"torchmill-{os.getpid()}",
        image="seen",
        arch={"arm64": "aarch64"}.get(os.uname().machine, os.uname().machine),
        argv=("/bin/sh", "inside", *words),
        mounts=(
            Mount(str(folders["suite"]), "/suite"),
            Mount(str(folders["dist"]), "/torchmill/dist", writable=True),
        ),
    )
    engine_host = find_engine_host(buildah, os.environ, "linux")
    assert engine_host.arch == container.arch
    described = describe_image(buildah, "seen", os.environ)
    assert described is not None
    assert f'"{CROSS_LABEL}":"amd9"' in described, "which the fixture's Dockerfile gives it"
    assert describe_image(buildah, "unseen", os.environ) is None
    out, seen, ended = io.StringIO(), list[str](), None
    environ = os.environ | {"PIP_INDEX_URL": "https://me:secret@index"}
    try:
        run_container(
            container,
            container_commands(buildah, engine_host, container),
            environ,
            out,
            seen.append,
        )
    except CommandError as error:
        ended = error.returncode
    assert seen == [os.uname().machine]
    assert out.getvalue().splitlines()[:2] == ["https://me:secret@index /torchmill", "1 0"]
    assert ended == code
    assert (folders["dist"] / "made").is_file()
    listing = subprocess.run(
        buildah.command("containers", "-q"), capture_output=True, text=True, check=True
    )
    assert len(listing.stdout.split()) == 1, "the one that the image was made in"


def test_what_runs_in_a_real_container_puts_its_files_away_when_it_is_stopped(
    buildah: Engine, tmp_path: Path
) -> None:
    """Asked to stop itself, buildah kills what runs in its container at once."""
    arch = {"arm64": "aarch64"}.get(os.uname().machine, os.uname().machine)
    with to_be_stopped(buildah, "seen", arch, tmp_path) as started:
        assert eventually((tmp_path / "waits").exists)
        started.send_signal(signal.SIGTERM)
        _, output = started.communicate(timeout=60)
    assert f"interrupted: torchmill-{started.pid} was stopped" in output
    assert (tmp_path / "put-away").exists()

"""An engine told to build an image: its command, and what is made of its failures."""

from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.build.containers import image
from torchmill.build.containers.engine import Engine
from torchmill.config.model import Facts
from torchmill.core.errors import BuildError


def _job(tmp_path: Path, script: str, name: str = "buildah", arch: str = "x86_64") -> image.ImageBuild:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return image.ImageBuild(
        Engine(name, str(program), (), "1"), tmp_path / "in", "localhost/a:1", arch, "x86_64"
    )


def test_buildah_asks_nothing_of_the_kernel_and_another_arch_is_named(tmp_path: Path) -> None:
    rest = ("--tag", "localhost/a:1", "--file", str(tmp_path / "in/Dockerfile"), str(tmp_path / "in"))
    ours = _job(tmp_path, "")
    assert ours.command[1:] == ("build", "--isolation", "chroot", *rest)
    other = _job(tmp_path, "", "podman", "aarch64")
    assert other.command[1:] == ("build", "--platform", "linux/arm64", *rest)


def test_steps_are_said_and_all_is_logged(tmp_path: Path) -> None:
    steps = ["STEP 1/2: FROM a", "[1/3] STEP 2/2: RUN b", "Step 2/2 : RUN b", "#7 [install 2/3] RUN c"]
    script = "[ $1 = images ] && echo '812 MB' && exit; printf '%s\\n' 'noise' " + " ".join(
        f"'{s}'" for s in steps
    )
    said: list[str] = []
    built = image.build_image(
        _job(tmp_path, script), tmp_path / "logs/a.log", {"PATH": "/bin:/usr/bin"}, said.append
    )
    assert built == "812 MB"
    assert said == steps
    assert (tmp_path / "logs/a.log").read_text().splitlines() == ["noise", *steps]


@pytest.mark.parametrize("before", ["", "#8 0.214 ", "0.214 "])
def test_a_base_that_a_step_refused_is_told_in_its_words(tmp_path: Path, before: str) -> None:
    script = (
        f"echo '{before}torchmill: the base image has no python3.10'; echo 'error: exit status 1'; exit 1"
    )
    with refused("base-image-refused") as caught:
        image.build_image(_job(tmp_path, script), tmp_path / "a.log", {"PATH": "/bin:/usr/bin"}, print)
    assert str(caught.value) == "localhost/a:1 was not built: the base image has no python3.10"


def test_another_failure_names_its_last_words_and_the_log(tmp_path: Path) -> None:
    script = "echo 'STEP 1/2: RUN echo \"torchmill: not this\"'; echo 'Error: no such image'; exit 125"
    with refused("image-build-failed") as caught:
        image.build_image(_job(tmp_path, script), tmp_path / "a.log", {"PATH": "/bin:/usr/bin"}, print)
    assert "not built: Error: no such image; " in str(caught.value)
    assert str(tmp_path / "a.log") in str(caught.value)


@pytest.mark.parametrize(
    "wrapping",
    [
        (
            "subprocess exited with status 100",
            'Error: building at STEP "RUN apt-get update": exit status 100',
        ),
        (
            "------",
            " > [2/9] RUN apt-get update:",
            "   5 |     RUN apt-get update",
            'ERROR: failed to solve: process "/bin/sh -c apt-get update" did not complete: exit code: 100',
        ),
        ("The command '/bin/sh -c apt-get update' returned a non-zero code: 100",),
    ],
)
def test_a_step_that_failed_is_told_in_its_own_words(tmp_path: Path, wrapping: tuple[str, ...]) -> None:
    said = ("E: Unable to locate package gcc-99", *wrapping)
    script = f"cat <<'END'\n{chr(10).join(said)}\nEND\nexit 1"
    with refused("image-build-failed") as caught:
        image.build_image(_job(tmp_path, script), tmp_path / "a.log", {"PATH": "/bin:/usr/bin"}, print)
    assert "not built: E: Unable to locate package gcc-99; " in str(caught.value)


def test_a_failure_that_is_known_is_told_with_its_cure(tmp_path: Path, shipped: Facts) -> None:
    script = (
        "echo 'Could not fetch URL x: [SSL: CERTIFICATE_VERIFY_FAILED]'; echo 'Error: exit status 1'; exit 1"
    )
    known = (
        r"certificate could not be verified: .* install `ca-certificates`.* of the image that --base names\)"
    )
    with pytest.raises(BuildError, match=known):
        image.build_image(
            _job(tmp_path, script), tmp_path / "a.log", {"PATH": "/bin:/usr/bin"}, print, shipped.causes
        )

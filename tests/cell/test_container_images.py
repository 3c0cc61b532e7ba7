"""Base images, and building an image with an engine."""

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.refusals import refused
from torchmill.cell.containers import image
from torchmill.cell.containers.engine import COPIES, Engine
from torchmill.cell.containers.image import manylinux_image, python_image, system_image, user_image
from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.config.images import ImageFacts

OURS = facts_reader.read_facts(Path(__file__).parents[2] / "build_configs").images
DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("glibc", "image"),
    [
        ("2.17", "manylinux2014_x86_64"),
        ("2.27", "manylinux2014_x86_64"),
        ("2.28", "manylinux_2_28_x86_64"),
        ("2.39", "manylinux_2_28_x86_64"),
        ("2.5", "manylinux2014_x86_64"),
        (None, "manylinux2014_x86_64"),
    ],
)
def test_a_manylinux_image_is_as_old_as_the_official_wheels(glibc: str | None, image: str) -> None:
    assert manylinux_image(OURS, "x86_64", glibc).image == f"quay.io/pypa/{image}"


def test_what_no_image_has_is_refused() -> None:
    with refused("no-base-image") as caught:
        python_image(OURS, "x86_64", "3.4")
    assert "Python 3.4; there is 3.10, 3.11" in str(caught.value)
    with refused("no-base-image"):
        system_image(OURS, "riscv64")
    with refused("no-base-image"):
        system_image(OURS, "x86_64", SpecifierSet("<4"))
    with refused("no-image-facts"):
        system_image(ImageFacts(), "x86_64")


@pytest.mark.parametrize(
    ("gcc", "pythons", "tag"),
    [
        (None, ("3.10",), "bookworm-slim"),
        (None, ("3.5", "3.6"), "20.04"),  # newer OpenSSLs stop them
        ("<7", ("3.5",), "16.04"),
        ("<8", ("3.5", "3.8"), "18.04"),
        (">=5,<10", ("3.8",), "20.04"),
        (">=6,<11.2", ("3.7",), "20.04"),  # 22.04 has 11.4
        (">=6,<12", ("3.10",), "22.04"),
        (">=6,<14", ("3.9",), "bookworm-slim"),
    ],
)
def test_a_distribution_is_as_old_as_compiler_and_pythons_want(
    gcc: str | None, pythons: tuple[str, ...], tag: str
) -> None:
    assert system_image(OURS, "x86_64", SpecifierSet(gcc) if gcc else None, pythons).tag == tag


def test_a_known_image_that_is_given_keeps_its_digest() -> None:
    debian = system_image(OURS, "x86_64")
    ubuntu = user_image(OURS, "docker.io/library/ubuntu:24.04", debian)
    assert ubuntu.distribution == "ubuntu"
    assert ubuntu.reference.startswith("docker.io/library/ubuntu@sha256:")


def test_another_digest_of_a_known_image_is_the_users_own() -> None:
    debian = system_image(OURS, "x86_64")
    base_image = user_image(OURS, f"docker.io/library/ubuntu:24.04@{DIGEST}", debian)
    assert (base_image.digest, base_image.distribution) == (DIGEST, "")
    assert base_image.reference == f"docker.io/library/ubuntu@{DIGEST}"


def test_what_is_given_is_expected_to_be_like_the_known_one() -> None:
    debian = system_image(OURS, "x86_64")
    assert user_image(OURS, "localhost:5000/a/b_c:1.0", debian) == replace(
        debian,
        image="localhost:5000/a/b_c",
        tag="1.0",
        digest="",
        distribution="",
        source="given with --base",
    )


@pytest.mark.parametrize(
    "reference", ["", "Debian", "a b", "a\nRUN evil", "a@sha256:12", "-a", "../x", "a:"]
)
def test_what_is_no_name_of_an_image_is_refused(reference: str) -> None:
    with refused("invalid-image-name"):
        user_image(OURS, reference, system_image(OURS, "x86_64"))


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("docker.io/library/alpine:3.20", "musl"),
        ("python:3.10-alpine3.19", "musl"),
        ("gcr.io/distroless/python3", "neither a shell"),
        ("scratch", "empty"),
    ],
)
def test_an_image_that_nothing_of_ours_runs_on_is_refused(reference: str, reason: str) -> None:
    with refused("unsupported-image") as caught:
        user_image(OURS, reference, system_image(OURS, "x86_64"))
    assert reason in str(caught.value)


def _job(
    tmp_path: Path, script: str, name: str = "buildah", arch: str = "x86_64"
) -> image.ImageBuild:
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return image.ImageBuild(
        Engine(name, str(program), (), "1"), tmp_path / "in", "localhost/a:1", arch, "x86_64"
    )


def test_buildah_asks_nothing_of_the_kernel_and_another_arch_is_named(tmp_path: Path) -> None:
    rest = (
        "--tag",
        "localhost/a:1",
        "--file",
        str(tmp_path / "in/Dockerfile"),
        str(tmp_path / "in"),
    )
    build = _job(tmp_path, "")
    assert build.command[1:] == ("build", "--isolation", "chroot", "--layers", *rest)
    copied = replace(
        build, engine=replace(build.engine, options=COPIES)
    )  # each layer would be a whole copy
    assert copied.command[1:] == (*COPIES, "build", "--isolation", "chroot", *rest)
    other = _job(tmp_path, "", "podman", "aarch64")
    assert other.command[1:] == ("build", "--platform", "linux/arm64", *rest)


def test_steps_are_said_and_all_is_logged(tmp_path: Path) -> None:
    steps = [
        "STEP 1/2: FROM a",
        "[1/3] STEP 2/2: RUN b",
        "Step 2/2 : RUN b",
        "#7 [install 2/3] RUN c",
    ]
    script = "[ $1 = images ] && echo '812 MB' && exit; printf '%s\\n' 'noise' " + " ".join(
        f"'{s}'" for s in steps
    )
    reported: list[str] = []
    built = image.build_image(
        _job(tmp_path, script), tmp_path / "logs/a.log", {"PATH": "/bin:/usr/bin"}, reported.append
    )
    assert built == "812 MB"
    assert reported == steps
    assert (tmp_path / "logs/a.log").read_text().splitlines() == ["noise", *steps]


@pytest.mark.parametrize("before", ["", "#8 0.214 ", "0.214 "])
def test_a_base_that_a_step_refused_is_told_in_its_words(tmp_path: Path, before: str) -> None:
    script = f"echo '{before}torchmill: the base image has no python3.10'; echo 'error: exit status 1'; exit 1"
    with refused("base-image-refused") as caught:
        image.build_image(
            _job(tmp_path, script), tmp_path / "a.log", {"PATH": "/bin:/usr/bin"}, print
        )
    assert str(caught.value) == "localhost/a:1 was not built: the base image has no python3.10"


def test_another_failure_names_its_last_words_and_the_log(tmp_path: Path) -> None:
    script = (
        "echo 'STEP 1/2: RUN echo \"torchmill: not this\"'; echo 'Error: no such image'; exit 125"
    )
    with refused("image-build-failed") as caught:
        image.build_image(
            _job(tmp_path, script), tmp_path / "a.log", {"PATH": "/bin:/usr/bin"}, print
        )
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
def test_a_step_that_failed_is_told_in_its_own_words(
    tmp_path: Path, wrapping: tuple[str, ...]
) -> None:
    output = ("E: Unable to locate package gcc-99", *wrapping)
    script = f"cat <<'END'\n{chr(10).join(output)}\nEND\nexit 1"
    with refused("image-build-failed") as caught:
        image.build_image(
            _job(tmp_path, script), tmp_path / "a.log", {"PATH": "/bin:/usr/bin"}, print
        )
    assert "not built: E: Unable to locate package gcc-99; " in str(caught.value)


def test_a_failure_that_is_known_is_told_with_its_cure(tmp_path: Path, shipped: Facts) -> None:
    script = "echo 'Could not fetch URL x: [SSL: CERTIFICATE_VERIFY_FAILED]'; echo 'Error: exit status 1'; exit 1"
    with refused("image-build-failed") as caught:
        image.build_image(
            _job(tmp_path, script),
            tmp_path / "a.log",
            {"PATH": "/bin:/usr/bin"},
            print,
            shipped.causes,
        )
    assert "certificate could not be verified" in str(caught.value)
    assert "ca-certificates" in str(caught.value)


def test_docker_is_told_the_machine_that_a_variable_could_change(tmp_path: Path) -> None:
    """Users of Macs set DOCKER_DEFAULT_PLATFORM=linux/amd64 for images that there are of no other machine."""
    words = _job(tmp_path, "", "docker").command
    assert words[2:4] == ("--platform", "linux/amd64")

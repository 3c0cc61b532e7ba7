"""Which base image is taken, and what may be given in its place."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.build.containers.image import base_image, manylinux_image, user_image
from torchmill.config import facts_reader
from torchmill.config.delivery_model import ImageFacts

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


def test_a_toolkit_or_a_python_that_no_image_has_is_refused_with_those_that_there_are() -> None:
    with refused("no-base-image") as caught:
        base_image(OURS, "cuda", "aarch64", toolkit="12.1")
    assert "CUDA 12.1; there is 11.7, 11.8" in str(caught.value)
    with refused("no-base-image"):
        base_image(OURS, "python", "x86_64", python="3.4")
    with refused("no-base-image"):
        base_image(OURS, "system", "riscv64")
    with refused("no-image-facts"):
        base_image(ImageFacts(), "system", "x86_64")


def test_a_known_image_that_is_given_keeps_its_digest() -> None:
    debian = base_image(OURS, "system", "x86_64")
    ubuntu = user_image(OURS, "docker.io/library/ubuntu:24.04", debian)
    assert ubuntu.distribution == "ubuntu"
    assert ubuntu.reference.startswith("docker.io/library/ubuntu@sha256:")


def test_another_digest_of_a_known_image_is_the_users_own() -> None:
    debian = base_image(OURS, "system", "x86_64")
    theirs = user_image(OURS, f"docker.io/library/ubuntu:24.04@{DIGEST}", debian)
    assert (theirs.digest, theirs.distribution) == (DIGEST, "")
    assert theirs.reference == f"docker.io/library/ubuntu@{DIGEST}"


def test_what_is_given_is_expected_to_be_like_the_known_one() -> None:
    debian = base_image(OURS, "system", "x86_64")
    assert user_image(OURS, "localhost:5000/a/b_c:1.0", debian) == replace(
        debian,
        image="localhost:5000/a/b_c",
        tag="1.0",
        digest="",
        distribution="",
        source="given with --base",
    )


@pytest.mark.parametrize("reference", ["", "Debian", "a b", "a\nRUN evil", "a@sha256:12", "-a", "../x", "a:"])
def test_what_is_no_name_of_an_image_is_refused(reference: str) -> None:
    with refused("invalid-image-name"):
        user_image(OURS, reference, base_image(OURS, "system", "x86_64"))


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
        user_image(OURS, reference, base_image(OURS, "system", "x86_64"))
    assert reason in str(caught.value)

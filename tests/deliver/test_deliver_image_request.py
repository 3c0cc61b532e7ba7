"""What image is wanted, and what is refused before anything is written."""

from pathlib import Path

import pytest

from torchmill.config import facts_reader
from torchmill.config.matrix import find_release
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.deliver.image import request
from torchmill.deliver.image.request import ImageOptions

OURS = facts_reader.read_facts(Path(__file__).parents[2] / "build_configs")
OLD, NEW = (find_release(OURS, "torch", version) for version in ("1.1.0", "1.13.1"))


def test_a_builder_has_all_pythons_of_its_release_and_a_runtime_one() -> None:
    builder = request.make_image_request(OURS, ImageOptions("builder", toolkit="11.8"), NEW, "x86_64")
    assert (builder.pythons, builder.variant, builder.purpose) == (NEW.pythons, "cu118", "development")
    assert builder.tag == "localhost/torch-builder:1.13.1-cu118-x86_64-development"
    assert request.make_image_request(OURS, ImageOptions("runtime"), NEW, "x86_64").pythons == ("3.11",)
    assert request.make_image_request(
        OURS, ImageOptions("builder", ("3.10", "3.9")), NEW, "x86_64"
    ).pythons == ("3.9", "3.10")


def test_a_mac_runs_linux_of_its_own_processor() -> None:
    found = request.make_image_request(OURS, ImageOptions("devcontainer", ("3.10",)), NEW, "arm64")
    assert (found.arch, found.name) == ("aarch64", "devcontainer-1.13.1-py3.10-aarch64")
    assert request.make_image_request(OURS, ImageOptions("devcontainer"), NEW, "amd64").arch == "x86_64"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (ImageOptions(""), "say which with --kind: builder, runtime, devcontainer"),
        (
            ImageOptions("bilder"),
            "unknown kind 'bilder'; there is builder, runtime, devcontainer; did you mean builder",
        ),
        (ImageOptions("builder", arch="arm64"), "unknown arch 'arm64'; there is x86_64, aarch64"),
        (ImageOptions("builder", toolkit="11.9"), r"unknown toolkit '11\.9'; there is 9\.0"),
        (ImageOptions("builder", purpose="fun"), "unknown purpose 'fun'; there is distribution, development"),
        (ImageOptions("runtime", purpose="development"), "--purpose is for builders"),
        (ImageOptions("builder", index="https://x"), "--index is for runtime images"),
        (ImageOptions("runtime", index="file:///x"), "--index 'file:///x': a container reaches http"),
        (ImageOptions("runtime", index="https://x\nRUN y"), "a container reaches http"),
        (
            ImageOptions("runtime", index="https://me:secret@x/whl"),
            "has a user's name or password, which would",
        ),
        (ImageOptions("runtime", ("3.9", "3.10")), "a runtime has one Python, and --python names 3.9, 3.10"),
        (ImageOptions("devcontainer", toolkit="11.8"), "in one, `invoke toolkit --cuda 11.8` brings it"),
    ],
)
def test_a_wrong_word_is_refused_with_those_that_there_are(said: ImageOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        request.make_image_request(OURS, said, NEW, "x86_64")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            ImageOptions("builder", toolkit="12.1"),
            r"torch 1\.1\.0 is not built with CUDA 12\.1 on x86_64; there is 9\.0",
        ),
        (
            ImageOptions("runtime", ("3.10",)),
            r"torch 1\.1\.0 is not built for Python 3\.10: it is for 3\.5, 3\.6, 3\.7",
        ),
    ],
)
def test_what_a_release_does_not_have_is_refused(said: ImageOptions, message: str) -> None:
    with pytest.raises(ImpossibleBuildError, match=message):
        request.make_image_request(OURS, said, OLD, "x86_64")

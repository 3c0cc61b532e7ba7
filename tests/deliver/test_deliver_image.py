"""Images: what is asked for, their folders, and images that a real engine builds."""

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version
from press_support import written_wheels

from tests.support import gpu_libraries
from tests.support.commands import ROOT, run
from tests.support.fatbins import fatbin, piece
from tests.support.refusals import refused, without_code
from torchmill.commands import image, slim
from torchmill.config import facts_reader
from torchmill.config.images import Archive, BaseImage
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release, newest_release
from torchmill.core import locks
from torchmill.core.errors import ConfigError, TorchmillError
from torchmill.core.paths import Layout
from torchmill.deliver.image import builder, devcontainer, folder, request, runtime
from torchmill.deliver.image.recipe import ImageRecipe
from torchmill.deliver.image.request import KINDS, ImageOptions, ImageRequest, make_image_request
from torchmill.host.native import native_arch
from torchmill.plan.matrix import ReleaseTerms

OURS = facts_reader.read_facts(ROOT / "build_configs")
GOLDEN = ROOT / "tests/golden/images"
INDEX = "https://download.pytorch.org/whl/cpu"
NOWHERE = Layout(Path("nowhere"), Path("nowhere"))
DIGEST = "sha256:" + "ab" * 32


def _request(said: ImageOptions, version: str = "1.13.1") -> ImageRequest:
    return make_image_request(OURS, said, find_release(OURS, "torch", version), "x86_64")


def _recipe(said: ImageOptions, version: str = "1.13.1") -> ImageRecipe:
    return image.recipe_of(OURS, _request(said, version), NOWHERE, Path("nowhere"))[0]


GOLDENS = {
    "builder-development": ImageOptions("builder"),
    "builder-distribution": ImageOptions("builder", purpose="distribution", arch="aarch64"),
    "builder-cu118": ImageOptions("builder", toolkit="11.8", purpose="distribution"),
    "builder-cu118-development": ImageOptions("builder", ("3.10",), "11.8"),
    "r3-builder-cu110": ImageOptions("builder", ("3.8",), "11.0"),
    "r4-builder-cu90": ImageOptions("builder", ("3.5",), "9.0"),
    "builder-own-base": ImageOptions("builder", ("3.11",), base="localhost/mine:1"),
    "builder-debian": ImageOptions("builder", ("3.11",), purpose="debian", base="localhost/mine:1"),
    "builder-emulated": ImageOptions("builder", ("3.11",), arch="aarch64"),
    "runtime-index": ImageOptions("runtime", ("3.10",), index=INDEX),
    "devcontainer": ImageOptions("devcontainer", ("3.10",), arch="aarch64"),
}


OF_RELEASE = {"r3-builder-cu110": "1.8.0", "r4-builder-cu90": "1.1.0"}


@pytest.mark.parametrize("name", GOLDENS)
def test_images_are_as_they_were(name: str, request: pytest.FixtureRequest) -> None:
    texts = _recipe(GOLDENS[name], OF_RELEASE.get(name, "1.13.1")).texts
    for file, text in texts.items():
        path = GOLDEN / f"{name}.{file}"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path.name} differs: --update-golden writes it anew"


def _eras() -> Iterator[tuple[str, str, Release]]:
    """Yield each toolkit and machine with the oldest and the newest release that is built with it."""
    found: dict[tuple[str, str], list[Release]] = {}
    for release in OURS.releases["torch"]:
        for arch in {"x86_64", "aarch64"} & {*release.arches}:
            for toolkit in ReleaseTerms.for_release(OURS, release).axes(arch)[1]:
                found.setdefault((toolkit.version, arch), []).append(release)
    for (version, arch), releases in found.items():
        yield version, arch, releases[0]
        yield version, arch, releases[-1]


@pytest.mark.parametrize("purpose", ["development", "distribution"])
def test_every_toolkit_has_a_builder_with_all_pythons_of_its_releases(purpose: str) -> None:
    refusals = {}
    for toolkit, arch, release in [*_eras()][:: 1 if purpose == "development" else 2]:
        said = ImageOptions("builder", toolkit=toolkit, arch=arch, purpose=purpose)
        wanted = make_image_request(OURS, said, release, arch)
        try:
            recipe = builder.builder_recipe(OURS, wanted)
        except ConfigError as error:
            refusals[toolkit, arch] = error.code
            continue
        text = recipe.texts["Dockerfile"]
        assert f"CUDA_HOME=/usr/local/cuda-{toolkit} " in text
        assert not [
            word
            for word in ("None", "  \n", "{", "}", "()", "[]")
            if word in text.replace("${", "")
        ]
        assert text.count("curl --fail") == text.count("sha256sum --check") + 2 * text.count(
            "md5sum --check"
        )
        assert [note for note in recipe.notes if "left out" in note] == []
        none = (
            Version(release.version) < Version("1.6") and Version(toolkit).major > 10
        )  # wants cuDNN 7
        assert any("cuDNN" in note for note in recipe.notes) == none
        for python in wanted.pythons:
            place = (
                f"python{python}-dev",
                f"/Python-{python}.",
                f" {python} ",
                f" {python}\n",
                "pypa/manylinux",
            )
            assert any(word in text for word in place), (toolkit, release, python)
    boards = {(cuda, "aarch64"): "no-base-image" for cuda in ("9.0", "10.0", "10.2")}
    unknown = {("13.5", arch): "no-base-image" for arch in ("x86_64", "aarch64")}
    old = (
        {(cuda, "x86_64"): "image-without-compiler" for cuda in ("9.0", "9.1")}
        if purpose == "distribution"
        else {}
    )
    assert refusals == boards | unknown | old


@pytest.mark.parametrize("stated", ["sha256", "checksums"])
def test_a_download_is_compared_with_what_is_stated_of_it(stated: str, tmp_path: Path) -> None:
    served, there = tmp_path / "served", tmp_path / "unpacked"
    served.mkdir()
    there.mkdir()
    file, sums = served / "cuda.run", served / "md5sum.txt"
    file.write_bytes(b"installer")
    md5 = hashlib.md5(b"installer", usedforsecurity=False).hexdigest()
    sums.write_text(f"{'0' * 32}  other_cuda.run\n{md5}  cuda.run\n")
    states = {"sha256": hashlib.sha256(b"installer").hexdigest(), "checksums": sums.as_uri()}
    archive = Archive(
        "toolkit", "11.0.3", ("x86_64",), file.as_uri(), "11.0", **{stated: states[stated]}
    )
    facts = replace(OURS, images=replace(OURS.images, archives=(archive,)))
    said = make_image_request(
        OURS, GOLDENS["r3-builder-cu110"], find_release(OURS, "torch", "1.8.0"), "x86_64"
    )
    text = builder.builder_recipe(facts, said).texts["Dockerfile"]
    step = (
        text.partition("WORKDIR /unpacked\n")[2]
        .partition("RUN ")[2]
        .partition(" && sh cuda.run")[0]
    )
    for content, code in ((b"installer", 0), (b"another", 1)):
        file.write_bytes(content)
        done = subprocess.run(
            ["/bin/sh", "-c", step + " && true"], cwd=there, capture_output=True, check=False
        )
        assert done.returncode == code, done


@cache
def _all() -> tuple[tuple[str, ImageRecipe], ...]:
    """Return them once for all tests: there are many."""
    return tuple(_each())


def _each() -> Iterator[tuple[str, ImageRecipe]]:
    """Yield the Dockerfile of every kind on every base image and arch that the facts have for it."""
    for arch in ("x86_64", "aarch64"):
        for version in ("1.1.0", "1.13.1", "2.13.0"):
            yield from _of_release(arch, version)
        for one in OURS.images.bases:
            if arch in one.arches:
                yield from _on_base(arch, one)


def _of_release(arch: str, version: str) -> Iterator[tuple[str, ImageRecipe]]:
    for base in ("localhost/mine", "localhost/mine:latest", f"mine@{DIGEST}"):
        for kind in KINDS:
            said = ImageOptions(
                kind, arch=arch, base=base, index=INDEX if kind == "runtime" else ""
            )
            yield f"{kind}-{version}-{arch}-{base}", _recipe(said, version)
    yield (
        f"devcontainer-{version}-{arch}",
        _recipe(ImageOptions("devcontainer", arch=arch), version),
    )


def _on_base(arch: str, base: BaseImage) -> Iterator[tuple[str, ImageRecipe]]:
    """Yield what is built on one of our images, for the first release that can be."""
    saids = {
        "manylinux": ImageOptions("builder", arch=arch, purpose="distribution"),
        "system": ImageOptions("builder", arch=arch, base=base.named),
        "cuda": ImageOptions("builder", toolkit=base.toolkit or "", arch=arch),
        "toolkit": ImageOptions(
            "builder", toolkit=base.toolkit or "", arch=arch, purpose="distribution"
        ),
        "python": ImageOptions("runtime", base.pythons[:1], arch=arch, index=INDEX),
    }
    for release in OURS.releases["torch"]:
        try:
            recipe = image.recipe_of(
                OURS,
                make_image_request(OURS, saids[base.role], release, arch),
                NOWHERE,
                Path("nowhere"),
            )[0]
        except TorchmillError:
            continue
        if base.reference in recipe.texts["Dockerfile"]:  # of manylinux, the release decides
            yield f"{base.tag}-{arch}", recipe
            return
    raise AssertionError(f"nothing is built on {base.named} for {arch}")


def test_hadolint_has_nothing_to_say(tmp_path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "requirements-dev.txt brings it"
    names = dict(enumerate(_all()))
    for number, (_, recipe) in names.items():
        (tmp_path / f"{number:03}.Dockerfile").write_text(recipe.texts["Dockerfile"])
    (tmp_path / "wrong.Dockerfile").write_text("FROM debian\nRUN apt-get install -y git\n")
    files = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run(
        [hadolint, "--no-color", "--format", "json", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout)
    assert {one["code"] for one in found if "wrong" in one["file"]} >= {"DL3006", "DL3008"}
    assert [one for one in found if "wrong" not in one["file"]] == []
    assert len(names) > 50


def test_every_base_without_a_digest_is_said_to_be_unpinned() -> None:
    for name, recipe in _all():
        text = recipe.texts["Dockerfile"]
        unpinned = [
            line
            for line in text.splitlines()
            if line.startswith("FROM ") and "@sha256:" not in line and "/" in line
        ]
        warned = [note for note in recipe.notes if "is not pinned" in note]
        assert len(unpinned) == len(warned) == text.count("has no digest here"), name


def test_a_runtime_image_keeps_neither_wheels_nor_caches() -> None:
    text = _recipe(ImageOptions("runtime", index=INDEX)).texts["Dockerfile"]
    final = text.rpartition("FROM ")[2]
    assert "pip" not in final
    assert "COPY --from=install /opt/torch/ /opt/torch/" in final
    assert "USER 10001" in final
    assert text.count("--no-cache-dir") == text.count("pip install") + text.count("pip download")


def test_what_metadata_does_not_say_is_said_to_pip() -> None:
    old, new = (_request(ImageOptions("runtime"), version) for version in ("1.1.0", "2.13.0"))
    assert runtime.companion_options(OURS, old, ["torch", "torchvision"]) == ("numpy<2", "pillow<7")
    assert runtime.companion_options(OURS, old, ["torch"]) == ("numpy<2",)
    assert runtime.companion_options(OURS, new, ["torch", "torchvision"]) == ("numpy",)


def test_nothing_needs_buildkit() -> None:
    for name, recipe in _all():
        text = recipe.texts["Dockerfile"]
        assert not [
            word for word in ("--mount", "--chmod", "--link", "<<", "# syntax") if word in text
        ], name


def test_a_builder_takes_a_host_compiler_that_its_toolkit_takes() -> None:
    text = _recipe(ImageOptions("builder", toolkit="12.6", purpose="distribution"), "2.8.0").texts[
        "Dockerfile"
    ]
    assert "gcc-toolset-13-gcc-c++ \\\n" in text  # manylinux_2_28 has 14, and CUDA 12.6 takes 13
    text = _recipe(ImageOptions("builder", toolkit="11.8", purpose="distribution")).texts[
        "Dockerfile"
    ]
    assert "devtoolset" not in text  # manylinux2014 has 10, which CUDA 11.8 takes


def test_pythons_that_are_not_to_be_had_are_left_out_or_refused() -> None:
    trixie = "docker.io/library/debian:trixie-slim"
    assert (
        "Python 3.7 is left out: it is not available"
        in _recipe(ImageOptions("builder", base=trixie)).notes
    )
    with refused("image-without-python"):
        _recipe(ImageOptions("builder", ("3.5",), base=trixie), "1.1.0")
    own = _recipe(ImageOptions("builder", base="localhost/mine:1"), "1.1.0").texts["Dockerfile"]
    assert "command -v python3.5 " in own
    with refused("image-without-python"):
        _recipe(ImageOptions("devcontainer", ("3.5",)), "1.1.0")


def test_a_builder_for_a_source_of_debian_is_of_that_debian() -> None:
    text = _recipe(ImageOptions("builder", ("3.13",), purpose="debian"), "2.6.0").texts[
        "Dockerfile"
    ]
    assert {"FROM docker.io/library/debian:trixie-slim", "        libxnnpack-dev \\"} <= {
        *text.splitlines()
    }
    with refused("release-not-in-debian"):
        _recipe(ImageOptions("builder", purpose="debian"), "2.7.0")


def test_a_dev_container_fetches_its_release() -> None:
    settings = json.loads(
        _recipe(ImageOptions("devcontainer", ("3.7",)), "1.1.0").texts["devcontainer.json"]
    )
    assert settings["postCreateCommand"] == ["invoke", "fetch", "--tag", "v1.1.0"]
    assert settings["remoteUser"] == "dev"


def test_the_wheels_of_a_runtime_image_are_those_of_its_cell(tmp_path: Path) -> None:
    wanted = _request(ImageOptions("runtime", ("3.10",)))
    layout = Layout(tmp_path, tmp_path)
    with refused("no-wheel"):
        runtime.image_wheels(OURS, wanted, layout.dist)
    for name, version, tag in (
        ("torch", "1.13.1+cpu", "cp39-cp39-linux_x86_64"),
        ("torch", "1.13.1+cpu", "cp310-cp310-linux_aarch64"),
        ("torch", "1.13.1+cu118", "cp310-cp310-linux_x86_64"),
        ("torch", "1.13.0+cpu", "cp310-cp310-linux_x86_64"),
        ("torch", "1.13.1+cpu", "cp310-cp310-manylinux_2_17_x86_64"),
        ("torchvision", "0.14.1+cpu", "cp310-cp310-linux_x86_64"),
        ("torchvision", "0.14.0+cpu", "cp310-cp310-linux_x86_64"),
    ):
        written_wheels.made(layout.dist, name, version, tag)
    assert image.recipe_of(OURS, wanted, layout, tmp_path)[0].notes == ()
    assert [path.name for path in runtime.image_wheels(OURS, wanted, layout.dist)] == [
        "torch-1.13.1+cpu-cp310-cp310-manylinux_2_17_x86_64.whl",
        "torchvision-0.14.1+cpu-cp310-cp310-linux_x86_64.whl",
    ]
    with refused("no-wheel") as caught:
        runtime.image_wheels(OURS, _request(ImageOptions("runtime", ("3.11",))), layout.dist)
    assert "take a Python for which it has one (--python 3.10)" in str(caught.value)
    foreign = replace(
        wanted,
        arch=next(one for one in ("x86_64", "aarch64") if one != native_arch()),
        pythons=("3.11",),
    )
    with refused("no-wheel") as caught:
        runtime.image_wheels(OURS, foreign, layout.dist)
    assert f"(`nox -s wheel-3.11-cpu-{foreign.arch}`)" in str(caught.value)
    recipe, _ = image.recipe_of(OURS, wanted, layout, tmp_path)
    assert "COPY wheels/ /wheels/" in recipe.texts["Dockerfile"]
    assert "wheels/torchvision-0.14.1+cpu-cp310-cp310-linux_x86_64.whl" in recipe.copied
    next(layout.dist.glob("torch-1.13.1+cpu*manylinux*")).write_bytes(b"no zip")
    with refused("damaged-wheel"):
        runtime.image_wheels(OURS, wanted, layout.dist)


def test_r4_runs_torch_torchvision_and_their_client(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Wheels without a label are those of the cell that their manifest names."""
    layout, tag = Layout(tmp_path, tmp_path), "cp35-cp35m-manylinux_2_23_x86_64"
    for name, version, identifier in (
        ("torch", "1.1.0", "wheel-3.5-cu90"),
        ("torchvision", "0.3.0", "vision-3.5-cu90"),
    ):
        wheel = written_wheels.made(layout.dist, name, version, tag)
        wheel.with_name(f"{wheel.name}.json").write_text(json.dumps({"identifier": identifier}))
    client = written_wheels.made(
        tmp_path / "own", "client", "1.0", "py3-none-any", requires=["torch"]
    )
    wanted = _request(ImageOptions("runtime", ("3.5",), "9.0", clients=(str(client),)), "1.1.0")
    recipe, brought = image.recipe_of(OURS, wanted, layout, tmp_path, [client])
    assert [path.name for path in brought] == [
        f"torch-1.1.0-{tag}.whl",
        f"torchvision-0.3.0-{tag}.whl",
        client.name,
    ]
    assert recipe.copied == {f"wheels/{path.name}": path.name for path in brought}
    assert "--shm-size=8G" in recipe.run
    golden = GOLDEN / "r4-runtime-cu90.Dockerfile"
    if request.config.getoption("--update-golden"):
        golden.write_text(recipe.texts["Dockerfile"])
    assert recipe.texts["Dockerfile"] == golden.read_text()
    with refused("no-wheel"):
        image.recipe_of(
            OURS, _request(ImageOptions("runtime", ("3.5",)), "1.1.0"), layout, tmp_path
        )
    with refused("invalid-wheel-name"):
        image.recipe_of(OURS, wanted, layout, tmp_path, [tmp_path / "client.tar.gz"])
    indexed = _request(ImageOptions("runtime", ("3.10",), index=INDEX))
    text = image.recipe_of(OURS, indexed, layout, tmp_path, [client])[0].texts["Dockerfile"]
    assert {
        "COPY wheels/ /wheels/",
        " && /opt/torch/bin/pip download --no-cache-dir --no-deps --dest /wheels \\",
    } <= {*text.splitlines()}


def test_a_runtime_image_for_one_gpu_has_slim_wheels(tmp_path: Path) -> None:
    """Made of the original, also where a slim wheel for others is there; the one without code for GPUs stays."""
    code = fatbin(*(piece(arch, size=20_000) for arch in (70, 80, 86)))
    library = gpu_libraries.shared(tmp_path / "lib.so", [code]).read_bytes()
    layout, tag = Layout(tmp_path, tmp_path), "cp310-cp310-linux_x86_64"
    files = {"torch/lib/libtorch_cuda.so": library}
    torch = written_wheels.made(layout.dist, "torch", "1.13.1+cu118", tag, files=files)
    written_wheels.made(layout.dist, "torchvision", "0.14.1+cu118", tag)
    slim.slim_wheels(OURS, layout, [str(torch)], "7.0")
    said = "image --kind runtime --tag v1.13.1 --python 3.10 --toolkit 11.8 --arch x86_64 --gpu 3090 --gpu".split()  # noqa: SIM905
    done = run("invoke", *said, "RTX 3080", home=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / ".torchmill/images/runtime-1.13.1-cu118-sm86-py3.10-x86_64"
    assert sorted(path.name for path in (folder / "wheels").iterdir()) == [
        f"torch-1.13.1+cu118.sm86-{tag}.whl",
        f"torchvision-0.14.1+cu118-{tag}.whl",
    ]
    assert sorted(path.name for path in folder.parent.iterdir()) == [".locks", folder.name]


def test_recipes_follow_from_facts_and_request_alone() -> None:
    assert builder.builder_recipe(
        OURS, _request(ImageOptions("builder"))
    ) == builder.builder_recipe(OURS, _request(ImageOptions("builder")))
    said = ImageOptions("devcontainer", ("3.10",))
    assert devcontainer.devcontainer_recipe(
        OURS, _request(said)
    ) == devcontainer.devcontainer_recipe(OURS, _request(said))


ENGINE = """\
#!/bin/sh
case "$1" in
version) echo 28.2.2 ;;
build) for last; do :; done; cp "$last/Dockerfile" "$LAID"; echo "#5 [2/2] RUN true" ;;
images) echo 812MB ;;
esac
"""


def test_an_image_is_written_and_built(tmp_path: Path) -> None:
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(ENGINE)
    docker.chmod(0o755)
    written_wheels.made(tmp_path / "dist", "torch", "1.13.1+cpu", "cp310-cp310-linux_x86_64")
    env = {"PATH": f"{docker.parent}:/usr/bin:/bin", "LAID": str(tmp_path / "laid")}
    words = (
        "image",
        "--kind",
        "runtime",
        "--tag",
        "v1.13.1",
        "--python",
        "3.10",
        "--arch",
        "x86_64",
    )
    done = run("invoke", *words, "--build", home=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "localhost/torch-runtime:1.13.1-cpu-py3.10-x86_64: built by docker, 812MB" in done.stdout
    assert "has no torchvision 0.14.1 (cpu) for it: the image has none" in done.stdout
    assert "--shm-size=8G" in done.stdout
    assert "DataLoader workers" in done.stdout
    assert "#5 [2/2] RUN true" in done.stderr
    folder = tmp_path / ".torchmill/images/runtime-1.13.1-cpu-py3.10-x86_64"
    assert (tmp_path / "laid").read_text() == (folder / "Dockerfile").read_text()
    assert len(list((folder / "wheels").iterdir())) == 1


def test_two_runs_do_not_write_one_image(tmp_path: Path) -> None:
    words = ("image", "--kind", "builder", "--tag", "v1.13.1", "--arch", "x86_64")
    with locks.hold_lock(
        tmp_path / ".torchmill/images/.locks/builder-1.13.1-cpu-x86_64-development", "it"
    ):
        done = run("invoke", *words, home=tmp_path)
    assert done.returncode == 10
    assert "is being built by another run" in done.stderr


def test_without_an_engine_nothing_is_written(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    done = run(
        "invoke", "image", "--kind", "builder", "--build", "--into", str(tmp_path / "in"), home=tmp_path,
        env={"PATH": str(empty)},
    )  # fmt: skip
    assert done.returncode == 7
    assert without_code(done.stderr).startswith(
        "error: none of docker, podman and buildah is on PATH"
    )
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "in").exists()


def test_the_remark_on_shared_memory_comes_where_there_is_little(tmp_path: Path) -> None:
    entry = tmp_path / "run-torch"
    entry.write_text(runtime.ENTRY.read_text("utf-8"))
    fake = tmp_path / "df"
    for blocks, said in (("65536", True), ("8388608", False)):
        fake.write_text(f"#!/bin/sh\necho head\necho shm {blocks} 0 {blocks} 0% /dev/shm\n")
        fake.chmod(0o755)
        done = subprocess.run(
            ["/bin/sh", str(entry), "/bin/echo", "ran"],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == "ran\n"
        assert ("--shm-size=8G or --ipc=host" in done.stderr) == said


OLD, NEW = (find_release(OURS, "torch", version) for version in ("1.1.0", "1.13.1"))


def test_a_builder_has_all_pythons_of_its_release_and_a_runtime_one() -> None:
    builder = request.make_image_request(
        OURS, ImageOptions("builder", toolkit="11.8"), NEW, "x86_64"
    )
    assert (builder.pythons, builder.variant, builder.purpose) == (
        NEW.pythons,
        "cu118",
        "development",
    )
    assert builder.tag == "localhost/torch-builder:1.13.1-cu118-x86_64-development"
    assert request.make_image_request(OURS, ImageOptions("runtime"), NEW, "x86_64").pythons == (
        "3.11",
    )
    assert request.make_image_request(
        OURS, ImageOptions("builder", ("3.10", "3.9")), NEW, "x86_64"
    ).pythons == (
        "3.9",
        "3.10",
    )


def test_the_newest_python_that_has_an_image_is_taken() -> None:
    newest = newest_release(OURS)
    assert newest.pythons[-1].rstrip("t") == "3.15"
    found = request.make_image_request(OURS, ImageOptions("devcontainer"), newest, "x86_64")
    devcontainer.devcontainer_recipe(OURS, found)


def test_a_dev_container_is_used_from_where_it_was_written(tmp_path: Path) -> None:
    for option, place in (
        ((), tmp_path / ".devcontainer"),
        ((f"--into={tmp_path / 'a b'}",), tmp_path / "a b"),
    ):
        done = run(
            "invoke", "image", "--kind=devcontainer", "--tag=v1.13.1", *option, home=tmp_path
        )
        [made] = place.rglob("devcontainer.json")
        assert f"--config {shlex.quote(str(made.parent))}/devcontainer.json`" in done.stdout


def test_a_mac_runs_linux_of_its_own_processor() -> None:
    found = request.make_image_request(OURS, ImageOptions("devcontainer", ("3.10",)), NEW, "arm64")
    assert (found.arch, found.name) == ("aarch64", "devcontainer-1.13.1-py3.10-aarch64")
    assert (
        request.make_image_request(OURS, ImageOptions("devcontainer"), NEW, "amd64").arch
        == "x86_64"
    )


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (ImageOptions(""), "no-image-kind"),
        (ImageOptions("bilder"), "unknown-choice"),
        (ImageOptions("builder", arch="arm64"), "unknown-choice"),
        (ImageOptions("builder", toolkit="11.9"), "unknown-choice"),
        (ImageOptions("builder", purpose="fun"), "unknown-choice"),
        (ImageOptions("runtime", purpose="development"), "option-not-for-kind"),
        (ImageOptions("builder", index="https://x"), "option-not-for-kind"),
        (ImageOptions("devcontainer", toolkit="11.8"), "option-not-for-kind"),
        (ImageOptions("builder", gpus=("RTX 3090",)), "option-not-for-kind"),
        (ImageOptions("builder", clients=("a.whl",)), "option-not-for-kind"),
        (ImageOptions("runtime", index="https://x", gpus=("RTX 3090",)), "option-not-for-kind"),
        (ImageOptions("runtime", gpus=("RTX 3091",)), "unknown-gpu"),
        (ImageOptions("runtime", index="file:///x"), "invalid-url"),
        (ImageOptions("runtime", index="https://x\nRUN y"), "invalid-url"),
        (ImageOptions("runtime", index="https://me:secret@x/whl"), "password-in-url"),
        (ImageOptions("runtime", ("3.9", "3.10")), "one-python"),
    ],
)
def test_invalid_options_are_refused_and_no_password_repeated(
    options: ImageOptions, code: str
) -> None:
    with refused(code) as refusal:
        request.make_image_request(OURS, options, NEW, "x86_64")
    assert "secret" not in str(refusal.value)


def test_a_misspelt_kind_is_answered_with_the_nearest() -> None:
    with refused("unknown-choice") as refusal:
        request.make_image_request(OURS, ImageOptions("bilder"), NEW, "x86_64")
    assert ": choose from builder, runtime, devcontainer; did you mean builder?" in str(
        refusal.value
    )


@pytest.mark.parametrize(
    ("options", "choices"),
    [
        (ImageOptions("builder", toolkit="12.1"), "with CUDA 12.1, only for 9.0"),
        (ImageOptions("runtime", ("3.10",)), "only for 3.5, 3.6, 3.7"),
    ],
)
def test_what_a_release_does_not_have_is_refused(options: ImageOptions, choices: str) -> None:
    with refused("impossible-build") as refusal:
        request.make_image_request(OURS, options, OLD, "x86_64")
    assert choices in str(refusal.value)


ROOT = Path(__file__).parents[2]
FACTS = ROOT / "build_configs"


def _small_recipe(text: str, **copied: str) -> ImageRecipe:
    return ImageRecipe(
        {"Dockerfile": text, "entry": "#!/bin/sh\n"}, copied, (), frozenset({"entry"})
    )


def _write(place: Path, recipe: ImageRecipe, sources: dict[str, Path] | None = None) -> None:
    folder.write_image_folder(place, recipe, sources or {}, FACTS)


def test_a_folder_is_written_and_written_again(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"wheel")
    place = tmp_path / "new/image"
    _write(
        place,
        _small_recipe(
            "FROM a\n", **{"wheels/a.whl": "a.whl", "requirements.txt": "requirements.txt"}
        ),
        {"a.whl": wheel},
    )
    assert (place / "requirements.txt").read_bytes() == (ROOT / "requirements.txt").read_bytes()
    assert os.access(place / "entry", os.X_OK)
    assert (place / "wheels/a.whl").samefile(wheel)
    _write(place, _small_recipe("FROM b\n"))
    assert (place / "Dockerfile").read_text() == "FROM b\n"
    assert sorted(entry.name for entry in place.iterdir()) == [
        "Dockerfile",
        "entry",
        folder.IMAGE_RECORD,
    ]
    assert wheel.read_bytes() == b"wheel"
    assert [entry.name for entry in place.parent.iterdir()] == ["image"]


def test_the_suite_is_copied_without_what_it_made(tmp_path: Path) -> None:
    _write(tmp_path / "image", _small_recipe("FROM a\n", suite="suite"))
    suite = tmp_path / "image/suite"
    assert {"noxfile.py", "tasks.py", "requirements.txt", "torchmill", "build_configs"} <= {
        entry.name for entry in suite.iterdir()
    }
    assert list(suite.rglob("__pycache__")) == []
    assert (suite / "build_configs/images.toml").read_bytes() == (
        FACTS / "images.toml"
    ).read_bytes()


def test_somebody_elses_files_stay(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM theirs\n")
    with refused("foreign-folder"):
        _write(tmp_path, _small_recipe("FROM a\n"))
    assert (tmp_path / "Dockerfile").read_text() == "FROM theirs\n"


def test_ours_changed_by_hand_stays(tmp_path: Path) -> None:
    place = tmp_path / "image"
    _write(place, _small_recipe("FROM a\n"))
    (place / "Dockerfile").write_text("FROM a\nRUN mine\n")
    with refused("changed-by-hand"):
        _write(place, _small_recipe("FROM b\n"))
    assert "mine" in (place / "Dockerfile").read_text()


def test_what_was_put_beside_ours_stays(tmp_path: Path) -> None:
    place = tmp_path / "image"
    _write(place, _small_recipe("FROM a\n"))
    (place / "notes.txt").write_text("mine")
    with refused("foreign-folder"):
        _write(place, _small_recipe("FROM b\n"))


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with refused("foreign-folder"):
            _write(tmp_path / name, _small_recipe("FROM a\n"))
    with refused("not-writable"):
        _write(tmp_path / "file/image", _small_recipe("FROM a\n"))


def test_a_damaged_record_is_not_trusted(tmp_path: Path) -> None:
    _write(tmp_path / "image", _small_recipe("FROM a\n"))
    (tmp_path / "image" / folder.IMAGE_RECORD).write_text("{}")
    with refused("record-damaged"):
        _write(tmp_path / "image", _small_recipe("FROM a\n"))


def test_a_wheel_that_was_put_beside_ours_stays(tmp_path: Path) -> None:
    (wheel := tmp_path / "a.whl").write_bytes(b"wheel")
    place, recipe = tmp_path / "image", _small_recipe("FROM a\n", **{"wheels/a.whl": "a.whl"})
    _write(place, recipe, {"a.whl": wheel})
    _write(place, recipe, {"a.whl": wheel})
    (place / "wheels/mine.whl").write_bytes(b"mine")
    with refused("foreign-folder"):
        _write(place, recipe, {"a.whl": wheel})
    assert (place / "wheels/mine.whl").read_bytes() == b"mine"


def test_what_was_changed_in_the_copied_suite_stays(tmp_path: Path) -> None:
    place, recipe = tmp_path / "image", _small_recipe("FROM a\n", suite="suite")
    _write(place, recipe)
    _write(place, recipe)
    (place / "suite/noxfile.py").write_text("mine\n")
    with refused("changed-by-hand"):
        _write(place, recipe)
    assert (place / "suite/noxfile.py").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("platform", "base", "fits"),
    [
        ("manylinux_2_41_x86_64", "", False),
        ("manylinux_2_41_x86_64", "localhost/mine:1", True),
        ("manylinux_2_36_x86_64", "", True),
        ("manylinux_2_41_x86_64.manylinux_2_17_x86_64", "", True),
    ],
)
def test_a_runtime_image_has_the_c_library_that_its_wheels_need(
    platform: str, base: str, fits: bool
) -> None:
    wanted = _request(ImageOptions("runtime", ("3.11",), base=base), "2.6.0")
    wheel = f"torch-2.6.0+cpu-cp311-cp311-{platform}.whl"
    if fits:
        assert wheel in runtime.runtime_recipe(OURS, wanted, [wheel], ()).copied.values()
        return
    with refused("unsupported-image"):
        runtime.runtime_recipe(OURS, wanted, [wheel], ())


def test_the_home_of_nobody_is_a_name_like_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    layout = Layout(tmp_path, tmp_path / "cache")
    with refused("invalid-wheel-name"):
        image.write_image(
            OURS, layout, "runtime", "v1.13.1", index=INDEX, client=["~nosuchuser/x.whl"]
        )
    image.write_image(OURS, layout, "runtime", "v1.13.1", index=INDEX, into="~nosuchuser/x")
    assert (tmp_path / "~nosuchuser/x/Dockerfile").exists()


def _crossing(folder: Path, *, has_any: bool) -> subprocess.CompletedProcess[str]:
    """Run cross-compilers.sh below a folder, with an archive that has this system's own compiler, or has none."""
    script, root = (
        builder.CROSS_COMPILERS.read_text(encoding="utf-8"),
        folder / "opt/cross-compilers",
    )
    for place in (
        "/usr/local/include",
        "/usr/lib/$1-linux-gnu",
        "/usr/$triplet",
        "/usr/lib/gcc-cross",
        "/opt/cross",
    ):
        script = script.replace(place, f"{folder}{place}")
    script = script.replace("loader=/", f"loader={folder}/").replace(
        '"/usr/include/c++/', f'"{folder}/c++/', 2
    )
    script = script.replace(
        f'"{folder}/c++/', '"/usr/include/c++/', 1
    )  # what is linked to stays where it is
    (archive := folder / "bin" / "apt-get").parent.mkdir(parents=True, exist_ok=True)
    brings = f"""
version=$(gcc -dumpversion) triplet=$(gcc -dumpmachine)
mkdir -p {root}/usr/lib/gcc-cross/$triplet/$version
ln -sf "$(gcc -print-prog-name=cc1plus)" {root}/usr/lib/gcc-cross/$triplet/$version/cc1plus
"""
    archive.write_text(
        f'#!/bin/sh\ncase "$*" in *install*) {brings if has_any else "exit 100"} ;; esac\n'
    )
    archive.chmod(0o755)
    for version in Path("/usr/include/c++").iterdir():
        (folder / "c++" / version.name).mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, "PATH": f"{archive.parent}:/usr/bin:/bin"}
    argv = ["/bin/sh", "-c", script, "cross-compilers.sh", "aarch64"]
    return subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not (Path("/etc/apt").is_dir() and shutil.which("g++")), reason="Debian's g++")
def test_cross_compilers_that_no_archive_has_leave_no_folder_that_promises_them(
    tmp_path: Path,
) -> None:
    promised = tmp_path / "opt/cross-compilers/bin"
    for _ in range(2):  # in an image that was made of one that has them, everything is there
        done = _crossing(tmp_path, has_any=True)
        assert (done.returncode, promised.is_dir()) == (0, True), done.stderr
    done = _crossing(tmp_path / "other", has_any=False)
    assert done.returncode == 0, done.stderr
    assert "all compilers stay emulated" in done.stderr
    assert not (tmp_path / "other/opt/cross-compilers/bin").exists()

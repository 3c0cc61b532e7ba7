"""Images: requests, recipes, folders, and images that an engine builds."""

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
from torchmill.deliver.image import builder, devcontainer, folder, runtime
from torchmill.deliver.image.recipe import ImageRecipe
from torchmill.deliver.image.request import KINDS, ImageOptions, ImageRequest, make_image_request
from torchmill.host.native import native_arch
from torchmill.plan.matrix import ReleaseTerms

SHIPPED = facts_reader.read_facts(ROOT / "build_configs")
GOLDEN = ROOT / "tests/golden/images"
INDEX = "https://download.pytorch.org/whl/cpu"
NOWHERE = Layout(Path("nowhere"), Path("nowhere"))
DIGEST = "sha256:" + "ab" * 32


LAST_KNOWN_INSTALLER = "13.4"  # no toolkit of servers up to this one may lack its installer


def _request(options: ImageOptions, version: str = "1.13.1") -> ImageRequest:
    release = find_release(SHIPPED, "torch", version)
    return make_image_request(SHIPPED, options, release, "x86_64")


def _recipe(options: ImageOptions, version: str = "1.13.1") -> ImageRecipe:
    recipe, _ = image.image_recipe(SHIPPED, _request(options, version), NOWHERE, Path("nowhere"))
    return recipe


def _dockerfile(options: ImageOptions, version: str = "1.13.1") -> str:
    return _recipe(options, version).texts["Dockerfile"]


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


RELEASES = {"r3-builder-cu110": "1.8.0", "r4-builder-cu90": "1.1.0"}  # of the others, 1.13.1


@pytest.mark.parametrize("name", GOLDENS)
def test_images_match_the_golden_files(name: str, request: pytest.FixtureRequest) -> None:
    texts = _recipe(GOLDENS[name], RELEASES.get(name, "1.13.1")).texts
    for file, text in texts.items():
        path = GOLDEN / f"{name}.{file}"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), f"{path.name} differs: --update-golden writes it anew"


def _eras() -> Iterator[tuple[str, str, Release]]:
    """Yield each toolkit and machine with the oldest and the newest release that has them."""
    releases_by_axis: dict[tuple[str, str], list[Release]] = {}
    for release in SHIPPED.releases["torch"]:
        for arch in {"x86_64", "aarch64"} & {*release.arches}:
            _, toolkits = ReleaseTerms.for_release(SHIPPED, release).axes(arch)
            for toolkit in toolkits:
                releases_by_axis.setdefault((toolkit.version, arch), []).append(release)
    for (version, arch), releases in releases_by_axis.items():
        yield version, arch, releases[0]
        yield version, arch, releases[-1]


@pytest.mark.parametrize("purpose", ["development", "distribution"])
def test_every_toolkit_has_a_builder_with_all_pythons_of_its_releases(purpose: str) -> None:
    refusals = {}
    eras = list(_eras())
    if purpose == "distribution":
        eras = eras[::2]  # half of them, for time
    for toolkit, arch, release in eras:
        options = ImageOptions("builder", toolkit=toolkit, arch=arch, purpose=purpose)
        requested = make_image_request(SHIPPED, options, release, arch)
        try:
            recipe = builder.builder_recipe(SHIPPED, requested)
        except ConfigError as error:
            refusals[toolkit, arch] = error.code
            continue
        text = recipe.texts["Dockerfile"]
        assert f"CUDA_HOME=/usr/local/cuda-{toolkit} " in text
        _require_complete_text(text)
        assert [note for note in recipe.notes if "left out" in note] == []
        # releases before 1.6 need cuDNN 7, which exists for CUDA 10 and older
        lacks_cudnn = Version(release.version) < Version("1.6") and Version(toolkit).major > 10
        assert any("cuDNN" in note for note in recipe.notes) == lacks_cudnn
        for python in requested.pythons:
            assert _brings_python(text, python), (toolkit, release, python)
    expected = {}
    for cuda in ("9.0", "10.0", "10.2"):  # of Jetsons, which come with their toolkit
        expected[cuda, "aarch64"] = "no-base-image"
    for toolkit, arch, _ in eras:
        if Version(toolkit) > Version(LAST_KNOWN_INSTALLER) and not _has_installer(toolkit, arch):
            expected[toolkit, arch] = "no-base-image"
    if purpose == "distribution":
        for cuda in ("9.0", "9.1"):
            expected[cuda, "x86_64"] = "image-without-compiler"
    assert refusals == expected


def _has_installer(toolkit: str, arch: str) -> bool:
    """Tell whether archives.toml has an installer of a toolkit for a machine."""
    return any(
        archive.kind == "toolkit" and archive.cuda == toolkit and arch in archive.arches
        for archive in SHIPPED.images.archives
    )


def _require_complete_text(text: str) -> None:
    """See that a Dockerfile has no placeholder left, and that every download is compared."""
    plain = text.replace("${", "")
    leftovers = ("None", "  \n", "{", "}", "()", "[]")
    assert [word for word in leftovers if word in plain] == []
    # with an MD5 sum, the list of sums is downloaded as well
    downloads = text.count("sha256sum --check") + 2 * text.count("md5sum --check")
    assert text.count("curl --fail") == downloads


def _brings_python(text: str, python: str) -> bool:
    """Tell if a Dockerfile installs, compiles or downloads a Python, or has it from its base."""
    marks = (
        f"python{python}-dev",
        f"/Python-{python}.",
        f" {python} ",
        f" {python}\n",
        "pypa/manylinux",
    )
    return any(mark in text for mark in marks)


@pytest.mark.parametrize("kind", ["sha256", "checksums"])
def test_a_download_is_compared_with_its_digest(kind: str, tmp_path: Path) -> None:
    served = tmp_path / "served"
    unpacked = tmp_path / "unpacked"
    served.mkdir()
    unpacked.mkdir()
    file = served / "cuda.run"
    file.write_bytes(b"installer")
    sums = served / "md5sum.txt"
    md5 = hashlib.md5(b"installer", usedforsecurity=False).hexdigest()
    sums.write_text(f"{'0' * 32}  other_cuda.run\n{md5}  cuda.run\n")
    digests = {"sha256": hashlib.sha256(b"installer").hexdigest(), "checksums": sums.as_uri()}
    archive = Archive(
        "toolkit", "11.0.3", ("x86_64",), file.as_uri(), "11.0", **{kind: digests[kind]}
    )
    facts = replace(SHIPPED, images=replace(SHIPPED.images, archives=(archive,)))
    text = builder.builder_recipe(facts, _request(GOLDENS["r3-builder-cu110"], "1.8.0")).texts[
        "Dockerfile"
    ]
    commands = text.partition("WORKDIR /unpacked\n")[2].partition("RUN ")[2]
    step = commands.partition(" && sh cuda.run")[0]
    for content, code in ((b"installer", 0), (b"another", 1)):
        file.write_bytes(content)
        argv = ["/bin/sh", "-c", step + " && true"]
        done = subprocess.run(argv, cwd=unpacked, capture_output=True, check=False)
        assert done.returncode == code, done


@cache
def _all_recipes() -> tuple[tuple[str, ImageRecipe], ...]:
    """Return a recipe of every kind on every base image and arch of the facts, with a name."""
    recipes: list[tuple[str, ImageRecipe]] = []
    for arch in ("x86_64", "aarch64"):
        for version in ("1.1.0", "1.13.1", "2.13.0"):
            recipes += _recipes_of_release(arch, version)
        for base in SHIPPED.images.bases:
            if arch in base.arches:
                recipes.append((f"{base.tag}-{arch}", _recipe_on_base(arch, base)))
    return tuple(recipes)


def _recipes_of_release(arch: str, version: str) -> Iterator[tuple[str, ImageRecipe]]:
    for base in ("localhost/mine", "localhost/mine:latest", f"mine@{DIGEST}"):
        for kind in KINDS:
            index = INDEX if kind == "runtime" else ""
            options = ImageOptions(kind, arch=arch, base=base, index=index)
            yield f"{kind}-{version}-{arch}-{base}", _recipe(options, version)
    options = ImageOptions("devcontainer", arch=arch)
    yield f"devcontainer-{version}-{arch}", _recipe(options, version)


def _recipe_on_base(arch: str, base: BaseImage) -> ImageRecipe:
    """Return a recipe on one of our base images, for the first release that can have it."""
    toolkit = base.toolkit or ""
    options_by_role = {
        "manylinux": ImageOptions("builder", arch=arch, purpose="distribution"),
        "system": ImageOptions("builder", arch=arch, base=base.name),
        "cuda": ImageOptions("builder", toolkit=toolkit, arch=arch),
        "toolkit": ImageOptions("builder", toolkit=toolkit, arch=arch, purpose="distribution"),
        "python": ImageOptions("runtime", base.pythons[:1], arch=arch, index=INDEX),
    }
    for release in SHIPPED.releases["torch"]:
        try:
            requested = make_image_request(SHIPPED, options_by_role[base.role], release, arch)
            recipe, _ = image.image_recipe(SHIPPED, requested, NOWHERE, Path("nowhere"))
        except TorchmillError:
            continue
        if base.reference in recipe.texts["Dockerfile"]:  # the release chooses among manylinux
            return recipe
    raise AssertionError(f"nothing is built on {base.name} for {arch}")


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint, "requirements-dev.txt brings it"
    names = dict(enumerate(_all_recipes()))
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
    findings = json.loads(done.stdout)
    codes = {finding["code"] for finding in findings if "wrong" in finding["file"]}
    assert codes >= {"DL3006", "DL3008"}
    assert [finding for finding in findings if "wrong" not in finding["file"]] == []
    assert len(names) > 50


def test_every_base_without_a_digest_has_a_warning() -> None:
    for name, recipe in _all_recipes():
        text = recipe.texts["Dockerfile"]
        bases = [line for line in text.splitlines() if line.startswith("FROM ")]
        unpinned = [line for line in bases if "@sha256:" not in line and "/" in line]
        warned = [note for note in recipe.notes if "is not pinned" in note]
        assert len(unpinned) == len(warned) == text.count("has no digest here"), name


def test_a_runtime_image_keeps_neither_wheels_nor_caches() -> None:
    text = _dockerfile(ImageOptions("runtime", index=INDEX))
    final = text.rpartition("FROM ")[2]
    assert "pip" not in final
    assert "COPY --from=install /opt/torch/ /opt/torch/" in final
    assert "USER 10001" in final
    assert text.count("--no-cache-dir") == text.count("pip install") + text.count("pip download")


def test_pip_gets_requirements_that_metadata_lacks() -> None:
    old = _request(ImageOptions("runtime"), "1.1.0")
    new = _request(ImageOptions("runtime"), "2.13.0")
    assert runtime.companion_requirements(SHIPPED, old, ["torch", "torchvision"]) == (
        "numpy<2",
        "pillow<7",
    )
    assert runtime.companion_requirements(SHIPPED, old, ["torch"]) == ("numpy<2",)
    assert runtime.companion_requirements(SHIPPED, new, ["torch", "torchvision"]) == ("numpy",)


def test_nothing_needs_buildkit() -> None:
    for name, recipe in _all_recipes():
        text = recipe.texts["Dockerfile"]
        for word in ("--mount", "--chmod", "--link", "<<", "# syntax"):
            assert word not in text, name


def test_a_builder_has_a_host_compiler_for_its_toolkit() -> None:
    text = _dockerfile(ImageOptions("builder", toolkit="12.6", purpose="distribution"), "2.8.0")
    # manylinux_2_28 has gcc 14, and CUDA 12.6 takes 13
    assert "gcc-toolset-13-gcc-c++ \\\n" in text
    text = _dockerfile(ImageOptions("builder", toolkit="11.8", purpose="distribution"))
    # manylinux2014 has gcc 10, which CUDA 11.8 takes
    assert "devtoolset" not in text


def test_unavailable_pythons_are_left_out_or_refused() -> None:
    trixie = "docker.io/library/debian:trixie-slim"
    notes = _recipe(ImageOptions("builder", base=trixie)).notes
    assert "Python 3.7 is left out: it is not available" in notes
    with refused("image-without-python"):
        _recipe(ImageOptions("builder", ("3.5",), base=trixie), "1.1.0")
    text = _dockerfile(ImageOptions("builder", base="localhost/mine:1"), "1.1.0")
    assert "command -v python3.5 " in text
    with refused("image-without-python"):
        _recipe(ImageOptions("devcontainer", ("3.5",)), "1.1.0")


def test_a_builder_for_a_source_of_debian_is_of_that_debian() -> None:
    text = _dockerfile(ImageOptions("builder", ("3.13",), purpose="debian"), "2.6.0")
    lines = text.splitlines()
    assert "FROM docker.io/library/debian:trixie-slim" in lines
    assert "        libxnnpack-dev \\" in lines
    with refused("release-not-in-debian"):
        _recipe(ImageOptions("builder", purpose="debian"), "2.7.0")


def test_a_dev_container_fetches_its_release() -> None:
    texts = _recipe(ImageOptions("devcontainer", ("3.7",)), "1.1.0").texts
    settings = json.loads(texts["devcontainer.json"])
    assert settings["postCreateCommand"] == ["invoke", "fetch", "--tag", "v1.1.0"]
    assert settings["remoteUser"] == "dev"


def test_the_wheels_of_a_runtime_image_are_those_of_its_cell(tmp_path: Path) -> None:
    requested = _request(ImageOptions("runtime", ("3.10",)))
    layout = Layout(tmp_path, tmp_path)
    with refused("no-wheel"):
        runtime.image_wheels(SHIPPED, requested, layout.dist)
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
    assert image.image_recipe(SHIPPED, requested, layout, tmp_path)[0].notes == ()
    assert [path.name for path in runtime.image_wheels(SHIPPED, requested, layout.dist)] == [
        "torch-1.13.1+cpu-cp310-cp310-manylinux_2_17_x86_64.whl",
        "torchvision-0.14.1+cpu-cp310-cp310-linux_x86_64.whl",
    ]
    with refused("no-wheel") as caught:
        runtime.image_wheels(SHIPPED, _request(ImageOptions("runtime", ("3.11",))), layout.dist)
    assert "take a Python for which it has one (--python 3.10)" in str(caught.value)
    other_arch = "aarch64" if native_arch() == "x86_64" else "x86_64"
    foreign = replace(requested, arch=other_arch, pythons=("3.11",))
    with refused("no-wheel") as caught:
        runtime.image_wheels(SHIPPED, foreign, layout.dist)
    assert f"(`nox -s wheel-3.11-cpu-{foreign.arch}`)" in str(caught.value)
    recipe, _ = image.image_recipe(SHIPPED, requested, layout, tmp_path)
    assert "COPY wheels/ /wheels/" in recipe.texts["Dockerfile"]
    assert "wheels/torchvision-0.14.1+cpu-cp310-cp310-linux_x86_64.whl" in recipe.copied
    next(layout.dist.glob("torch-1.13.1+cpu*manylinux*")).write_bytes(b"no zip")
    with refused("damaged-wheel"):
        runtime.image_wheels(SHIPPED, requested, layout.dist)


def test_r4_runs_torch_torchvision_and_their_client(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The variant of a wheel without a label is in its manifest."""
    layout = Layout(tmp_path, tmp_path)
    tag = "cp35-cp35m-manylinux_2_23_x86_64"
    for name, version, identifier in (
        ("torch", "1.1.0", "wheel-3.5-cu90"),
        ("torchvision", "0.3.0", "vision-3.5-cu90"),
    ):
        wheel = written_wheels.made(layout.dist, name, version, tag)
        wheel.with_name(f"{wheel.name}.json").write_text(json.dumps({"identifier": identifier}))
    client = written_wheels.made(
        tmp_path / "own", "client", "1.0", "py3-none-any", requires=["torch"]
    )
    requested = _request(ImageOptions("runtime", ("3.5",), "9.0", clients=(str(client),)), "1.1.0")
    recipe, wheels = image.image_recipe(SHIPPED, requested, layout, tmp_path, [client])
    assert [path.name for path in wheels] == [
        f"torch-1.1.0-{tag}.whl",
        f"torchvision-0.3.0-{tag}.whl",
        client.name,
    ]
    assert recipe.copied == {f"wheels/{path.name}": path.name for path in wheels}
    assert "--shm-size=8G" in recipe.run
    golden = GOLDEN / "r4-runtime-cu90.Dockerfile"
    if request.config.getoption("--update-golden"):
        golden.write_text(recipe.texts["Dockerfile"])
    assert recipe.texts["Dockerfile"] == golden.read_text()
    with refused("no-wheel"):
        image.image_recipe(
            SHIPPED, _request(ImageOptions("runtime", ("3.5",)), "1.1.0"), layout, tmp_path
        )
    with refused("invalid-wheel-name"):
        image.image_recipe(SHIPPED, requested, layout, tmp_path, [tmp_path / "client.tar.gz"])
    indexed = _request(ImageOptions("runtime", ("3.10",), index=INDEX))
    recipe, _ = image.image_recipe(SHIPPED, indexed, layout, tmp_path, [client])
    lines = recipe.texts["Dockerfile"].splitlines()
    assert "COPY wheels/ /wheels/" in lines
    assert " && /opt/torch/bin/pip download --no-cache-dir --no-deps --dest /wheels \\" in lines


def test_a_runtime_image_for_one_gpu_has_slim_wheels(tmp_path: Path) -> None:
    """They are made from the original, even if there is a slim wheel for other GPUs already.

    A wheel without code for GPUs goes into the image as it is.
    """
    code = fatbin(*(piece(arch, size=20_000) for arch in (70, 80, 86)))
    library = gpu_libraries.shared(tmp_path / "lib.so", [code]).read_bytes()
    layout = Layout(tmp_path, tmp_path)
    tag = "cp310-cp310-linux_x86_64"
    files = {"torch/lib/libtorch_cuda.so": library}
    torch = written_wheels.made(layout.dist, "torch", "1.13.1+cu118", tag, files=files)
    written_wheels.made(layout.dist, "torchvision", "0.14.1+cu118", tag)
    slim.slim_wheels(SHIPPED, layout, wheel=[str(torch)], arch_list="7.0")
    words = ["image", "--kind=runtime", "--tag=v1.13.1", "--python=3.10", "--toolkit=11.8"]
    words += ["--arch=x86_64", "--gpu=3090", "--gpu=RTX 3080"]
    done = run("invoke", *words, home=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / ".torchmill/images/runtime-1.13.1-cu118-sm86-py3.10-x86_64"
    assert sorted(path.name for path in (folder / "wheels").iterdir()) == [
        f"torch-1.13.1+cu118.sm86-{tag}.whl",
        f"torchvision-0.14.1+cu118-{tag}.whl",
    ]
    assert sorted(path.name for path in folder.parent.iterdir()) == [".locks", folder.name]


@pytest.mark.parametrize("label", ["cu118", "cu118.torch1.13.1"])
def test_the_slim_wheel_is_chosen_unless_the_image_slims_its_wheels(
    tmp_path: Path, label: str
) -> None:
    tag = "cp310-cp310-linux_x86_64"
    original = written_wheels.made(tmp_path, "torch", f"1.13.1+{label}", tag)
    slim_wheel = written_wheels.made(tmp_path, "torch", f"1.13.1+{label}.sm86", tag)
    options = ImageOptions("runtime", ("3.10",), toolkit="11.8", arch="x86_64")
    for gpus, expected in (((), slim_wheel), (("3090",), original)):
        wheels = runtime.image_wheels(SHIPPED, _request(replace(options, gpus=gpus)), tmp_path)
        assert wheels == (expected,)


def test_recipes_follow_from_facts_and_request_alone() -> None:
    requested = _request(ImageOptions("builder"))
    assert builder.builder_recipe(SHIPPED, requested) == builder.builder_recipe(SHIPPED, requested)
    requested = _request(ImageOptions("devcontainer", ("3.10",)))
    first = devcontainer.devcontainer_recipe(SHIPPED, requested)
    assert devcontainer.devcontainer_recipe(SHIPPED, requested) == first


# An engine that copies the Dockerfile that it is to build to $BUILT.
ENGINE = """\
#!/bin/sh
case "$1" in
version) echo 28.2.2 ;;
build) for last; do :; done; cp "$last/Dockerfile" "$BUILT"; echo "#5 [2/2] RUN true" ;;
images) echo 812MB ;;
esac
"""


def test_an_image_is_written_and_built(tmp_path: Path) -> None:
    docker = tmp_path / "bin/docker"
    docker.parent.mkdir()
    docker.write_text(ENGINE)
    docker.chmod(0o755)
    written_wheels.made(tmp_path / "dist", "torch", "1.13.1+cpu", "cp310-cp310-linux_x86_64")
    env = {"PATH": f"{docker.parent}:/usr/bin:/bin", "BUILT": str(tmp_path / "built")}
    words = ("image", "--kind=runtime", "--tag=v1.13.1", "--python=3.10", "--arch=x86_64")
    done = run("invoke", *words, "--build", home=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "localhost/torch-runtime:1.13.1-cpu-py3.10-x86_64: built by docker, 812MB" in done.stdout
    assert "has no torchvision 0.14.1 (cpu) for it: the image has none" in done.stdout
    assert "--shm-size=8G" in done.stdout
    assert "DataLoader workers" in done.stdout
    assert "#5 [2/2] RUN true" in done.stderr
    folder = tmp_path / ".torchmill/images/runtime-1.13.1-cpu-py3.10-x86_64"
    assert (tmp_path / "built").read_text() == (folder / "Dockerfile").read_text()
    assert len(list((folder / "wheels").iterdir())) == 1


def test_two_runs_do_not_write_one_image(tmp_path: Path) -> None:
    words = ("image", "--kind", "builder", "--tag", "v1.13.1", "--arch", "x86_64")
    lock = tmp_path / ".torchmill/images/.locks/builder-1.13.1-cpu-x86_64-development"
    with locks.hold_work_folder(lock, "it"):
        done = run("invoke", *words, home=tmp_path)
    assert done.returncode == 10
    assert "is being built by another run" in done.stderr


def test_without_an_engine_nothing_is_written(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    words = ("image", "--kind=builder", "--build", f"--into={tmp_path / 'in'}")
    done = run("invoke", *words, home=tmp_path, env={"PATH": str(empty)})
    assert done.returncode == 7
    assert without_code(done.stderr).startswith(
        "error: none of docker, podman and buildah is on PATH"
    )
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "in").exists()


def test_too_little_shared_memory_has_a_warning(tmp_path: Path) -> None:
    entry = tmp_path / "run-torch"
    entry.write_text(runtime.ENTRY.read_text("utf-8"))
    df = tmp_path / "df"
    for blocks, warned in (("65536", True), ("8388608", False)):
        df.write_text(f"#!/bin/sh\necho head\necho shm {blocks} 0 {blocks} 0% /dev/shm\n")
        df.chmod(0o755)
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        argv = ["/bin/sh", str(entry), "/bin/echo", "ran"]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
        assert done.stdout == "ran\n"
        assert ("--shm-size=8G or --ipc=host" in done.stderr) == warned


OLD = find_release(SHIPPED, "torch", "1.1.0")
NEW = find_release(SHIPPED, "torch", "1.13.1")


def test_a_builder_has_all_pythons_of_its_release_and_a_runtime_one() -> None:
    requested = _request(ImageOptions("builder", toolkit="11.8"))
    assert requested.pythons == NEW.pythons
    assert requested.variant == "cu118"
    assert requested.purpose == "development"
    assert requested.tag == "localhost/torch-builder:1.13.1-cu118-x86_64-development"
    assert _request(ImageOptions("runtime")).pythons == ("3.11",)
    assert _request(ImageOptions("builder", ("3.10", "3.9"))).pythons == ("3.9", "3.10")


def test_the_newest_python_with_an_image_is_the_default() -> None:
    newest = newest_release(SHIPPED)
    assert newest.pythons[-1].rstrip("t") == "3.15"
    requested = make_image_request(SHIPPED, ImageOptions("devcontainer"), newest, "x86_64")
    devcontainer.devcontainer_recipe(SHIPPED, requested)


def test_a_dev_container_is_used_from_where_it_was_written(tmp_path: Path) -> None:
    for option, place in (
        ((), tmp_path / ".devcontainer"),
        ((f"--into={tmp_path / 'a b'}",), tmp_path / "a b"),
    ):
        done = run(
            "invoke", "image", "--kind=devcontainer", "--tag=v1.13.1", *option, home=tmp_path
        )
        (file,) = place.rglob("devcontainer.json")
        assert f"--config {shlex.quote(str(file.parent))}/devcontainer.json`" in done.stdout


def test_a_mac_runs_linux_of_its_own_processor() -> None:
    requested = make_image_request(SHIPPED, ImageOptions("devcontainer", ("3.10",)), NEW, "arm64")
    assert (requested.arch, requested.name) == ("aarch64", "devcontainer-1.13.1-py3.10-aarch64")
    assert make_image_request(SHIPPED, ImageOptions("devcontainer"), NEW, "amd64").arch == "x86_64"


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
        make_image_request(SHIPPED, options, NEW, "x86_64")
    assert "secret" not in str(refusal.value)


def test_a_misspelt_kind_gets_a_suggestion() -> None:
    with refused("unknown-choice") as refusal:
        make_image_request(SHIPPED, ImageOptions("bilder"), NEW, "x86_64")
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
def test_axes_that_a_release_does_not_have_are_refused(options: ImageOptions, choices: str) -> None:
    with refused("impossible-build") as refusal:
        make_image_request(SHIPPED, options, OLD, "x86_64")
    assert choices in str(refusal.value)


FACTS = ROOT / "build_configs"


def _small_recipe(text: str, **copied: str) -> ImageRecipe:
    return ImageRecipe(
        {"Dockerfile": text, "entry": "#!/bin/sh\n"}, copied, (), frozenset({"entry"})
    )


def _write(place: Path, recipe: ImageRecipe, wheels: dict[str, Path] | None = None) -> None:
    folder.write_image_folder(place, recipe, wheels or {}, FACTS)


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


def test_the_suite_is_copied_without_caches(tmp_path: Path) -> None:
    _write(tmp_path / "image", _small_recipe("FROM a\n", suite="suite"))
    suite = tmp_path / "image/suite"
    assert {"noxfile.py", "tasks.py", "requirements.txt", "torchmill", "build_configs"} <= {
        entry.name for entry in suite.iterdir()
    }
    assert list(suite.rglob("__pycache__")) == []
    assert (suite / "build_configs/images.toml").read_bytes() == (
        FACTS / "images.toml"
    ).read_bytes()


def test_foreign_files_stay(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM theirs\n")
    with refused("foreign-folder"):
        _write(tmp_path, _small_recipe("FROM a\n"))
    assert (tmp_path / "Dockerfile").read_text() == "FROM theirs\n"


def test_a_file_that_was_edited_by_hand_stays(tmp_path: Path) -> None:
    place = tmp_path / "image"
    _write(place, _small_recipe("FROM a\n"))
    (place / "Dockerfile").write_text("FROM a\nRUN mine\n")
    with refused("changed-by-hand"):
        _write(place, _small_recipe("FROM b\n"))
    assert "mine" in (place / "Dockerfile").read_text()


def test_a_file_that_was_added_by_hand_stays(tmp_path: Path) -> None:
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


def test_a_wheel_that_was_added_by_hand_stays(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"wheel")
    place = tmp_path / "image"
    recipe = _small_recipe("FROM a\n", **{"wheels/a.whl": "a.whl"})
    _write(place, recipe, {"a.whl": wheel})
    _write(place, recipe, {"a.whl": wheel})
    (place / "wheels/mine.whl").write_bytes(b"mine")
    with refused("foreign-folder"):
        _write(place, recipe, {"a.whl": wheel})
    assert (place / "wheels/mine.whl").read_bytes() == b"mine"


def test_an_edit_in_the_copied_suite_stays(tmp_path: Path) -> None:
    place = tmp_path / "image"
    recipe = _small_recipe("FROM a\n", suite="suite")
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
    requested = _request(ImageOptions("runtime", ("3.11",), base=base), "2.6.0")
    wheel = f"torch-2.6.0+cpu-cp311-cp311-{platform}.whl"
    if fits:
        assert wheel in runtime.runtime_recipe(SHIPPED, requested, [wheel], ()).copied.values()
        return
    with refused("unsupported-image"):
        runtime.runtime_recipe(SHIPPED, requested, [wheel], ())


def test_the_home_of_an_unknown_user_is_an_ordinary_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    layout = Layout(tmp_path, tmp_path / "cache")
    with refused("invalid-wheel-name"):
        image.write_image(
            SHIPPED,
            layout,
            kind="runtime",
            tag="v1.13.1",
            index=INDEX,
            client=["~nosuchuser/x.whl"],
        )
    image.write_image(
        SHIPPED, layout, kind="runtime", tag="v1.13.1", index=INDEX, into="~nosuchuser/x"
    )
    assert (tmp_path / "~nosuchuser/x/Dockerfile").exists()


# A stand-in for apt-get that brings this system's own compiler as a cross compiler into {root}.
APT_GET = """\
version=$(gcc -dumpversion) triplet=$(gcc -dumpmachine)
mkdir -p {root}/usr/lib/gcc-cross/$triplet/$version
ln -sf "$(gcc -print-prog-name=cc1plus)" {root}/usr/lib/gcc-cross/$triplet/$version/cc1plus
"""


def _run_cross_compilers(place: Path, *, has_any: bool) -> subprocess.CompletedProcess[str]:
    """Run cross-compilers.sh with all of its folders below `place`.

    Its archive has this system's own compiler, or none.
    """
    script = builder.CROSS_COMPILERS.read_text(encoding="utf-8")
    for path in (
        "/usr/local/include",
        "/usr/lib/$1-linux-gnu",
        "/usr/$triplet",
        "/usr/lib/gcc-cross",
        "/opt/cross",
    ):
        script = script.replace(path, f"{place}{path}")
    script = script.replace("loader=/", f"loader={place}/")
    # Of the first two mentions of this folder, the script writes to the second one.
    script = script.replace('"/usr/include/c++/', f'"{place}/c++/', 2)
    script = script.replace(f'"{place}/c++/', '"/usr/include/c++/', 1)
    apt_get = place / "bin" / "apt-get"
    apt_get.parent.mkdir(parents=True, exist_ok=True)
    install = APT_GET.format(root=place / "opt/cross-compilers") if has_any else "exit 100"
    apt_get.write_text(f'#!/bin/sh\ncase "$*" in *install*)\n{install} ;; esac\n')
    apt_get.chmod(0o755)
    for version in Path("/usr/include/c++").iterdir():
        (place / "c++" / version.name).mkdir(parents=True, exist_ok=True)
    variables = {**os.environ, "PATH": f"{apt_get.parent}:/usr/bin:/bin"}
    argv = ["/bin/sh", "-c", script, "cross-compilers.sh", "aarch64"]
    return subprocess.run(argv, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not (Path("/etc/apt").is_dir() and shutil.which("g++")), reason="Debian's g++")
def test_without_cross_compilers_their_folder_is_removed(tmp_path: Path) -> None:
    compilers = tmp_path / "opt/cross-compilers/bin"
    for _ in range(2):  # the second run is in an image that has them already
        done = _run_cross_compilers(tmp_path, has_any=True)
        assert done.returncode == 0, done.stderr
        assert compilers.is_dir(), done.stderr
    done = _run_cross_compilers(tmp_path / "other", has_any=False)
    assert done.returncode == 0, done.stderr
    assert "all compilers stay emulated" in done.stderr
    assert not (tmp_path / "other/opt/cross-compilers/bin").exists()

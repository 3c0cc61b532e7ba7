"""Publishing wheel variants that is killed: no client finds a variant whose wheel is not there."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
import pytest
from millpress import file_names
from press_support import written_wheels

from tests.support import documented_wheels, gpu_libraries, variant_clients
from tests.support import publishing_servers as servers
from tests.support.fatbins import fatbin, piece
from tests.support.made_index import Home, served
from tests.support.refusals import refused
from torchmill.commands import publish, slim
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout
from torchmill.deliver.index.variant_files import SUFFIX
from torchmill.deliver.publish import upload_set
from torchmill.fetch import package_index
from torchmill.wheel import dist_files, variant_metadata

TAG = "py3-none-manylinux_2_28_x86_64"
ANY = "py3-none-any"
PUBLISHED = f"tinytorch-1.13.1+cpu-{ANY}"
KILLED = 9
BUCKET = "variants"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    code = fatbin(*(piece(arch, size=20_000) for arch in (75, 86, 90)))
    folder = tmp_path_factory.mktemp("library")
    return gpu_libraries.shared(folder / "lib.so", [code]).read_bytes()


def made(home: Home, library: bytes, *capabilities: str) -> None:
    """Write a wheel into dist/, and its variants."""
    files = {"torch/lib/libtorch_cuda.so": library, "torch/version.py": b"cuda = '13.2'\n"}
    wheel = home.dist / f"torch-2.15.0-{TAG}.whl"
    if not wheel.exists():
        written_wheels.made(home.dist, "torch", "2.15.0", TAG, files=files)
    layout = Layout(home.path, home.path / "cache")
    slim.slim_wheels(home.facts, layout, wheel=[*capabilities], variants=True)


def killed_at(
    number: int, is_counted: Callable[[str, tuple[Any, ...]], bool], run: Callable[[], object]
) -> bool:
    """Run something in a process that is killed before it does something for the last time.

    `is_counted` tells of an event of Python's auditing whether it counts; the process ends without
    any cleaning up before the event with this number. False if it came to its end before.
    """
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in {0, KILLED}
        return code == KILLED
    events = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal events
        if is_counted(event, arguments):
            events += 1
            if events == number:
                os._exit(KILLED)

    try:
        sys.addaudithook(count)
        run()
        os._exit(0)
    finally:
        os._exit(1)


def page_links(page: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the file and the digest that each link of a page names."""
    for file in package_index.parse_html_page(page.read_text("utf-8"), page.as_uri()):
        if file.name.endswith((".whl", SUFFIX)):
            url = urlsplit(file.url)
            yield Path(unquote(url.path)), file.sha256


def require_whole(out: Path) -> int:
    """Require that all files which pages name are there, and what variants they describe.

    Returns the number of pages that describe variants.
    """
    count = 0
    for page in out.glob("**/*.html"):
        links = list(page_links(page))
        labels = set()
        described = set()
        for path, digest in links:
            assert sha256(path.read_bytes()).hexdigest() == digest, f"{page}: {path}"
            if path.name.endswith(SUFFIX):
                described = set(variant_metadata.parse_metadata(path.read_bytes(), path.name))
            elif label := file_names.split_label(path.name)[1]:
                labels.add(label)
        assert labels == described, page
        count += bool(described)
    return count


def installed(tmp_path: Path, out: Path) -> str:
    """Return the label of what uv installs from an index for a GPU of 8.6."""
    with served(out) as port:
        return variant_clients.pip_install(
            tmp_path,
            f"http://127.0.0.1:{port}/",
            "torch==2.15.0",
            variant_clients.forced("8.6"),
            *variant_clients.PREVIEW,
        )


def test_an_index_that_is_killed_is_whole_all_the_time(
    tmp_path: Path, shipped: Facts, library: bytes
) -> None:
    """Variants come and go, at each step of writing; the same command completes the index."""
    home = Home(tmp_path, shipped)
    made(home, library, "7.5", "8.6")
    home.index(variants=True)
    before = tmp_path / "before"
    shutil.copytree(home.out, before, copy_function=shutil.copy2)
    for path in home.dist.glob("*-cu132_sm75.*"):
        path.unlink()
    made(home, library, "8.6", "9.0")

    def is_counted(event: str, arguments: tuple[Any, ...]) -> bool:
        names = {"os.rename": 1, "os.remove": 0}
        return event in names and str(arguments[names[event]]).startswith(str(home.out))

    number = 1
    steps = 0
    while killed_at(number, is_counted, lambda: home.index(variants=True)):
        assert require_whole(home.out) == 2
        if number % 5 == 0:
            assert installed(tmp_path, home.out) == "cu132_sm86"
        steps += 1
        number += 1
        shutil.rmtree(home.out)
        shutil.copytree(before, home.out, copy_function=shutil.copy2)
    assert steps > 10
    assert require_whole(home.out) == 2
    whole = {path.relative_to(home.out) for path in home.out.glob("**/*")}
    # killed in the middle, then completed
    shutil.rmtree(home.out)
    shutil.copytree(before, home.out, copy_function=shutil.copy2)
    assert killed_at(steps // 2, is_counted, lambda: home.index(variants=True))
    home.index(variants=True)
    assert {path.relative_to(home.out) for path in home.out.glob("**/*")} == whole
    assert require_whole(home.out) == 2


def test_the_way_back_that_is_killed_is_whole_all_the_time(
    tmp_path: Path, shipped: Facts, library: bytes
) -> None:
    home = Home(tmp_path, shipped)
    made(home, library, "8.6")
    home.index(variants=True)
    before = tmp_path / "before"
    shutil.copytree(home.out, before, copy_function=shutil.copy2)

    def is_counted(event: str, arguments: tuple[Any, ...]) -> bool:
        return event == "os.remove" and str(arguments[0]).startswith(str(home.out))

    number = 1
    while killed_at(number, is_counted, home.index):
        require_whole(home.out)
        number += 1
        shutil.rmtree(home.out)
        shutil.copytree(before, home.out, copy_function=shutil.copy2)
    assert number > 3
    assert require_whole(home.out) == 0


@pytest.fixture(params=["folder", "bucket"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Callable[[], Mapping[str, bytes]]]]:
    """Return the address of a place, and a function that returns what it has."""
    if request.param == "folder":
        folder = tmp_path / "there"

        def of_folder() -> Mapping[str, bytes]:
            if not folder.exists():
                return {}
            return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

        yield str(folder), of_folder
        return
    with servers.s3(BUCKET) as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)

        def of_bucket() -> Mapping[str, bytes]:
            contents = {}
            for entry in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
                answer = client.get_object(Bucket=BUCKET, Key=entry["Key"])
                contents[entry["Key"]] = answer["Body"].read()
            return contents

        yield f"s3://{BUCKET}", of_bucket


def test_publishing_that_is_killed_goes_on(
    tmp_path: Path,
    shipped: Facts,
    place: tuple[str, Callable[[], Mapping[str, bytes]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed after each upload: each wheel has its documents, and an index of the rest is whole."""
    to, contents = place
    home = Home(tmp_path, shipped)
    documented_variants(home)
    layout = Layout(home.path, home.path / "cache")
    wheels = {path.name for path in home.dist.glob("*.whl")}
    upload = upload_set.upload_file

    def then_killed(*arguments: Any) -> None:
        upload(*arguments)
        os._exit(KILLED)

    half = Home(tmp_path / "half", shipped)
    rounds = 0
    while True:
        with monkeypatch.context() as patches:
            patches.setattr(upload_set, "upload_file", then_killed)
            was_killed = killed_at(0, never, lambda: publish.publish_wheels(layout, to=to))
        if not was_killed:
            break
        rounds += 1
        there = contents()
        for name in there:
            if name.endswith(".whl"):
                assert all(f"{name}{suffix}" in there for suffix in dist_files.DOCUMENT_SUFFIXES)
                assert there[name] == (home.dist / name).read_bytes()
        if any(name.endswith(".whl") for name in there):
            index_what_is_there(half, there)
    # a run that finds all files there uploads none, so that it is not killed
    there = contents()
    assert {name for name in there if name.endswith(".whl")} == wheels
    assert rounds == len(there)
    index_what_is_there(half, there)
    assert require_whole(half.out) == 4


def never(event: str, arguments: tuple[Any, ...]) -> bool:
    """Count no event of auditing."""
    del event, arguments
    return False


def documented_variants(home: Home) -> None:
    """Write a wheel with documents, which publishing needs, and its variants for processors."""
    plain = documented_wheels.built(home.dist, "1.13.1+cpu", tag=ANY)
    for level in ("v3", "v4"):
        wheel = documented_wheels.built(home.dist, f"1.13.1+cpu.x86.64.{level}", tag=ANY)
        manifest = dist_files.read_manifest(wheel)
        processor = {"name": f"x86-64-{level}", "flags": [], "needs": ["avx2"]}
        documented_wheels.write(wheel, manifest | {"processor": processor})
    home.index(variants=True)
    shutil.rmtree(home.out)
    for path in home.dist.glob("*+cpu.x86*"):
        path.unlink()
    assert plain.exists()


def index_what_is_there(home: Home, there: Mapping[str, bytes]) -> None:
    """Write the index of a place, and require that it is whole, or that it is refused."""
    for folder in (home.dist, home.out):
        shutil.rmtree(folder, ignore_errors=True)
    home.dist.mkdir(parents=True)
    for name, content in there.items():
        (home.dist / name).write_bytes(content)
    if f"{PUBLISHED}.whl" in there:
        home.index(variants=True)
    else:
        with refused("variant-without-fallback"):
            home.index(variants=True)
    if home.out.exists():
        require_whole(home.out)

"""A flaky network: servers that fail one request in five, at random, in front of which nothing may fail.

A *case* is one whole command, such as a fetch of a release with its submodules, against a server behind a proxy that
fails requests (`flaky_server`). It must end with the same result as without faults. An upload must also leave the
target as one upload does: each file once, complete, with its bytes.
"""

from __future__ import annotations

import asyncio
import bz2
import contextlib
import functools
import hashlib
import io
import json
import os
import platform
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.faults.connections import (
    GitHandler,
    QuietFiles,
    busy_forge,
    quiet_environment,
    served,
)
from tests.faults.flaky_server import RATE, WAYS, FlakyProxy, flaky
from tests.faults.tally import CommandOutcome, Tally
from tests.support import documented_wheels, index_server, nvidia_wheels, publishing_servers
from tests.support.changed_facts import change_groups
from tests.support.debian_archive import DebianArchive
from tests.support.silent_progress import SilentProgress
from tests.support.source_upstream import layout, package, release, request
from torchmill.commands.publish import deliver_files
from torchmill.config.toolkit import ToolkitSource
from torchmill.deliver.index.references import read_references
from torchmill.deliver.publish import targets, upload_set
from torchmill.deliver.publish.upload_set import UploadFile
from torchmill.fetch.download import http_session
from torchmill.fetch.source.apt import Apt, download_binaries, list_binaries
from torchmill.fetch.source.apt_archives import BINARIES, AptArchive
from torchmill.fetch.source.fetcher import fetch_source
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.tree import digest_contents
from torchmill.fetch.toolkit import conda, pypi
from torchmill.fetch.toolkit.request import ProviderOffer, ToolkitRequest
from torchmill.wheel import dist_files, finished_wheel

SILENCE_SECONDS = 4.0  # after which torchmill ends a silent connection
_SILENT_ANSWER_SECONDS = 6.0
# Of the clients whose limit of silence is fixed, and longer: 10 s for apt, 60 s for boto3 and GitHub.
_WITHOUT_SILENCE = tuple(way for way in WAYS if way != "silence")
_REPOSITORY = "me/wheels"
_BUCKET = "wheels"
_ARCH = platform.machine()

# Does the work in a folder, against a server behind the proxy; returns a digest of the result.
Attempt = Callable[[Path], str]
Setting = tuple[FlakyProxy, Attempt]


def attack_kind(kind: str, count: int, seed: int) -> Tally:
    """Run `count` cases of one of KINDS."""
    tally = Tally(f"flaky: {kind}")
    with (
        tempfile.TemporaryDirectory() as folder,
        quiet_environment(Path(folder)),
        KINDS[kind](Path(folder), f"{seed} {kind}") as (proxy, attempt),
    ):
        os.environ["TORCHMILL_SILENCE"] = f"{SILENCE_SECONDS:g}"
        os.environ.pop("TORCHMILL_TRIES", None)
        expected = attempt(Path(folder, "whole"))
        proxy.requests = 0
        proxy.rate = RATE
        for number in range(count):
            place = Path(folder, str(number))
            outcome = CommandOutcome.of(functools.partial(attempt, place), expected)
            tally.add(f"case {number}", outcome.complaint or _ended(outcome))
    tally.notes["requests"] = proxy.requests
    for way, number in proxy.faults.items():
        tally.notes[way] = number
    return tally


def _ended(outcome: CommandOutcome) -> str:
    """Return how a case ended: a refusal is a failure, too."""
    return f"refused: {outcome.code}" if outcome.code else outcome.result


@contextlib.contextmanager
def _git(folder: Path, seed: str) -> Iterator[Setting]:
    """Fetch a release with its submodules from git over HTTPS."""
    handler = type("Handler", (GitHandler,), {"folder": str(folder / "forge")})
    with (
        served(handler) as port,
        flaky(port, seed, silence=_SILENT_ANSWER_SECONDS, certified=folder) as proxy,
    ):
        os.environ["GIT_SSL_CAINFO"] = str(folder / "certificate.pem")
        forge = busy_forge(folder / "forge", proxy.url)

        def attempt(place: Path) -> str:
            source = fetch_source(request(forge), layout(place), SilentProgress())
            return digest_contents(source.path)

        yield proxy, attempt


@contextlib.contextmanager
def _archive(folder: Path, seed: str) -> Iterator[Setting]:
    """Fetch a release from the address of an archive, which is resumed when it breaks off."""
    (folder / "served").mkdir()
    (folder / "served/t.tar.gz").write_bytes(_source_archive("torch-1"))
    digest = hashlib.sha256((folder / "served/t.tar.gz").read_bytes()).hexdigest()
    with (
        served(functools.partial(QuietFiles, directory=str(folder / "served"))) as port,
        flaky(port, seed, silence=_SILENT_ANSWER_SECONDS) as proxy,
    ):

        def attempt(place: Path) -> str:
            wanted = SourceRequest(
                package("https://forge.invalid/a/torch.git"),
                release("v1", None),
                origin=f"{proxy.url}/t.tar.gz",
                sha256=digest,
            )
            return digest_contents(fetch_source(wanted, layout(place), SilentProgress()).path)

        yield proxy, attempt


@contextlib.contextmanager
def _pypi(_: Path, seed: str) -> Iterator[Setting]:
    """Fetch a release from a package index."""
    index = index_server.Index()
    nvidia_wheels.put(index, "torch-1.0.tar.gz", _source_archive("torch-1.0"))
    with _flaky_index(index, seed) as proxy:
        torch = change_groups(package(""), source={"pypi": "torch"})
        wanted = SourceRequest(torch, release("v1.0", None), origin="pypi")

        def attempt(place: Path) -> str:
            return digest_contents(fetch_source(wanted, layout(place), SilentProgress()).path)

        yield proxy, attempt


@contextlib.contextmanager
def _toolkit(_: Path, seed: str) -> Iterator[Setting]:
    """Install a toolkit from NVIDIA's packages on an index."""
    index = index_server.Index()
    parts = {
        "nvidia_cuda_nvcc": {"bin/nvcc": "#!/bin/sh\n", "include/fatbinary_section.h": ""},
        "nvidia_cuda_runtime": {"include/cuda.h": "#define A\n", "lib/libcudart.so.13": "library"},
        "nvidia_nvvm": {"nvvm/bin/cicc": "#!/bin/sh\n", "lib/libnvvm.so.4": "library"},
    }
    names = []
    for part, files in parts.items():
        content = nvidia_wheels.wheel("nvidia/cu13", files, name=f"{part}-13.0.88")
        nvidia_wheels.put(index, f"{part}-13.0.88-py3-none-manylinux1_{_ARCH}.whl", content)
        names.append(f"{part.replace('_', '-')}==13.0.88")
    source = ToolkitSource("pypi", "toolkit", ("13.0",), tuple(names), (_ARCH,), (), None, "")
    with _flaky_index(index, seed) as proxy:

        def attempt(place: Path) -> str:
            wanted = ToolkitRequest("toolkit", "13.0", None, _ARCH)
            offer = pypi.offer(wanted, [source], place / "cache", SilentProgress())
            return _filled(offer, place)

        yield proxy, attempt


@contextlib.contextmanager
def _conda(folder: Path, seed: str) -> Iterator[Setting]:
    """Install a toolkit from a conda channel."""
    import rattler

    channel = folder / "channel"
    files = {"bin/nvcc": "#!/bin/sh\n", "nvvm/bin/cicc": "#!/bin/sh\n"}
    _write_conda_package(channel, "cuda-nvcc-impl", files, ["cuda-cudart-dev 12.6.*"])
    _write_conda_package(
        channel, "cuda-cudart-dev", {"targets/x86_64-linux/include/cuda.h": "#define A\n"}, []
    )
    asyncio.run(rattler.index.index_fs(channel))
    with (
        served(functools.partial(QuietFiles, directory=str(channel))) as port,
        flaky(port, seed, _WITHOUT_SILENCE) as proxy,
    ):
        source = ToolkitSource(
            "conda", "toolkit", ("12.6",), ("cuda-nvcc-impl",), (_ARCH,), (proxy.url,), None, ""
        )

        def attempt(place: Path) -> str:
            wanted = ToolkitRequest("toolkit", "12.6", None, _ARCH)
            offer = conda.offer(wanted, [source], place / "cache", SilentProgress())
            return _filled(offer, place)

        yield proxy, attempt


def _filled(offer: object, place: Path) -> str:
    """Return a digest of the folder that an offer fills."""
    if not isinstance(offer, ProviderOffer):
        return str(offer)
    (place / "home").mkdir(parents=True)
    offer.fill(place / "home")
    return digest_contents(place / "home")


@contextlib.contextmanager
def _apt(folder: Path, seed: str) -> Iterator[Setting]:
    """Read the lists of an archive of Debian, and download two packages."""
    archive = DebianArchive(folder / "debian")
    archive.folder.mkdir()
    for name in ("one", "two"):
        archive.add(name, "1.0-1", {f"usr/share/{name}": name * 5000})
    archive.publish()
    with (
        served(functools.partial(QuietFiles, directory=str(archive.folder))) as port,
        flaky(port, seed, _WITHOUT_SILENCE) as proxy,
    ):
        trusted = (("Trusted", "yes"),)
        listed = AptArchive(proxy.url, archive.suite, ("main",), trusted, BINARIES)

        def attempt(place: Path) -> str:
            apt = Apt(place)
            apt.configure([listed], "amd64")
            packages, failure = apt.query(lambda: list_binaries(apt, ("one", "two")), bool)
            if failure is not None:
                raise failure
            (place / "got").mkdir()
            download_binaries(apt, list(packages.values()), place / "got", lambda _: None)
            return digest_contents(place / "got")

        yield proxy, attempt


@contextlib.contextmanager
def _index(_: Path, seed: str) -> Iterator[Setting]:
    """Read pages of an index, and METADATA beside one wheel and in another."""
    index = index_server.Index()
    for name in ("beside", "inside"):
        content = index_server.wheel(name, "1.0", libraries={"a.so": 200_000})
        nvidia_wheels.put(index, f"{name}-1.0-py3-none-any.whl", content)
    metadata = b"Metadata-Version: 2.1\nName: beside\nVersion: 1.0\n\n"
    index.files["beside-1.0-py3-none-any.whl.metadata"] = metadata
    index.attributes["beside-1.0-py3-none-any.whl.metadata"] = {}
    with _flaky_index(index, seed) as proxy:

        def attempt(_place: Path) -> str:
            with http_session() as session:
                found = read_references(
                    session, f"{proxy.url}/simple", ("beside==1.0", "inside==1.0")
                )
            entries = [wheel.entry for wheel in found]
            return str([(entry.file, entry.sha256, entry.metadata_sha256) for entry in entries])

        yield proxy, attempt


@contextlib.contextmanager
def _flaky_index(index: index_server.Index, seed: str) -> Iterator[FlakyProxy]:
    """Serve an index, and make it pip's index."""
    with (
        index_server.serving(index),
        flaky(_port(index.url), seed, silence=_SILENT_ANSWER_SECONDS) as proxy,
    ):
        os.environ["PIP_INDEX_URL"] = f"{proxy.url}/simple"
        yield proxy


@contextlib.contextmanager
def _twine(folder: Path, seed: str) -> Iterator[Setting]:
    """Publish a wheel to a package index."""
    files = _files_to_publish(folder, documents=False)
    login = {
        "TWINE_USERNAME": publishing_servers.USER,
        "TWINE_PASSWORD": publishing_servers.PASSWORD,
    }
    packages = folder / "packages"
    with (
        publishing_servers.pypiserver(packages, disable_fallback=True) as url,
        flaky(_port(url), seed, silence=_SILENT_ANSWER_SECONDS) as proxy,
    ):

        def attempt(_: Path) -> str:
            for stored in packages.iterdir():
                stored.unlink()
            deliver_files(targets.choose_target(proxy.url, {**os.environ, **login}), files)
            return _digest_of({path.name: path.read_bytes() for path in packages.iterdir()})

        yield proxy, attempt


@contextlib.contextmanager
def _github(folder: Path, seed: str) -> Iterator[Setting]:
    """Publish a wheel and its documents to a new release on GitHub."""
    files = _files_to_publish(folder, documents=True)
    with (
        publishing_servers.github() as hub,
        flaky(_port(hub.url), seed, _WITHOUT_SILENCE) as proxy,
    ):
        hub.url = proxy.url
        environ = {"GH_TOKEN": publishing_servers.TOKEN, "GITHUB_API_URL": proxy.url}

        def attempt(_: Path) -> str:
            hub.releases.clear()
            deliver_files(targets.choose_target(f"github:{_REPOSITORY}@v1", environ), files)
            (only,) = hub.releases
            assets = [(asset["name"], asset["state"]) for asset in only["assets"]]
            stored = {asset["name"]: hub.contents[asset["id"]] for asset in only["assets"]}
            return f"{only['draft']} {sorted(assets)} {_digest_of(stored)}"

        yield proxy, attempt


@contextlib.contextmanager
def _bucket(folder: Path, seed: str) -> Iterator[Setting]:
    """Publish a wheel and its documents to a bucket of S3."""
    import boto3

    files = _files_to_publish(folder, documents=True)
    with publishing_servers.s3(_BUCKET) as environ:
        os.environ.update(environ)
        direct = boto3.client("s3")
        direct.create_bucket(Bucket=_BUCKET)
        with flaky(_port(environ["AWS_ENDPOINT_URL"]), seed, _WITHOUT_SILENCE) as proxy:
            os.environ["AWS_ENDPOINT_URL"] = proxy.url

            def attempt(place: Path) -> str:
                deliver_files(targets.choose_target(f"s3://{_BUCKET}/{place.name}", {}), files)
                listed = direct.list_objects_v2(Bucket=_BUCKET, Prefix=f"{place.name}/")
                stored = {}
                for entry in listed["Contents"]:
                    body = direct.get_object(Bucket=_BUCKET, Key=entry["Key"])["Body"]
                    stored[entry["Key"].rpartition("/")[2]] = body.read()
                return _digest_of(stored)

            yield proxy, attempt


def _files_to_publish(folder: Path, *, documents: bool) -> list[UploadFile]:
    """Return a wheel, and with `documents` the files beside it."""
    wheel = documented_wheels.built(folder, "1.13.1+cpu")
    suffixes: Sequence[str] = dist_files.DOCUMENT_SUFFIXES if documents else ()
    return list(upload_set.upload_files(finished_wheel.read_wheel(wheel), suffixes))


def _digest_of(files: Mapping[str, bytes]) -> str:
    """Return the names of files, and a digest of their contents."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(files[name])
    return f"{sorted(files)} {digest.hexdigest()}"


def _source_archive(top: str) -> bytes:
    """Return a source of a Python package with 90 KB that cannot be compressed."""
    made = io.BytesIO()
    noise = b"".join(hashlib.sha256(str(number).encode()).digest() for number in range(3000))
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, content in (("setup.py", b"version = 1\n"), ("noise", noise)):
            info = tarfile.TarInfo(f"{top}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def _write_conda_package(
    channel: Path, name: str, files: Mapping[str, str], depends: Sequence[str]
) -> None:
    """Write a package of version 12.6.1 into a channel."""
    subdir = conda.SUBDIRS[_ARCH]
    entries = [{"_path": path, "path_type": "hardlink"} for path in files]
    description: dict[str, Any] = {
        "name": name,
        "version": "12.6.1",
        "build": "0",
        "build_number": 0,
        "depends": list(depends),
        "subdir": subdir,
    }
    members = {
        "info/index.json": json.dumps(description),
        "info/paths.json": json.dumps({"paths": entries, "paths_version": 1}),
        **files,
    }
    file = channel / subdir / f"{name}-12.6.1-0.tar.bz2"
    file.parent.mkdir(parents=True, exist_ok=True)
    (channel / "noarch").mkdir(exist_ok=True)
    with bz2.open(file, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for path, text in members.items():
            info = tarfile.TarInfo(path)
            info.mode = 0o755 if "bin/" in path else 0o644
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))


def _port(url: str) -> int:
    """Return the port of a server here."""
    port = urlsplit(url).port
    assert port is not None
    return port


KINDS: dict[str, Callable[[Path, str], contextlib.AbstractContextManager[Setting]]] = {
    "git": _git,
    "archive": _archive,
    "pypi": _pypi,
    "toolkit": _toolkit,
    "conda": _conda,
    "apt": _apt,
    "index": _index,
    "twine": _twine,
    "github": _github,
    "bucket": _bucket,
}

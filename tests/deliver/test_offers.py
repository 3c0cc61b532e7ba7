"""TORCHMILL_WHEELS: a cell takes a wheel of another machine only if it would make the same."""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.support import publishing_servers
from tests.support.commands import run
from tests.support.made_index import served
from tests.support.openssl import make_key, public_of
from tests.support.refusals import refused
from tests.support.sampled import THIS, Sample, fetched, in_this_process
from torchmill.cell.context import BuildContext
from torchmill.cell.up_to_date import find_delivered_wheel
from torchmill.core.digests import hash_file
from torchmill.deliver import offers
from torchmill.deliver.signature import check_signatures, read_signer, read_trusted_keys, sign_wheel
from torchmill.wheel import dist_files

pytestmark = pytest.mark.slow

SESSION = f"wheel-{THIS}-cpu"
# A rule that links a library of a system package, which then gets into the wheel.
BUNDLING = """
[[rule]]
reason = "the wheel holds a library of the system"
source = "test"
set = { LDFLAGS = "-Wl,--no-as-needed -lgomp" }
"""
JSON = ".json"
STATEMENT = ".intoto.json"
SBOM = ".cdx.json"


def bundle_library(sample: Sample) -> None:
    """Add the rule that links a library of the system to the facts of a checkout."""
    with (sample.configs / "packages" / "tinytorch.toml").open("a", encoding="utf-8") as file:
        file.write(BUNDLING)


@pytest.fixture(scope="module")
def maker(
    tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path, cache: Path
) -> Sample:
    """Return a checkout that has built the sample's wheel and offers its dist/."""
    sample = fetched(tmp_path_factory.mktemp("maker"), upstream, envs, cache)
    bundle_library(sample)
    done = sample.nox("-s", SESSION)
    assert done.returncode == 0, done.stdout + done.stderr
    return sample


@pytest.fixture(scope="module")
def taker(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> Sample:
    """Return another checkout of the same release, which has built nothing."""
    sample = fetched(tmp_path_factory.mktemp("taker"), upstream, envs)
    bundle_library(sample)
    return sample


@contextmanager
def at_home(sample: Sample, env: dict[str, str]) -> Iterator[BuildContext]:
    """Give the cell of a checkout with an empty dist/, in an environment with some variables."""
    shutil.rmtree(sample.home / "dist", ignore_errors=True)
    with in_this_process(sample, SESSION, env) as create:
        yield create()


def take(sample: Sample, place: str, **env: str) -> tuple[bool, str]:
    """Tell if the cell took its wheel from a place, and return the notes."""
    notes: list[str] = []
    with at_home(sample, {offers.VARIABLE: place, **env}) as context:
        success = offers.take_wheel(context, notes.append)
        assert (find_delivered_wheel(context) is not None) == success
        assert not context.outputs.offers.exists(), "the folder of offers is still there"
    return success, "\n".join(notes)


def refusal(sample: Sample, place: str, **env: str) -> str:
    """Return the notes about a place from which the cell takes nothing."""
    success, notes = take(sample, place, **env)
    assert not success, notes
    return notes


def invoke(sample: Sample, *words: str, env: Mapping[str, str] | None = None) -> None:
    """Run a task of a checkout, which must succeed."""
    done = run("invoke", *words, home=sample.home, env={**sample.env, **(env or {})})
    assert done.returncode == 0, done.stdout + done.stderr


def wheel_of(sample: Sample) -> Path:
    return next((sample.home / "dist").glob("*.whl"))


def offered(maker: Sample, folder: Path) -> Path:
    """Return a copy of the maker's wheel and its documents, for a test to damage."""
    shutil.copytree(maker.home / "dist", folder / "offer")
    return next((folder / "offer").glob("*.whl"))


def test_another_checkout_takes_the_wheel_and_compiles_nothing(
    maker: Sample, taker: Sample
) -> None:
    shutil.rmtree(taker.home / "dist", ignore_errors=True)
    places = f"{maker.folder}/nowhere {maker.home}/dist"
    env = {**taker.env, offers.VARIABLE: places}
    done = run("nox", "--envdir", str(taker.envs), "-s", SESSION, home=taker.home, env=env)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    wheel = wheel_of(maker)
    assert f"{wheel.name} is taken from {maker.home}/dist: nothing is compiled" in output
    assert f"{maker.folder}/nowhere is left out: it is not a folder" in output
    assert wheel_of(taker).read_bytes() == wheel.read_bytes()
    bundled = maker.manifest(wheel.name)["bundled"]
    assert any("libgomp" in library["source"] for library in bundled)
    assert not (taker.home / ".torchmill" / "logs").exists(), "there was a build"
    again = taker.nox("-s", SESSION)
    assert "is up to date" in again.stdout + again.stderr
    invoke(taker, "verify")


def test_a_cell_that_would_make_another_wheel_is_built(maker: Sample, taker: Sample) -> None:
    notes = refusal(taker, f"{maker.home}/dist", LD_LIBRARY_PATH="/nowhere")
    assert "is not taken: compile: LD_LIBRARY_PATH changed" in notes


def test_an_index_offers_wheels_over_http(maker: Sample, taker: Sample, tmp_path: Path) -> None:
    invoke(maker, "index", "--manifest", f"--out={tmp_path}/index")
    name = wheel_of(maker).name
    with served(tmp_path / "index") as port:
        url = f"http://127.0.0.1:{port}"
        for place in (url, f"{url}/torch_stable.html"):
            notes = f"{name} is taken from {place}: nothing is compiled"
            assert take(taker, place) == (True, notes)
        assert refusal(taker, f"{url}/cpu/nowhere").endswith(" lists no wheel for this cell")
    assert "is left out" in refusal(taker, url), "the server has ended"
    success, _ = take(taker, f"file://{tmp_path}/index")
    assert success


def test_yanked_wheels_of_an_index_are_not_offered(
    maker: Sample, taker: Sample, tmp_path: Path
) -> None:
    name, version, *_ = wheel_of(maker).name.split("-")
    invoke(maker, "index", "--manifest", f"--yank={name}=={version}", f"--out={tmp_path}/index")
    with served(tmp_path / "index") as port:
        notes = refusal(taker, f"http://127.0.0.1:{port}")
    assert notes.endswith(" lists no wheel for this cell")


def test_a_hostile_page_offers_nothing(taker: Sample, tmp_path: Path) -> None:
    """It has an invalid URL, and a name that would steer the terminal."""
    with at_home(taker, {}) as context:
        name = context.plan.wheel.file_name
    invalid_url = f"http://[x/{name}"
    hostile_name = f"{name.removesuffix('.whl')}%1b[2J%0a.whl"
    for link in (invalid_url, hostile_name):
        (tmp_path / "page.html").write_text(f'<a href="{link}">x</a>')
        with served(tmp_path) as port:
            notes = refusal(taker, f"http://127.0.0.1:{port}/page.html")
        assert "\x1b" not in notes
        assert notes.endswith(" lists no wheel for this cell")


def test_an_index_without_manifests_offers_nothing(
    maker: Sample, taker: Sample, tmp_path: Path
) -> None:
    invoke(maker, "index", f"--out={tmp_path}/index")
    assert list((tmp_path / "index" / "cpu").glob("*.whl.cdx.json")), "there is an SBOM"
    assert "there is no manifest beside it" in refusal(taker, str(tmp_path / "index"))


def test_a_bucket_offers_wheels(maker: Sample, taker: Sample) -> None:
    with publishing_servers.s3("wheels") as environ:
        import boto3

        boto3.client("s3", **_client_options(environ)).create_bucket(Bucket="wheels")
        keys = {name: value for name, value in environ.items() if name != "BUCKET"}
        for _ in range(2):  # the second one finds everything there
            invoke(maker, "publish", "--manifest", "--to=s3://wheels/some", env=keys)
        success, notes = take(taker, "s3://wheels/some", **keys)
        assert success, notes
        notes = refusal(taker, "s3://none", **keys)
        assert "s3://none is left out: s3://none/ does not exist" in notes


def test_releases_on_github_offer_wheels(maker: Sample, taker: Sample) -> None:
    with publishing_servers.github() as hub:
        token = {"GH_TOKEN": publishing_servers.TOKEN, "GITHUB_API_URL": hub.url}
        invoke(maker, "publish", "--manifest", "--to=github:me/wheels", env=token)
        hub.release("v0", draft=True)
        for place in ("github:me/wheels", "github:me/wheels@tinytorch-v1.0.0"):
            success, notes = take(taker, place, **token)
            assert success, notes
        notes = refusal(taker, "github:me/other", **token)
        assert "github:me/other is left out: it answers 404" in notes


def _client_options(environ: dict[str, str]) -> dict[str, str]:
    return {
        "endpoint_url": environ["AWS_ENDPOINT_URL"],
        "aws_access_key_id": environ["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": environ["AWS_SECRET_ACCESS_KEY"],
        "region_name": environ["AWS_DEFAULT_REGION"],
    }


@pytest.mark.parametrize(
    "answer", ["not JSON", '[{"name": "no tag"}]', "[7]", '[{"tag_name": "v1"}]']
)
def test_a_server_that_is_no_github_is_left_out(taker: Sample, tmp_path: Path, answer: str) -> None:
    page = tmp_path / "repos/me/wheels/releases"
    page.parent.mkdir(parents=True)
    page.write_text(answer)
    with served(tmp_path) as port:
        url = f"http://127.0.0.1:{port}"
        notes = refusal(taker, "github:me/wheels", GITHUB_API_URL=url)
    assert "github:me/wheels is left out: " in notes


Edit = Callable[[Path], object]

OTHER = "0" * 64  # a sha256 of nothing


def document(suffix: str, change: Callable[[Any], object]) -> Edit:
    """Return an edit that changes the JSON document with a suffix."""

    def edit(wheel: Path) -> None:
        file = wheel.with_name(f"{wheel.name}{suffix}")
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data))

    return edit


def manifest(**fields: Any) -> Edit:
    """Return an edit of fields of the manifest."""
    return document(JSON, lambda data: data.update(fields))


def part(stage: str, **parts: str) -> Edit:
    """Return an edit of the parts of a stage in the manifest."""
    return document(JSON, lambda data: data["stages"][stage]["inputs"].update(parts))


def made(stage: str) -> Edit:
    """Return an edit of the digest of a stage's product in the manifest."""
    return document(JSON, lambda data: data["stages"][stage].update(product=OTHER))


def read_header(path: str) -> Edit:
    """Return an edit after which the compilation has read a header with another digest."""
    return document(JSON, lambda data: data["stages"]["compile"]["files"].update({path: OTHER}))


def text(suffix: str, content: bytes) -> Edit:
    """Return an edit that replaces the document with a suffix."""
    return lambda wheel: wheel.with_name(f"{wheel.name}{suffix}").write_bytes(content)


def without(suffix: str) -> Edit:
    return lambda wheel: wheel.with_name(f"{wheel.name}{suffix}").unlink()


def content(change: Callable[[bytes], bytes]) -> Edit:
    return lambda wheel: wheel.write_bytes(change(wheel.read_bytes()))


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def first_dependency(data: Any) -> Any:
    return data["predicate"]["buildDefinition"]["resolvedDependencies"][0]


FORGERIES: dict[str, Edit] = {
    "wheel: a flipped bit": content(flipped),
    "wheel: truncated": content(lambda data: data[:-100]),
    "wheel: empty": content(lambda _: b""),
    "wheel: more at its end": content(lambda data: data + b"more"),
    "wheel: a text": content(lambda _: b"not a wheel"),
    "manifest: missing": without(JSON),
    "manifest: empty": text(JSON, b""),
    "manifest: no JSON": text(JSON, b"{"),
    "manifest: no text": text(JSON, b"\xff\xfe"),
    "manifest: a list": text(JSON, b"[]"),
    "manifest: too deep": text(JSON, b"[" * 100_000),
    "manifest: another sha256": manifest(sha256=OTHER),
    "manifest: a path for a sha256": manifest(sha256="../../../x"),
    "manifest: a number for a sha256": manifest(sha256=7),
    "manifest: another size": manifest(size=7),
    "manifest: no size": document(JSON, lambda data: data.pop("size")),
    "manifest: another wheel": manifest(wheel="tinytorch-2.0.0+cpu-py3-none-any.whl"),
    "manifest: another plan": manifest(planned="tinytorch-2.0.0+cpu-py3-none-any.whl"),
    "manifest: another cell": manifest(identifier="wheel-3.8-cpu"),
    "manifest: another package": manifest(package="tinyvision"),
    "manifest: another version": manifest(version="9.9"),
    "manifest: another tag": manifest(tag="v9.9"),
    "manifest: another commit": manifest(commit="f" * 40),
    "manifest: other requirements": manifest(requirements=["numpy==1.0"]),
    "manifest: no submodules": manifest(submodules={"third_party/other": "f" * 40}),
    "manifest: more libraries": manifest(
        bundled=[{"path": "a.so", "source": "/lib/a.so", "sha256": OTHER}]
    ),
    "manifest: no stages": manifest(stages={}),
    "manifest: stages of another shape": manifest(stages={"compile": 5}),
    "manifest: no verification": document(JSON, lambda data: data["stages"].pop("verify")),
    "key: another switch": part("compile", **{"switch USE_TINY_FAST": "other"}),
    "key: another source": part("compile", source="other"),
    "key: another compiler": part("compile", **{"C++: cc1plus": "other"}),
    "key: another commit of a submodule": part(
        "compile", **{"submodule third_party/other": "f" * 40}
    ),
    "key: an older plan": part("compile", **{"the plan": "other"}),
    "key: older code that packs": part("pack", **{"code that packs": "other"}),
    "key: older code that verifies": part("verify", **{"code that verifies": "other"}),
    "key: another Python": part("verify", **{"interpreter and requirements": "other"}),
    "key: another raw wheel": made("compile"),
    "key: another packed wheel": made("pack"),
    "key: another verified wheel": made("verify"),
    "key: a header that is another here": read_header("/etc/hostname"),
    "key: a header that is not here": read_header("/nowhere/a.h"),
    "statement: missing": without(STATEMENT),
    "statement: no JSON": text(STATEMENT, b"nonsense"),
    "statement: of another wheel": document(
        STATEMENT, lambda data: data["subject"][0]["digest"].update(sha256=OTHER)
    ),
    "statement: of another kind": document(
        STATEMENT, lambda data: data.update(predicateType="https://example.org")
    ),
    "statement: another source": document(
        STATEMENT, lambda data: first_dependency(data).update(name="other")
    ),
    "statement: another builder": document(
        STATEMENT, lambda data: data["predicate"]["runDetails"]["builder"].update(id="urn:other")
    ),
    "SBOM: missing": without(SBOM),
    "SBOM: of another wheel": document(
        SBOM, lambda data: data["metadata"]["component"].update(version="9")
    ),
    "SBOM: no components": document(SBOM, lambda data: data.pop("components")),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_or_damaged_offer_is_not_taken(
    maker: Sample, taker: Sample, tmp_path: Path, name: str
) -> None:
    """It does not matter if the offer was signed before."""
    wheel = offered(maker, tmp_path)
    key = make_key(tmp_path, "key")
    sign_wheel(wheel, read_signer(str(key), {}))
    FORGERIES[name](wheel)
    refuse(taker, wheel, TORCHMILL_KEYS=str(public_of(key)))
    dist_files.document_path(wheel, dist_files.ENVELOPE_SUFFIX).unlink()
    refuse(taker, wheel)


def refuse(taker: Sample, wheel: Path, **env: str) -> None:
    """See that an offer is not taken."""
    notes = refusal(taker, str(wheel.parent), **env)
    assert f"{wheel.name} of {wheel.parent} is not taken: " in notes
    assert not list((taker.home / "dist").glob("*")), "a part of it came to dist/"


def replace_code(wheel: Path) -> None:
    """Put other code into a wheel, and write RECORD and all documents so that they fit it."""
    with ZipFile(wheel) as archive:
        members = {info: archive.read(info) for info in archive.infolist() if not info.is_dir()}
    code = next(info for info in members if info.filename == "tinytorch/__init__.py")
    record = next(info for info in members if info.filename.endswith("/RECORD"))
    members[code] += b"import evil\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(members[code]).digest()).rstrip(b"=").decode()
    old_lines = members[record].decode().splitlines()
    lines = [line for line in old_lines if not line.startswith(f"{code.filename},")]
    lines += [f"{code.filename},sha256={digest},{len(members[code])}", ""]
    members[record] = "\n".join(lines).encode()
    with ZipFile(wheel, "w") as archive:
        for info, data in members.items():
            archive.writestr(info, data)
    file = dist_files.manifest_path(wheel)
    old_text = file.read_text()
    old_sha256 = json.loads(old_text)["sha256"]
    # the manifest also names it as the product of the last stages
    fields = json.loads(old_text.replace(old_sha256, hash_file(wheel)))
    fields["size"] = wheel.stat().st_size
    file.write_text(json.dumps(fields))
    for suffix, content in dist_files.compose_documents(fields, wheel).items():
        dist_files.document_path(wheel, suffix).write_bytes(content)


def test_trusted_keys_refuse_an_offer_in_which_everything_is_forged(
    maker: Sample, taker: Sample, tmp_path: Path
) -> None:
    wheel = offered(maker, tmp_path)
    our_key = make_key(tmp_path, "ours")
    other_key = make_key(tmp_path, "other")
    trusting = {"TORCHMILL_KEYS": str(public_of(our_key))}
    refuse(taker, wheel, **trusting)
    sign_wheel(wheel, read_signer(str(other_key), {}))
    refuse(taker, wheel, **trusting)
    success, _ = take(
        taker, str(wheel.parent), TORCHMILL_KEYS=f"{public_of(our_key)} {public_of(other_key)}"
    )
    assert success
    sign_wheel(wheel, read_signer(str(our_key), {}))
    envelope = dist_files.document_path(wheel, dist_files.ENVELOPE_SUFFIX)
    genuine = envelope.read_bytes()
    replace_code(wheel)
    refuse(taker, wheel, **trusting)
    refuse(taker, wheel)
    sign_wheel(wheel, read_signer(str(other_key), {}))
    refuse(taker, wheel, **trusting)
    envelope.unlink()
    refuse(taker, wheel, **trusting)
    success, _ = take(taker, str(wheel.parent))
    assert success, "without a trusted key, nobody can tell"
    shutil.copytree(maker.home / "dist", wheel.parent, dirs_exist_ok=True)
    envelope.write_bytes(genuine)
    success, _ = take(taker, str(wheel.parent), **trusting)
    assert success
    delivered = wheel_of(taker)
    delivered_envelope = dist_files.document_path(delivered, dist_files.ENVELOPE_SUFFIX)
    assert delivered_envelope.read_bytes() == genuine, "the signature comes along with the wheel"
    assert check_signatures(delivered, read_trusted_keys(trusting)).problems == ()


def test_an_unusable_key_is_refused_before_a_place_is_asked(taker: Sample, tmp_path: Path) -> None:
    for keys in (" ", str(tmp_path / "absent.pem")):
        env = {offers.VARIABLE: str(tmp_path), "TORCHMILL_KEYS": keys}
        with at_home(taker, env) as context, refused("invalid-key"):
            offers.take_wheel(context, print)


def test_after_a_place_with_a_damaged_wheel_the_next_one_is_asked(
    maker: Sample, taker: Sample, tmp_path: Path
) -> None:
    wheel = offered(maker, tmp_path)
    wheel.write_bytes(flipped(wheel.read_bytes()))
    success, notes = take(taker, f"{wheel.parent} {maker.home}/dist")
    assert success
    assert "the manifest" in notes or "says sha256" in notes


@pytest.mark.parametrize(
    ("place", "code"),
    [
        ("https://me:word@example.org/simple", "password-in-url"),
        ("https://", "invalid-url"),
        ("ftp://example.org", "invalid-wheels-setting"),
        ("github:me", "invalid-wheels-setting"),
        ("s3://", "invalid-wheels-setting"),
    ],
)
def test_an_invalid_place_is_refused(taker: Sample, place: str, code: str) -> None:
    with at_home(taker, {offers.VARIABLE: place}) as context, refused(code):
        offers.take_wheel(context, print)

"""TORCHMILL_WHEELS: a wheel of elsewhere is taken where it is just what the cell would make, and no other."""

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
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
# a library of a system package, which gets into the wheel
BUNDLING = """
[[rule]]
reason = "the wheel holds a library of the system"
source = "test"
set = { LDFLAGS = "-Wl,--no-as-needed -lgomp" }
"""
JSON, STATEMENT, SBOM = ".json", ".intoto.json", ".cdx.json"


def bundle_library(sample: Sample) -> None:
    """Let the facts of a checkout link a library of the system."""
    with (sample.configs / "packages" / "tinytorch.toml").open("a", encoding="utf-8") as file:
        file.write(BUNDLING)


@pytest.fixture(scope="module")
def maker(
    tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path, cache: Path
) -> Sample:
    """Build the sample's wheel, in a checkout whose dist/ is offered to others."""
    sample = fetched(tmp_path_factory.mktemp("maker"), upstream, envs, cache)
    bundle_library(sample)
    done = sample.nox("-s", SESSION)
    assert done.returncode == 0, done.stdout + done.stderr
    return sample


@pytest.fixture(scope="module")
def taker(tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path) -> Sample:
    """Return another checkout of the same, which has built nothing."""
    sample = fetched(tmp_path_factory.mktemp("taker"), upstream, envs)
    bundle_library(sample)
    return sample


@contextmanager
def at_home(sample: Sample, env: dict[str, str]) -> Iterator[BuildContext]:
    """Yield the cell in a checkout whose dist/ is empty, with its variables."""
    shutil.rmtree(sample.home / "dist", ignore_errors=True)
    with in_this_process(sample, SESSION, env) as create:
        yield create()


def take(sample: Sample, place: str, **env: str) -> tuple[bool, str]:
    """Return whether the cell was taken from a place, and what was told."""
    notes: list[str] = []
    with at_home(sample, {offers.VARIABLE: place, **env}) as context:
        taken = offers.take_wheel(context, notes.append)
        assert (find_delivered_wheel(context) is not None) == taken
        assert not context.outputs.offers.exists(), "nothing of it is left"
    return taken, "\n".join(notes)


def wheel_of(sample: Sample) -> Path:
    return next((sample.home / "dist").glob("*.whl"))


def offered(maker: Sample, folder: Path) -> Path:
    """Return a folder with what the maker offers, which a test may spoil."""
    shutil.copytree(maker.home / "dist", folder / "offer")
    return next((folder / "offer").glob("*.whl"))


def test_another_checkout_takes_the_wheel_and_compiles_nothing(
    maker: Sample, taker: Sample
) -> None:
    shutil.rmtree(taker.home / "dist", ignore_errors=True)
    place = {offers.VARIABLE: f"{maker.folder}/nowhere {maker.home}/dist"}
    done = run(
        "nox",
        "--envdir",
        str(taker.envs),
        "-s",
        SESSION,
        home=taker.home,
        env={**taker.env, **place},
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert f"{wheel_of(maker).name} is taken from {maker.home}/dist: nothing is compiled" in said
    assert f"{maker.folder}/nowhere is left out: it is not a folder" in said
    assert wheel_of(taker).read_bytes() == wheel_of(maker).read_bytes()
    assert any(
        "libgomp" in one["source"] for one in maker.manifest(wheel_of(maker).name)["bundled"]
    )
    assert not (taker.home / ".torchmill" / "logs").exists(), "there was a build"
    again = taker.nox("-s", SESSION)
    assert "is up to date" in again.stdout + again.stderr
    judged = run("invoke", "verify", home=taker.home, env=taker.env)
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_a_cell_that_is_another_is_built(maker: Sample, taker: Sample) -> None:
    taken, said = take(taker, f"{maker.home}/dist", LD_LIBRARY_PATH="/nowhere")
    assert not taken
    assert "is not taken: compile: LD_LIBRARY_PATH changed" in said


def test_an_index_offers_wheels_over_http(maker: Sample, taker: Sample, tmp_path: Path) -> None:
    done = run(
        "invoke", "index", "--manifest", f"--out={tmp_path}/index", home=maker.home, env=maker.env
    )
    assert done.returncode == 0, done.stderr
    with served(tmp_path / "index") as port:
        for place in (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/torch_stable.html"):
            assert take(taker, place) == (
                True,
                f"{wheel_of(maker).name} is taken from {place}: nothing is compiled",
            )
        taken, said = take(taker, f"http://127.0.0.1:{port}/cpu/nowhere")
        assert (taken, said.partition(" lists ")[2]) == (False, "no wheel for this cell")
    taken, said = take(taker, f"http://127.0.0.1:{port}")
    assert not taken
    assert "is left out" in said
    assert take(taker, f"file://{tmp_path}/index")[0]


def test_what_an_index_has_withdrawn_is_not_offered(
    maker: Sample, taker: Sample, tmp_path: Path
) -> None:
    name, version, *_ = wheel_of(maker).name.split("-")
    yank = f"--yank={name}=={version}"
    done = run(
        "invoke",
        "index",
        "--manifest",
        yank,
        f"--out={tmp_path}/index",
        home=maker.home,
        env=maker.env,
    )
    assert done.returncode == 0, done.stderr
    with served(tmp_path / "index") as port:
        taken, said = take(taker, f"http://127.0.0.1:{port}")
    assert (taken, said.partition(" lists ")[2]) == (False, "no wheel for this cell")


def test_whatever_a_page_says_leaves_that_place_out_alone(taker: Sample, tmp_path: Path) -> None:
    """An address that is none, and a name that would steer the terminal."""
    with at_home(taker, {}) as context:
        name = context.plan.wheel.file_name
    for link in (f"http://[x/{name}", f"{name.removesuffix('.whl')}%1b[2J%0a.whl"):
        (tmp_path / "page.html").write_text(f'<a href="{link}">x</a>')
        with served(tmp_path) as port:
            taken, said = take(taker, f"http://127.0.0.1:{port}/page.html")
        assert (taken, "\x1b" in said, "is left out" in said) == (False, False, "[x/" in link), said


def test_an_index_without_manifests_offers_nothing(
    maker: Sample, taker: Sample, tmp_path: Path
) -> None:
    done = run("invoke", "index", f"--out={tmp_path}/index", home=maker.home, env=maker.env)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "index" / "cpu").glob("*.whl.cdx.json")), (
        "the SBOM lies beside the wheel"
    )
    taken, said = take(taker, str(tmp_path / "index"))
    assert not taken
    assert "there is no manifest beside it" in said


def test_a_bucket_and_releases_offer_wheels(maker: Sample, taker: Sample) -> None:
    with publishing_servers.s3("wheels") as environ:
        import boto3

        keys = {name: value for name, value in environ.items() if name != "BUCKET"}
        made = [
            run(
                "invoke",
                "publish",
                "--manifest",
                "--to=s3://wheels/some",
                home=maker.home,
                env={**maker.env, **keys},
            )
            for _ in range(2)
            if boto3.client("s3", **_client(environ)).create_bucket(Bucket="wheels")
        ]
        assert [one.returncode for one in made] == [0, 0], made[0].stdout + made[0].stderr
        assert take(taker, "s3://wheels/some", **keys)[0]
        taken, said = take(taker, "s3://none", **keys)
        assert not taken
        assert "s3://none is left out: s3://none/ does not exist" in said
    with publishing_servers.github() as hub:
        token = {"GH_TOKEN": publishing_servers.TOKEN, "GITHUB_API_URL": hub.url}
        done = run(
            "invoke",
            "publish",
            "--manifest",
            "--to=github:me/wheels",
            home=maker.home,
            env=maker.env | token,
        )
        assert done.returncode == 0, done.stderr
        hub.release("v0", draft=True)
        assert take(taker, "github:me/wheels", **token)[0]
        assert take(taker, "github:me/wheels@tinytorch-v1.0.0", **token)[0]
        taken, said = take(taker, "github:me/other", **token)
        assert not taken
        assert "github:me/other is left out: it answers 404" in said


def _client(environ: dict[str, str]) -> dict[str, str]:
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
        taken, said = take(taker, "github:me/wheels", GITHUB_API_URL=f"http://127.0.0.1:{port}")
    assert not taken
    assert "github:me/wheels is left out: " in said


Edit = Callable[[Path], object]


def beside(suffix: str, change: Callable[[Any], object]) -> Edit:
    """Return what changes the JSON of a file beside a wheel."""

    def edit(wheel: Path) -> None:
        file = wheel.with_name(f"{wheel.name}{suffix}")
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data))

    return edit


def said(**fields: Any) -> Edit:
    return beside(JSON, lambda data: data.update(fields))


def part(stage: str, **parts: str) -> Edit:
    return beside(JSON, lambda data: data["stages"][stage]["parts"].update(parts))


def text(suffix: str, content: bytes) -> Edit:
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


OTHER = "0" * 64
FORGED: dict[str, Edit] = {
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
    "manifest: another sha256": said(sha256=OTHER),
    "manifest: a path for a sha256": said(sha256="../../../x"),
    "manifest: a number for a sha256": said(sha256=7),
    "manifest: another size": said(size=7),
    "manifest: no size": beside(JSON, lambda data: data.pop("size")),
    "manifest: another wheel": said(wheel="tinytorch-2.0.0+cpu-py3-none-any.whl"),
    "manifest: another plan": said(planned="tinytorch-2.0.0+cpu-py3-none-any.whl"),
    "manifest: another cell": said(identifier="wheel-3.8-cpu"),
    "manifest: another package": said(package="tinyvision"),
    "manifest: another version": said(version="9.9"),
    "manifest: another tag": said(tag="v9.9"),
    "manifest: another commit": said(commit="f" * 40),
    "manifest: other requirements": said(requirements=["numpy==1.0"]),
    "manifest: no submodules": said(submodules={"third_party/other": "f" * 40}),
    "manifest: more libraries": said(
        bundled=[{"path": "a.so", "source": "/lib/a.so", "sha256": OTHER}]
    ),
    "manifest: no stages": said(stages={}),
    "manifest: stages of another shape": said(stages={"compile": 5}),
    "manifest: no verification": beside(JSON, lambda data: data["stages"].pop("verify")),
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
    "key: another raw wheel": beside(
        JSON, lambda data: data["stages"]["compile"].update(made=OTHER)
    ),
    "key: another packed wheel": beside(
        JSON, lambda data: data["stages"]["pack"].update(made=OTHER)
    ),
    "key: another verified wheel": beside(
        JSON, lambda data: data["stages"]["verify"].update(made=OTHER)
    ),
    "key: a header that is another here": beside(
        JSON, lambda data: data["stages"]["compile"]["read"].update({"/etc/hostname": OTHER})
    ),
    "key: a header that is not here": beside(
        JSON, lambda data: data["stages"]["compile"]["read"].update({"/nowhere/a.h": OTHER})
    ),
    "statement: missing": without(STATEMENT),
    "statement: no JSON": text(STATEMENT, b"nonsense"),
    "statement: of another wheel": beside(
        STATEMENT, lambda data: data["subject"][0]["digest"].update(sha256=OTHER)
    ),
    "statement: of another kind": beside(
        STATEMENT, lambda data: data.update(predicateType="https://example.org")
    ),
    "statement: another source": beside(
        STATEMENT, lambda data: first_dependency(data).update(name="other")
    ),
    "statement: another builder": beside(
        STATEMENT, lambda data: data["predicate"]["runDetails"]["builder"].update(id="urn:other")
    ),
    "SBOM: missing": without(SBOM),
    "SBOM: of another wheel": beside(
        SBOM, lambda data: data["metadata"]["component"].update(version="9")
    ),
    "SBOM: no components": beside(SBOM, lambda data: data.pop("components")),
}


@pytest.mark.parametrize("forged", FORGED)
def test_what_is_forged_or_damaged_is_not_taken(
    maker: Sample, taker: Sample, tmp_path: Path, forged: str
) -> None:
    """Whether it was signed before or not."""
    wheel = offered(maker, tmp_path)
    key = make_key(tmp_path, "key")
    sign_wheel(wheel, read_signer(str(key), {}))
    FORGED[forged](wheel)
    refuse(taker, wheel, TORCHMILL_KEYS=str(public_of(key)))
    dist_files.document_path(wheel, dist_files.ENVELOPE_SUFFIX).unlink()
    refuse(taker, wheel)


def refuse(taker: Sample, wheel: Path, **env: str) -> None:
    """See that an offer is not taken."""
    taken, why = take(taker, str(wheel.parent), **env)
    assert not taken
    assert f"{wheel.name} of {wheel.parent} is not taken: " in why
    assert not list((taker.home / "dist").glob("*")), "something of it came to dist/"


def make_all_fit(wheel: Path) -> None:
    """Put other code into a wheel, and let its RECORD, its manifest, its statement and its SBOM say so."""
    with ZipFile(wheel) as archive:
        members = {info: archive.read(info) for info in archive.infolist() if not info.is_dir()}
    code = next(info for info in members if info.filename == "tinytorch/__init__.py")
    record = next(info for info in members if info.filename.endswith("/RECORD"))
    members[code] += b"import evil\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(members[code]).digest()).rstrip(b"=").decode()
    lines = [
        line
        for line in members[record].decode().splitlines()
        if not line.startswith(f"{code.filename},")
    ]
    members[record] = "\n".join(
        [*lines, f"{code.filename},sha256={digest},{len(members[code])}", ""]
    ).encode()
    with ZipFile(wheel, "w") as archive:
        for info, data in members.items():
            archive.writestr(info, data)
    file = dist_files.manifest_path(wheel)
    text = file.read_text().replace(json.loads(file.read_text())["sha256"], hash_file(wheel))
    file.write_text(json.dumps(json.loads(text) | {"size": wheel.stat().st_size}))
    for suffix, document in dist_files.compose_documents(
        json.loads(file.read_text()), wheel
    ).items():
        dist_files.document_path(wheel, suffix).write_bytes(document)


def test_an_offer_that_is_made_to_fit_is_refused_by_who_trusts_a_key(
    maker: Sample, taker: Sample, tmp_path: Path
) -> None:
    wheel = offered(maker, tmp_path)
    ours, other = make_key(tmp_path, "ours"), make_key(tmp_path, "other")
    envelope = dist_files.document_path(wheel, dist_files.ENVELOPE_SUFFIX)
    trusting = {"TORCHMILL_KEYS": str(public_of(ours))}
    refuse(taker, wheel, **trusting)
    sign_wheel(wheel, read_signer(str(other), {}))
    refuse(taker, wheel, **trusting)
    both = {"TORCHMILL_KEYS": f"{public_of(ours)} {public_of(other)}"}
    assert take(taker, str(wheel.parent), **both)[0]
    sign_wheel(wheel, read_signer(str(ours), {}))
    true = envelope.read_bytes()
    make_all_fit(wheel)
    refuse(taker, wheel, **trusting)
    refuse(taker, wheel)
    sign_wheel(wheel, read_signer(str(other), {}))
    refuse(taker, wheel, **trusting)
    envelope.unlink()
    refuse(taker, wheel, **trusting)
    assert take(taker, str(wheel.parent))[0], "who trusts no key cannot tell"
    shutil.copytree(maker.home / "dist", wheel.parent, dirs_exist_ok=True)
    envelope.write_bytes(true)
    assert take(taker, str(wheel.parent), **trusting)[0]
    taken = wheel_of(taker)
    assert dist_files.document_path(taken, dist_files.ENVELOPE_SUFFIX).read_bytes() == true, (
        "it goes on with the wheel"
    )
    assert check_signatures(taken, read_trusted_keys(trusting)).problems == ()


def test_a_key_that_is_none_ends_the_session_before_a_place_is_asked(
    taker: Sample, tmp_path: Path
) -> None:
    for keys in (" ", str(tmp_path / "absent.pem")):
        env = {offers.VARIABLE: str(tmp_path), "TORCHMILL_KEYS": keys}
        with at_home(taker, env) as context, refused("invalid-key"):
            offers.take_wheel(context, print)


def test_the_next_place_is_asked_where_one_offers_nonsense(
    maker: Sample, taker: Sample, tmp_path: Path
) -> None:
    wheel = offered(maker, tmp_path)
    wheel.write_bytes(flipped(wheel.read_bytes()))
    taken, why = take(taker, f"{wheel.parent} {maker.home}/dist")
    assert taken
    assert "the manifest" in why or "says sha256" in why


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
def test_a_place_that_is_none_is_refused(taker: Sample, place: str, code: str) -> None:
    with at_home(taker, {offers.VARIABLE: place}) as context, refused(code):
        offers.take_wheel(context, print)

"""`invoke index`: what it writes, for real clients, again and again, and what it refuses."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from threading import Event, Thread
from urllib.parse import quote, unquote, urldefrag, urljoin

import pytest
from press_support import compiled_wheels
from press_support.written_wheels import Members, made

from tests.support import documented_wheels
from tests.support.commands import run
from tests.support.made_index import Home, install, installed, served
from tests.support.refusals import refused
from tests.support.stored_things import HOLD
from torchmill.commands import verify
from torchmill.config.facts import Facts
from torchmill.core.digests import hash_file
from torchmill.core.errors import BusyError, DeliveryError
from torchmill.deliver.index import state

INFO = "tinytorch-1.0+cpu.dist-info"
CPU, CUDA = "tinytorch-1.0+cpu-py3-none-any.whl", "tinytorch-1.0+cu118-py3-none-any.whl"
VISION = "tiny_vision-0.5+cpu-py3-none-any.whl"
MACOS = "tinytorch-1.0-py3-none-macosx_11_0_arm64.whl"


@pytest.fixture
def home(tmp_path: Path, small_facts: Facts) -> Home:
    """Return a checkout with wheels of two variants, one for macOS, and one that depends on another."""
    made(tmp_path / "dist", python=">=3.9")
    made(tmp_path / "dist", version="1.0+cu118")
    made(tmp_path / "dist", version="1.0", tag="py3-none-macosx_11_0_arm64")
    made(tmp_path / "dist", "tiny_vision", "0.5+cpu", requires=["tinytorch==1.0+cpu"])
    return Home(tmp_path, small_facts)


class Anchors(HTMLParser):
    """The links of a page, with their attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))


def test_pages_lie_where_people_know_them_from_the_official_index(home: Home) -> None:
    data = home.told()
    assert data["variants"] == ["cpu", "cu118"]
    assert home.names("tinytorch") == [MACOS, CPU, CUDA]
    assert home.names("cpu/tinytorch") == [MACOS, CPU], "on macOS there are no variants"
    assert home.names("cu118/tinytorch") == [MACOS, CUDA]
    assert [project["name"] for project in home.page("")["projects"]] == [
        "tiny-vision",
        "tinytorch",
    ]
    assert [project["name"] for project in home.page("cu118")["projects"]] == ["tinytorch"]
    files = {str(path.relative_to(home.out)) for path in home.out.rglob("*.whl")}
    assert files == {
        MACOS,
        f"cpu/{CPU}",
        f"cu118/{CUDA}",
        "cpu/tiny_vision-0.5+cpu-py3-none-any.whl",
    }
    flat = Anchors(home.out / "torch_stable.html").found
    assert len(flat) == 4
    assert str(flat[2]["href"]).startswith("cpu/tinytorch-1.0%2Bcpu-py3-none-any.whl#sha256=")


def test_json_is_as_the_standards_say(home: Home) -> None:
    home.index(yank=["tinytorch==1.0+cu118"], reason="wrong <b>")
    page = home.page("tinytorch")
    assert (page["meta"], page["name"], page["versions"]) == (
        {"api-version": "1.4"},
        "tinytorch",
        ["1.0", "1.0+cpu", "1.0+cu118"],
    )
    for file in page["files"]:
        path = home.out / "tinytorch" / unquote(file["url"])
        content = path.read_bytes()
        assert file["hashes"] == {"sha256": hashlib.sha256(content).hexdigest()}
        assert file["size"] == len(content)
        metadata = path.with_name(f"{path.name}.metadata").read_bytes()
        assert metadata.startswith(b"Metadata-Version: 2.1\nName: tinytorch\n")
        assert file["core-metadata"] == {"sha256": hashlib.sha256(metadata).hexdigest()}
        assert "dist-info-metadata" not in file, "pip 22.3 to 23.1 stops at it (PEP 714)"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", file["upload-time"])
    by_name = {file["filename"]: file for file in page["files"]}
    assert by_name[CPU]["requires-python"] == ">=3.9"
    assert "requires-python" not in by_name[CUDA]
    assert [by_name[name]["yanked"] for name in (CPU, CUDA)] == [False, "wrong <b>"]


@pytest.mark.parametrize(
    "options", [{}, {"files": "stay"}, {"base_url": "https://wheels.example/whl"}]
)
def test_statement_and_sbom_are_linked(home: Home, options: dict[str, str]) -> None:
    wheel = documented_wheels.built(home.dist, "1.0+cpu")
    suffixes = {"statement": ".intoto.json", "sbom": ".cdx.json"}
    texts = {
        kind: wheel.with_name(f"{CPU}{suffix}").read_bytes() for kind, suffix in suffixes.items()
    }
    home.index(**options)
    anchors = {
        str(anchor["href"]).partition("#")[0]: anchor
        for anchor in Anchors(home.out / "tinytorch" / "index.html").found
    }
    for file in home.page("tinytorch")["files"]:
        linked = {kind: file[f"_{kind}"] for kind in texts if f"_{kind}" in file}
        assert set(linked) == (set(texts) if file["filename"] == CPU else set())
        for kind, anchor in linked.items():
            assert anchor["sha256"] == hashlib.sha256(texts[kind]).hexdigest()
            assert anchor["url"].startswith(file["url"])
            assert (
                anchors[file["url"]][f"data-{kind}"] == f"{anchor['url']}#sha256={anchor['sha256']}"
            )
            if not options.get("base_url"):
                assert (home.out / "tinytorch" / unquote(anchor["url"])).read_bytes() == texts[kind]
        assert "provenance" not in file, "it has none"


@pytest.mark.parametrize(
    "base", ["", "http://wheels.example/whl", "file:///srv/whl", "https://wheels.example/{package}"]
)
def test_provenance_has_a_whole_and_safe_address_or_none(home: Home, base: str) -> None:
    wheel = documented_wheels.built(home.dist, "1.0+cpu")
    attested = {"subject": [{"name": wheel.name, "digest": {"sha256": hash_file(wheel)}}]}
    statement = b64encode(json.dumps(attested).encode()).decode()
    entry = {
        "envelope": {"statement": statement, "signature": ""},
        "verification_material": {"certificate": "", "transparency_entries": []},
    }
    provenance_file = wheel.with_name(f"{wheel.name}.provenance")
    provenance_file.write_text(json.dumps({"attestation_bundles": [{"attestations": [entry]}]}))
    home.index(base_url=base)
    names = {
        entry["filename"]: entry.get("provenance") for entry in home.page("tinytorch")["files"]
    }
    anchors = [
        entry.get("data-provenance")
        for entry in Anchors(home.out / "tinytorch" / "index.html").found
    ]
    url = (
        f"https://wheels.example/tinytorch/cpu/{quote(CPU)}.provenance"
        if base.startswith("https")
        else None
    )
    assert names == {CPU: url, CUDA: None, MACOS: None}
    assert sorted(filter(None, anchors)) == ([url] if url else [])
    assert (home.out / "cpu" / provenance_file.name).read_bytes() == provenance_file.read_bytes()
    provenance_file.write_text(
        provenance_file.read_text().replace(statement, b64encode(b"{}").decode())
    )
    with refused("foreign-document"):
        home.index(base_url=base)


def test_html_says_the_same(home: Home) -> None:
    home.index(yank=["tinytorch==1.0+cu118"], reason="wrong <b>")
    text = (home.out / "tinytorch/index.html").read_text("utf-8")
    assert '<meta name="pypi:repository-version" content="1.4">' in text
    assert 'data-yanked="wrong &lt;b&gt;"' in text
    for anchor, file in zip(
        Anchors(home.out / "tinytorch/index.html").found,
        home.page("tinytorch")["files"],
        strict=True,
    ):
        assert anchor["href"] == f"{file['url']}#sha256={file['hashes']['sha256']}"
        assert anchor["data-core-metadata"] == f"sha256={file['core-metadata']['sha256']}"
        assert anchor["data-dist-info-metadata"] == anchor["data-core-metadata"]
        assert anchor.get("data-requires-python") == file.get("requires-python")
        assert anchor.get("data-yanked", False) == file["yanked"]
    names = [anchor["href"] for anchor in Anchors(home.out / "index.html").found]
    assert names == ["tiny-vision/", "tinytorch/"], "and no link that is no project"


def test_clients_install_from_the_files_as_they_lie(home: Home, tmp_path: Path) -> None:
    home.index()
    root, path = home.out.as_uri(), str(home.out)
    two_wheels = {"tinytorch-1.0+cpu", "tiny_vision-0.5+cpu"}
    cases = [
        ("pip", ["--index-url", f"{root}/cpu", "tiny-vision"], two_wheels),
        (
            "pip",
            ["--no-index", "--find-links", f"{path}/torch_stable.html", "tinytorch==1.0+cu118"],
            None,
        ),
        ("uv", ["--default-index", f"{root}/cpu", "tiny-vision"], two_wheels),
        ("uv", ["--default-index", root, "tinytorch==1.0+cu118"], None),
        (
            "uv",
            ["--no-index", "--find-links", f"{path}/cu118/torch_stable.html", "tinytorch"],
            None,
        ),
        ("uv", ["--no-index", "--find-links", f"{path}/cu118", "tinytorch"], None),
        (
            "uv",
            ["--no-index", "--find-links", f"{path}/cu118/tinytorch/index.html", "tinytorch"],
            None,
        ),
    ]
    for number, (client, arguments, expected) in enumerate(cases):
        into = tmp_path / f"into{number}"
        install(client, into, arguments)
        assert installed(into) == (expected or {"tinytorch-1.0+cu118"})


@pytest.mark.parametrize("client", ["pip", "uv"])
def test_clients_fetch_metadata_and_only_then_the_wheels_they_install(
    home: Home, client: str, capsys: pytest.CaptureFixture[str]
) -> None:
    home.index()
    option = "--index-url" if client == "pip" else "--default-index"
    with served(home.out) as port:
        install(
            client, home.path / client, [option, f"http://127.0.0.1:{port}/cpu/", "tiny-vision"]
        )
    assert installed(home.path / client) == {"tiny_vision-0.5+cpu", "tinytorch-1.0+cpu"}
    requests = [
        unquote(path)
        for path in re.findall(r'"GET (\S+) HTTP/1.[01]" 200', capsys.readouterr().err)
    ]
    vision = "tiny_vision-0.5+cpu-py3-none-any.whl"
    wheels = [f"/cpu/{name}" for name in (CPU, vision)]
    assert {path for path in requests if ".whl" in path} == {
        f"{wheel_name}{end}" for wheel_name in wheels for end in ("", ".metadata")
    }
    assert requests.index(f"{wheels[0]}.metadata") < requests.index(wheels[1]), (
        "all is resolved before anything is fetched"
    )


def test_a_yanked_version_goes_to_those_only_who_ask_for_it(home: Home, tmp_path: Path) -> None:
    made(home.dist, version="1.1+cpu")
    home.index(yank=["tinytorch==1.1+cpu"], reason="crashes")
    arguments = ["--default-index", f"{home.out.as_uri()}/cpu"]
    install("uv", tmp_path / "any", [*arguments, "tinytorch"])
    printed = install("uv", tmp_path / "exact", [*arguments, "tinytorch==1.1+cpu"])
    assert (installed(tmp_path / "any"), installed(tmp_path / "exact")) == (
        {"tinytorch-1.0+cpu"},
        {"tinytorch-1.1+cpu"},
    )
    assert "crashes" in printed
    home.index()
    assert "crashes" in (home.out / "tinytorch/index.html").read_text("utf-8"), "it is remembered"
    home.index(unyank=["tinytorch==1.1+cpu"])
    install("uv", tmp_path / "again", [*arguments, "tinytorch"])
    assert installed(tmp_path / "again") == {"tinytorch-1.1+cpu"}


def test_nothing_is_written_where_nothing_changed(home: Home) -> None:
    first = home.told()
    assert len(first["written"]) == len(home.look()) - 2, "all but the state and the lock"
    before = home.look()
    again = home.told()
    assert (again["written"], again["removed"]) == ([], [])
    after = home.look()
    del (
        before[".torchmill/index.json"],
        after[".torchmill/index.json"],
    )  # may say: the wheels settled
    assert after == before


def test_only_what_changed_is_written(home: Home) -> None:
    home.index()
    made(home.dist, version="1.1+cu118")
    written = home.told()["written"]
    name = "cu118/tinytorch-1.1+cu118-py3-none-any.whl"
    pages = {"tinytorch/", "cu118/tinytorch/"}
    assert set(written) == {
        name,
        f"{name}.metadata",
        "torch_stable.html",
        "cu118/torch_stable.html",
    } | {f"{folder}index.{kind}" for folder in pages for kind in ("html", "v1_json")}


def test_a_wheel_that_is_remembered_is_not_read(home: Home) -> None:
    long_ago = 1_600_000_000
    for path in home.dist.iterdir():
        os.utime(path, (long_ago, long_ago))
    home.index(files="copy")
    wheel = home.dist / CPU
    seen = wheel.stat()
    with wheel.open("r+b") as file:  # as it looks, it is the same
        file.write(b"PL")
    os.utime(wheel, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert home.told(files="copy")["written"] == []
    os.utime(wheel)
    with refused("wheels-rejected") as caught:
        home.index(files="copy")
    assert "not the file that the index has" in str(caught.value)


def test_wheels_that_are_gone_go_from_the_index(home: Home) -> None:
    home.index()
    (home.dist / CUDA).unlink()
    removed = home.told()["removed"]
    assert {f"cu118/{CUDA}", f"cu118/{CUDA}.metadata", "cu118/tinytorch/index.html"} <= set(removed)
    assert removed.index("cu118/tinytorch/index.html") < removed.index(f"cu118/{CUDA}")
    assert not (home.out / "cu118").exists()
    assert "cu118" not in (home.out / "index.html").read_text("utf-8")
    for path in home.dist.iterdir():
        path.unlink()
    with refused("no-wheels"):
        home.index()
    assert home.names("cpu/tinytorch") == [MACOS, CPU], "an index of nothing is not written"


def test_nobody_meets_a_page_that_names_what_is_not_there(home: Home) -> None:
    for number in range(24):
        made(home.dist, version=f"2.{number}+cpu")
    home.index()
    page, wrong, done = home.out / "cpu/tinytorch/index.html", [], Event()

    def read() -> None:
        while not done.is_set():
            present = {path.name for path in (home.out / "cpu").glob("*.whl")}
            text = page.read_text("utf-8")  # after the look: what had gone then, is no more named
            if not text.endswith("</html>\n"):
                wrong.append("half a page")
            wrong.extend(
                name for name in re.findall(r">(\S+\.whl)<", text) if name not in present | {MACOS}
            )

    reader = Thread(target=read)
    reader.start()
    try:
        for number in range(24):
            (home.dist / f"tinytorch-2.{number}+cpu-py3-none-any.whl").unlink()
            if number % 8 == 0:
                home.index()
    finally:
        done.set()
        reader.join()
    assert wrong == []


def test_files_are_links_or_copies_or_stay(home: Home) -> None:
    wheel = home.dist / CPU
    home.index()
    assert (home.out / "cpu" / CPU).samefile(wheel)
    home.index(out=str(home.path / "copies"), files="copy")
    copy = home.path / "copies/cpu" / CPU
    assert copy.read_bytes() == wheel.read_bytes()
    assert not copy.samefile(wheel)
    home.index(files="stay")
    assert list(home.out.rglob("*.whl*")) == []
    for page in ("cpu/tinytorch", ""):
        folder = home.out / page
        name = "index.html" if page else "torch_stable.html"
        anchor = next(link for link in Anchors(folder / name).found if "2Bcpu" in str(link["href"]))
        assert "data-core-metadata" not in anchor, "METADATA lies nowhere"
    url = urljoin(
        f"{home.out.as_uri()}/cpu/tinytorch/", str(home.page("cpu/tinytorch")["files"][1]["url"])
    )
    assert urldefrag(url).url == home.dist.as_uri() + "/" + CPU.replace("+", "%2B")
    install("uv", home.path / "into", ["--default-index", f"{home.out.as_uri()}/cpu", "tinytorch"])
    assert installed(home.path / "into") == {"tinytorch-1.0+cpu"}


def test_files_may_be_served_elsewhere(home: Home) -> None:
    home.index(base_url="https://wheels.example/whl/")
    urls = [file["url"] for file in home.page("tinytorch")["files"]]
    assert urls[1] == "https://wheels.example/whl/cpu/tinytorch-1.0%2Bcpu-py3-none-any.whl"
    home.index(base_url="https://wheels.example/v1", files="stay")
    assert home.page("tinytorch")["files"][1]["url"] == urls[1].replace("/whl/cpu/", "/v1/")
    home.index(base_url="http://[::1]:8080/", files="stay")
    assert home.page("tinytorch")["files"][1]["url"].startswith(
        "http://[::1]:8080/tinytorch-1.0%2B"
    )


def test_files_may_lie_in_releases_of_each_package(home: Home) -> None:
    """As `invoke publish --to github:` makes them: the tag is the manifest's, else the usual one."""
    releases, base = home.path / "download", "{package}-{tag}"
    wheel = home.dist / CPU
    manifest = documented_wheels.manifest(wheel, "v1.0-patched")
    del manifest["licences"]  # it has no SBOM in it
    manifest |= {
        "wheel": CPU,
        "version": "1.0+cpu",
        "sha256": hash_file(wheel),
        "size": wheel.stat().st_size,
    }
    wheel.with_name(f"{CPU}.json").write_text(json.dumps(manifest))
    verify.write_missing([wheel])
    for file, release in ((CPU, "tinytorch-v1.0-patched"), (VISION, "tiny-vision-v0.5")):
        (releases / release).mkdir(parents=True)
        shutil.copy2(home.dist / file, releases / release)
    with served(home.path) as port:
        home.index(base_url=f"http://127.0.0.1:{port}/download/{base}", files="stay")
        for client, option in (("pip", "--index-url"), ("uv", "--default-index")):
            install(
                client,
                home.path / client,
                [option, f"http://127.0.0.1:{port}/index/cpu/", "tiny-vision"],
            )
            assert installed(home.path / client) == {"tinytorch-1.0+cpu", "tiny_vision-0.5+cpu"}
    home.index(base_url="https://{package}.example/{version}")
    urls = [file["url"] for file in home.page("tinytorch")["files"]]
    assert urls[1] == "https://tinytorch.example/1.0/cpu/tinytorch-1.0%2Bcpu-py3-none-any.whl"


def test_the_newest_releases_are_kept_and_the_others_named(home: Home) -> None:
    for version in ("1.10+cpu", "1.2+cpu", "1.11+cpu"):
        made(home.dist, version=version)
    home.index()
    data = home.told(keep="2", yank=["tinytorch==1.11+cpu"])
    assert data["older"] == [CPU], "a yanked release does not count"
    assert {f"cpu/{CPU}", f"cpu/{CPU}.metadata"} <= set(data["removed"])
    assert (home.dist / CPU).is_file()
    assert CPU not in home.names("cpu/tinytorch")
    assert {CUDA, MACOS} <= set(home.names("tinytorch")), "each variant has its own"
    before = home.page("tinytorch")
    data = home.told(keep="1")
    assert data["older"] == sorted([CPU, CPU.replace("1.0", "1.2")])
    assert f"left out, not of the newest 1: {CPU}" in home.index(keep="1")
    assert home.told(keep="2")["older"] == [CPU]
    assert home.page("tinytorch") == before, "also when it had come"
    assert CPU in home.told()["wheels"]
    with refused("invalid-keep"):
        home.index(keep="0")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://x/{pakage}", "unknown-placeholder"),
        ("https://x/{{package}}", "unknown-placeholder"),
        ("https://x/{tag.__class__}", "unknown-placeholder"),
        ("https://x/{}", "unknown-placeholder"),
        ("https://x/{tag", "invalid-url"),
        ("https://{package}@x/", "password-in-url"),
        ("wheels.example", "invalid-url"),
        ("ftp://x/", "invalid-url"),
        ("https:///whl", "invalid-url"),
        ("https://[::1/whl", "invalid-url"),
        ("https://x:99999/", "invalid-url"),
        ("https://x/my wheels", "invalid-url"),
        ('https://x/"><script>', "invalid-url"),
        ("https://x/whl?", "invalid-url"),
        ("https://x/whl?sig=secret", "invalid-url"),
        ("file://host/whl", "invalid-url"),
        ("https://me:secret@x/", "password-in-url"),
        ("https://me:secret@x:y/", "invalid-url"),
        ("https://secret@x", "password-in-url"),
        ("me:secret@x", "invalid-url"),
    ],
)
def test_an_address_that_is_none_is_refused_before_wheels_are_read(
    home: Home, url: str, code: str
) -> None:
    (home.dist / "broken-1.0-py3-none-any.whl").write_text("")
    with refused(code) as caught:
        home.index(base_url=url)
    assert "secret" not in str(caught.value)


def test_folders_that_no_index_wrote_are_refused(home: Home) -> None:
    home.out.mkdir()
    home.index()  # an empty one is not
    other = home.path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("dear")
    with refused("foreign-folder"):
        home.index(out=str(other))
    with refused("foreign-folder"):
        home.index(out=str(home.dist))
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    with refused("foreign-folder"):
        home.index(out=str(other / "thesis.tex"))


def test_foreign_files_are_named_and_left(home: Home) -> None:
    home.index()
    (home.out / "CNAME").write_text("wheels.example")
    (home.out / "cpu" / "notes.whl").write_text("mine")
    assert home.told()["foreign"] == ["CNAME", "cpu/notes.whl"]
    assert "left alone: CNAME, cpu/notes.whl" in home.index()
    assert (home.out / "cpu" / "notes.whl").read_text() == "mine"


def test_what_somebody_else_changed_or_put_in_the_way_is_refused(
    home: Home, tmp_path: Path
) -> None:
    home.index()
    page = home.out / "cpu/tinytorch/index.html"
    page.write_text("another tool's")
    with refused("changed-by-hand") as caught:
        home.index()
    assert "cpu/tinytorch/index.html changed since" in str(caught.value)
    page.unlink()
    assert home.told()["written"] == ["cpu/tinytorch/index.html"]
    page.rename(tmp_path / "page")
    page.symlink_to(tmp_path / "page")
    with refused("foreign-file"):
        home.index()
    page.unlink()
    elsewhere = tmp_path / "elsewhere"
    (home.out / "cu118").rename(elsewhere)
    (home.out / "cu118").symlink_to(elsewhere)
    made(home.dist, version="1.1+cu118")
    with refused("foreign-file"):
        home.index()
    assert len(list(elsewhere.glob("*.whl"))) == 1, "nothing is written through a link"
    (home.out / "cu118").unlink()
    blocked = home.out / "cpu/tinytorch-3.0+cpu-py3-none-any.whl"
    blocked.write_text("mine")
    made(home.dist, version="3.0+cpu")
    with refused("foreign-file"):
        home.index()
    assert blocked.read_text() == "mine"


def test_another_file_of_the_same_name_is_refused(home: Home) -> None:
    home.index(files="copy")
    before = home.look()
    made(home.dist, body="other = 1\n", python=">=3.9")
    with refused("wheels-rejected") as caught:
        home.index(files="copy")
    assert "not the file that the index has" in str(caught.value)
    assert "use --replace tinytorch==1" in str(caught.value)
    assert home.look() == before
    home.index(files="copy", replace=["tinytorch==1.0+cpu"])
    assert (home.out / "cpu" / CPU).read_bytes() == (home.dist / CPU).read_bytes()


def test_two_files_of_one_name_must_be_the_same(home: Home) -> None:
    second_dist = home.path / "more"
    made(second_dist, python=">=3.9")
    dists = [str(home.dist), str(second_dist)]
    assert home.told(dist=dists)["wheels"].count(CPU) == 1
    made(second_dist, python=">=3.9", body="other = 1\n")
    with refused("same-wheel-twice"):
        home.index(out=str(home.path / "two"), dist=dists)


def _tampered(members: Members) -> None:
    members["tinytorch/__init__.py"] = b"evil = 1\n"


def _leaving(members: Members) -> None:
    members["../../evil.py"] = b""


@pytest.mark.parametrize(
    ("change", "message"),
    [(_tampered, "differs from its RECORD entry"), (_leaving, "leaves the wheel: do not use it")],
)
def test_wheels_that_lie_are_not_indexed(
    home: Home, change: Callable[[Members], object], message: str
) -> None:
    made(home.dist, version="1.0+bad", change=change)
    with pytest.raises(DeliveryError) as caught:
        home.index()
    assert "tinytorch-1.0+bad-py3-none-any.whl" in str(caught.value)
    assert message in str(caught.value)
    assert not (home.out / "index.html").exists()


@compiled_wheels.needs_compiler
@pytest.mark.skipif(
    compiled_wheels.ARCH != "x86_64", reason="elsewhere there is no glibc that is old enough"
)
def test_wheels_of_others_that_need_a_newer_system_than_they_say_are_indexed_with_a_warning(
    home: Home,
) -> None:
    """As PyTorch's own of 2022: named manylinux1, they need glibc 2.17."""
    source = (
        '#include <stdlib.h>\nchar *f(void) { return secure_getenv("X"); }'  # came with glibc 2.17
    )
    files = {
        "tinytorch/libx.so": compiled_wheels.shared(source, home.path / "libx.so").read_bytes()
    }
    made(home.dist, tag="py3-none-manylinux_2_17_x86_64", files=files, python=">=3.9")
    home.index()
    made(home.dist, tag="py3-none-manylinux_2_5_x86_64", files=files, python=">=3.9")
    (warning,) = home.told()["warnings"]
    assert "libx.so needs GLIBC_2.17 of libc.so.6, which is newer than" in warning


def test_labels_that_would_be_taken_for_something_else_are_refused(home: Home) -> None:
    made(home.dist, version="1.0+tinytorch")
    with refused("label-collides"):
        home.index()
    (home.dist / "tinytorch-1.0+tinytorch-py3-none-any.whl").unlink()
    made(home.dist, version="1.0+index.html")
    with refused("label-collides"):
        home.index()


def test_a_run_that_was_stopped_is_gone_on_with(home: Home) -> None:
    home.index()
    half = home.out / state.STATE_FOLDER / "fresh"
    half.write_text("half of it")
    # the pages of a run that came no further: noted before they were written, but the state is the old one
    page = home.out / "tinytorch/index.html"
    stored = state.load_state(home.out)
    assert stored is not None
    digest = hashlib.sha256(b"the next").hexdigest()
    written = {
        **stored.written,
        "tinytorch/index.html": (*stored.written["tinytorch/index.html"], digest),
    }
    state.save_state(home.out, state.IndexState(written, stored.wheels, stored.yanked))
    page.write_text("the next")
    assert home.told()["written"] == ["tinytorch/index.html"]
    assert not half.exists()


def test_two_runs_do_not_write_one_index(home: Home) -> None:
    home.index()
    argv = [sys.executable, "-c", HOLD, str(home.out / ".torchmill/lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(BusyError):
            home.index()
        other.communicate(b"\n")
    home.index()


def test_a_state_of_another_format_is_told_from_a_damaged_one(home: Home) -> None:
    home.index()
    (home.out / ".torchmill/index.json").write_text('{"format": 9}')
    with refused("index-state-damaged") as caught:
        home.index()
    assert "its format is 9, not 1" in str(caught.value)


def test_a_damaged_state_is_refused(home: Home) -> None:
    home.index()
    file = home.out / ".torchmill/index.json"
    for text in ("", "{}", '{"format": 9}', '{"format": 1, "written": 3}'):
        file.write_text(text)
        with refused("index-state-damaged"):
            home.index()


def test_wheels_of_one_version_that_require_otherwise_are_told(home: Home) -> None:
    made(home.dist, tag="py3-none-linux_aarch64", requires=["numpy"], python=">=3.9")
    (warning,) = home.told()["warnings"]
    assert "tinytorch 1.0+cpu" in warning
    assert "also numpy" in warning or "not numpy" in warning


def test_wrong_options_are_refused(home: Home) -> None:
    cases: list[tuple[str, dict[str, object]]] = [
        ("unknown-files", {"files": "symlink"}),
        ("invalid-yank", {"yank": ["tinytorch"]}),
        ("unknown-version", {"yank": ["tinytorch==9"]}),
        ("unknown-version", {"yank": ["other==1"]}),
        ("invalid-yank", {"reason": "why"}),
        ("unknown-version", {"unyank": ["tinytorch==1.0"]}),
        ("invalid-yank", {"replace": ["x>1"]}),
        ("contradictory-options", {"conda": True, "yank": ["x==1"]}),
    ]
    for code, options in cases:
        with refused(code):
            home.index(**options)


def test_conda_packages_become_a_channel_instead(home: Home) -> None:
    pytest.importorskip("rattler")
    with refused("no-conda-packages"):
        home.index(conda=True)
    assert not home.out.exists()


def test_the_task_itself(home: Home) -> None:
    done = run("invoke", "index", "--yank", "tinytorch==1.0+cpu", "--reason", "old", home=home.path)
    assert done.returncode == 0, done.stderr
    assert f"{home.out}: 4 wheels of tiny-vision, tinytorch; " in done.stdout
    assert "uv pip install --index file://" in done.stdout
    done = run("invoke", "index", "--yank", "tinytorch", home=home.path)
    assert (done.returncode, done.stderr) == (
        2,
        "error[invalid-yank]: --yank tinytorch: name one version, as torch==1.13.1+cpu\n",
    )

"""The same wheel by a second build: with debug information, and from the records of the first build."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.sampled import THIS, Sample, fetched
from torchmill.core.errors import DeliveryError, HostError, OtherWheelError
from torchmill.host import native

pytestmark = pytest.mark.slow

BASE = f"wheel-{THIS}-cpu"
DEPENDENT = f"vision-{THIS}-cpu"


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, upstream: Path, envs: Path, cache: Path
) -> Sample:
    sample = fetched(tmp_path_factory.mktemp("sample"), upstream, envs, cache)
    done = sample.nox("-s", DEPENDENT)
    assert done.returncode == 0, done.stdout + done.stderr
    return sample


def digests(sample: Sample) -> dict[str, str]:
    wheels = sample.wheels()
    assert len(wheels) == 2
    files = [sample.home / "dist" / name for name in wheels]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def invoke(sample: Sample, *words: str) -> subprocess.CompletedProcess[str]:
    return run("invoke", *words, home=sample.home, env=sample.env)


@pytest.mark.skipif(shutil.which("objcopy") is None, reason="needs objcopy")
def test_with_debug_information_the_wheels_are_the_same(built: Sample) -> None:
    before = digests(built)
    done = built.nox("-s", BASE, DEPENDENT, "--", "--debug-info")
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(built) == before
    dist = built.home / "dist"
    archives = [dist / f"{name}.debuginfo.zip" for name in before]
    for name, archive in zip(before, archives, strict=True):
        entry = built.manifest(name)["debug_info"]
        assert entry["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()
        assert len(entry["libraries"]) == {"tinytorch": 2, "tinyvision": 1}[name.split("-")[0]]
    assert "debug info" in invoke(built, "verify").stdout
    assert "is up to date" in built.nox("-s", BASE, "--", "--debug-info").stderr
    archives[0].unlink()
    again = built.nox("-s", BASE, "--", "--debug-info")
    assert again.returncode == 0, again.stderr
    assert archives[0].is_file(), "a missing archive is made again"
    kept = archives[0].read_bytes()
    shutil.copy(archives[1], archives[0])
    refused = invoke(built, "verify", str(dist / archives[0].name.removesuffix(".debuginfo.zip")))
    assert refused.returncode == DeliveryError.exit_code
    assert "belongs to another build" in refused.stderr
    archives[0].write_bytes(kept)


@pytest.mark.skipif(native.native_arch() != "x86_64", reason="levels of x86-64")
def test_a_list_of_processors_makes_variants_of_one_version(
    tmp_path: Path, upstream: Path, envs: Path, cache: Path
) -> None:
    sample = fetched(tmp_path, upstream, envs, cache)
    words = ("-s", BASE, "--", "--cpu", "any,x86-64-v2,x86-64-v3")
    done = sample.nox(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    versions = [name.split("-")[1] for name in sample.wheels()]
    assert versions == ["1.0.0+cpu", "1.0.0+cpu.x86.64.v2", "1.0.0+cpu.x86.64.v3"]
    again = sample.nox(*words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert (again.stdout + again.stderr).count("is up to date") == len(versions)
    indexed = invoke(sample, "index", "--variants", "--json")
    assert indexed.returncode == 0, indexed.stderr
    costs = json.loads(indexed.stdout)["wheel_variants"]
    assert {cost["release"] for cost in costs} == {"tinytorch 1.0.0+cpu"}
    assert {cost["label"] for cost in costs} == {"", "null", "x86_64_v2", "x86_64_v3"}


@pytest.mark.skipif(shutil.which("objcopy") is None, reason="needs objcopy")
def test_invoke_build_makes_the_archive_of_the_wheel_that_is_named(built: Sample) -> None:
    before = digests(built)
    dist = built.home / "dist"
    for archive in dist.glob("*.debuginfo.zip"):
        archive.unlink()
    done = invoke(built, "build", DEPENDENT, "--yes", "--debug-info")
    assert done.returncode == 0, done.stdout + done.stderr
    assert digests(built) == before
    (archive,) = dist.glob("*.debuginfo.zip")
    assert archive.name.startswith("tinyvision-")
    assert f"debug information: {archive}" in done.stdout
    assert (
        built.manifest(archive.name.removesuffix(".debuginfo.zip"))["debug_info"]["level"] == "full"
    )


def test_a_wheel_is_rebuilt_from_its_records(built: Sample, tmp_path: Path) -> None:
    base, dependent = (built.home / "dist" / name for name in built.wheels())
    before = digests(built)
    done = invoke(built, "rebuild", str(dependent))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{dependent.name}: the same, byte for byte" in done.stdout
    assert digests(built) == before
    assert not (built.home / ".torchmill" / "rebuild" / "home").exists()

    # A statement alone does, too; into a folder of the user, in which the wheel stays.
    for file in base.parent.glob(f"{base.name}*"):
        shutil.copy(file, tmp_path)
    copy = Path(shutil.copy(dependent, tmp_path))
    shutil.copy(f"{dependent}.intoto.json", tmp_path)
    refused = invoke(built, "rebuild", str(copy), f"--into={tmp_path / 'into'}")
    assert "error[record-not-trusted]" in refused.stderr, refused.stdout + refused.stderr
    assert f"{base.name} beside it, which the build would install and import" in refused.stderr
    done = invoke(built, "rebuild", str(copy), f"--into={tmp_path / 'into'}", "--trust")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "compilers and libraries of its machine cannot be compared" in done.stdout
    rebuilt = tmp_path / "into" / "dist" / dependent.name
    assert rebuilt.read_bytes() == dependent.read_bytes()


def test_a_folder_of_another_length_makes_the_same_wheel(built: Sample, tmp_path: Path) -> None:
    base = built.home / "dist" / built.wheels()[0]
    folder = tmp_path / ("long" * 30) / ("longer" * 20)
    done = invoke(built, "rebuild", str(base), f"--into={folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{base.name}: the same, byte for byte" in done.stdout


def test_what_is_not_the_same_is_named_before_the_build(built: Sample, tmp_path: Path) -> None:
    name = built.wheels()[0]
    wheel = Path(shutil.copy(built.home / "dist" / name, tmp_path))
    manifest = built.manifest(name)
    manifest["builder"] = {"id": "https://builds.example.org", "torchmill": "v0.0.1"}
    manifest["tools"]["version"] = "3.99.0 (main)"
    manifest["requirements"] += ["setuptools==0.0.1"]
    manifest["stages"]["compile"]["inputs"]["compiler"] = "0" * 64
    Path(f"{wheel}.json").write_text(json.dumps(manifest), encoding="utf-8")
    done = invoke(built, "rebuild", str(wheel), "--strict")
    assert done.returncode == HostError.exit_code, done.stdout + done.stderr
    assert "error[other-inputs]" in done.stderr
    for clause in (
        "it was built by https://builds.example.org",
        "it was built by torchmill v0.0.1, this is ",
        "it was built with Python 3.99.0, here is ",
        "another compiler than on its machine",
    ):
        assert clause in done.stderr


def test_another_wheel_has_its_own_exit_code(built: Sample, tmp_path: Path) -> None:
    name = built.wheels()[0]
    wheel = Path(shutil.copy(built.home / "dist" / name, tmp_path))
    shutil.copy(f"{built.home / 'dist' / name}.json", tmp_path)
    rules = built.configs / "packages" / "tinytorch.toml"
    before = rules.read_text(encoding="utf-8")
    built.add_rule('reason = "a test"\nsource = "a test"\nset = { USE_TINY_FAST = "0" }')
    try:
        done = invoke(built, "rebuild", str(wheel))
    finally:
        rules.write_text(before, encoding="utf-8")
    assert done.returncode == OtherWheelError.exit_code, done.stdout + done.stderr
    assert "USE_TINY_FAST is 0 here, and was not set" in done.stdout
    assert "libtiny.so: sections " in done.stdout


def test_what_cannot_be_rebuilt_is_refused(built: Sample, tmp_path: Path) -> None:
    name = built.wheels()[0]
    source = built.home / "dist" / name
    wheel = Path(shutil.copy(source, tmp_path))
    manifest = Path(f"{wheel}.json")

    def code(*words: str) -> str:
        done = invoke(built, "rebuild", *words)
        assert "Traceback" not in done.stderr
        return done.stderr.partition("]")[0].partition("[")[2]

    assert code(str(tmp_path / "no.whl")) == "not-a-wheel"
    assert code(str(wheel)) == "no-build-records"
    shutil.copy(f"{source}.json", tmp_path)
    document = json.loads(manifest.read_text(encoding="utf-8"))
    assert code(str(wheel), f"--into={tmp_path}") == "folder-not-empty"
    assert code(str(wheel), f"--patch={__file__}") == "no-such-patch"
    manifest.write_text(json.dumps(document | {"kept_for": ["8.6"]}), encoding="utf-8")
    assert code(str(wheel)) == "not-compiled"
    options = {"torch": "torch-1.0.whl", "patches": ["given/mine.patch"]}
    manifest.write_text(json.dumps(document | {"options": options}), encoding="utf-8")
    assert code(str(wheel)) == "build-input-missing"
    manifest.write_text(json.dumps(document | {"sha256": "0" * 64}), encoding="utf-8")
    assert code(str(wheel)) == "build-records-unusable"
    for changes in (
        {"stages": 1},
        {"requirements": ["a\n--index-url https://example.org\nb==1"]},
        {"package": "../../outside"},
        {"tag": "../v1.0.0"},
        {"torch": "tinytorch==\x1b[2J"},
    ):
        manifest.write_text(json.dumps(document | changes), encoding="utf-8")
        assert code(str(wheel)) in {"build-records-unusable", "other-release", "unknown-release"}
    hostile = {"settings": {"CC": "sh -c 'touch executed'"}}
    manifest.write_text(json.dumps(document | {"options": hostile}), encoding="utf-8")
    assert code(str(wheel)) == "record-not-trusted"

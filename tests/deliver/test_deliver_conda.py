"""A conda package of a real wheel, solved for and installed by a real client."""

import json
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from millpress.staging import StagedWheel
from press_support import compiled_wheels as tiny
from press_support import written_wheels

from tests.support import publishing_servers, tiny_plans
from tests.support.commands import ROOT, run
from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core.digests import hash_file
from torchmill.core.paths import Layout
from torchmill.deliver.conda import channel, layout, package
from torchmill.deliver.products import ProductOptions, VerifiedWheel
from torchmill.plan import cell_lookup

rattler = pytest.importorskip("rattler", reason="needs py-rattler")
rattler_build = pytest.importorskip("rattler_build", reason="needs py-rattler-build")
extract = pytest.importorskip("rattler.package_streaming").extract
stand_ins = pytest.importorskip("tests.support.conda_stand_ins")

PYTHON = stand_ins.VERSION
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}.get(platform.machine(), "")
CONFIGS = ROOT / "sample" / "build_configs"
TORCH = f"tinytorch-1.0-py{PYTHON}_cpu_0.conda"
PLAIN, LIBTORCH = ProductOptions(), ProductOptions(libtorch=True)
VISION = f"tinyvision-0.5-py{PYTHON}_cpu_0.conda"

pytestmark = [
    tiny.needs_compiler,
    pytest.mark.skipif(not SUBDIR, reason="no machine that the sample is for"),
]


@pytest.fixture(scope="module")
def sample() -> Facts:
    """Return the facts of the sample."""
    return facts_reader.read_facts(CONFIGS)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return repaired wheels of tinytorch and of tinyvision."""
    folder = tmp_path_factory.mktemp("wheels")
    raw = tiny.build(folder)
    torch = tiny.finish(raw.torch, folder / "dist", folder / "torch", folders=(raw.outside,))[0]
    vision = tiny.finish(
        raw.vision, folder / "dist", folder / "vision", folders=(raw.outside,), under=raw.torch
    )[0]
    return torch, vision


def verified(sample: Facts, layout: Layout, wheel: Path) -> VerifiedWheel:
    """Return a wheel as its session hands it over."""
    name, version = wheel.name.split("-")[:2]
    word = {"tinytorch": "wheel", "tinyvision": "vision"}[name]
    release = find_release(sample, "tinytorch", "v1.0.0")
    cell = cell_lookup.find_cell(sample, f"{word}-{PYTHON}-cpu", platform.machine(), release)
    return VerifiedWheel(
        layout, sample, cell, tiny_plans.plan(name, version), wheel, {"sha256": hash_file(wheel)}
    )


def layout_of(folder: Path) -> Layout:
    return Layout(folder, folder / "cache")


@pytest.fixture(scope="module")
def packed(
    sample: Facts, wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Layout:
    """Return the layout with the packages of both wheels."""
    layout = layout_of(tmp_path_factory.mktemp("home"))
    torch, vision = wheels
    package.make_conda_package(verified(sample, layout, torch), LIBTORCH)
    package.make_conda_package(verified(sample, layout, vision), PLAIN)
    return layout


def test_a_client_solves_for_installs_and_imports_it(
    sample: Facts, packed: Layout, tmp_path: Path
) -> None:
    """The Python in the prefix is a stand-in that starts the interpreter of this test."""
    our_channel = tmp_path / "channel"
    output = channel.write_channel(sample, packed, our_channel)
    assert output.splitlines()[0] == f"{our_channel}: a channel of 4 packages, 4 of them new"
    assert output.endswith("-c conda-forge libtinytorch tinytorch tinyvision")
    python_channel = tmp_path / "stand-ins"
    stand_ins.python(python_channel, SUBDIR, tmp_path / "python")
    stand_ins.index(python_channel)
    prefix = tmp_path / "prefix"
    channels = [our_channel, python_channel]
    records = stand_ins.install(channels, SUBDIR, prefix, tmp_path / "cache", "tinyvision")
    assert {record.file_name for record in records} >= {TORCH, VISION}
    program = "import tinyvision, tinytorch as t; "
    program += "print(t.__file__, t.add(1, 2), tinyvision.scale(2, 3))"
    module = f"{prefix}/lib/python{PYTHON}/site-packages/tinytorch/__init__.py"
    assert stand_ins.run(prefix, program) == f"{module} 3.0 6.0"
    program = "from importlib.metadata import distribution; "
    program += "print(distribution('tinytorch').read_text('INSTALLER'))"
    assert stand_ins.run(prefix, program) == "conda"


def test_the_package_for_cxx_needs_no_python(sample: Facts, packed: Layout, tmp_path: Path) -> None:
    """A program is compiled, linked and run in an environment with nothing else."""
    channel.write_channel(sample, packed, tmp_path / "channel")
    prefix = tmp_path / "prefix"
    records = stand_ins.install(
        [tmp_path / "channel"], SUBDIR, prefix, tmp_path / "cache", "libtinytorch"
    )
    assert [record.file_name for record in records] == ["libtinytorch-1.0-cpu_0.conda"]
    headers = [path.relative_to(prefix).as_posix() for path in prefix.rglob("*.h")]
    assert headers == ["include/tiny.h"], "pybind11's headers are in another package"
    source = tmp_path / "main.c"
    source.write_text(
        '#include <stdio.h>\n#include <tiny.h>\nint main() { printf("%.1f", tiny_add(2, 3)); }'
    )
    lib = prefix / "lib"
    options = [f"-I{prefix}/include", f"-L{lib}", f"-Wl,-rpath,{lib}", "-ltiny"]
    program = tmp_path / "main"
    subprocess.run(["cc", str(source), *options, "-o", str(program)], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout == "5.0"
    file = packed.conda / SUBDIR / records[0].file_name
    exports = rattler.package.RunExportsJson.from_package_archive(file)
    assert exports.weak == ["libtinytorch >=1.0,<1.1.0a0"]


def test_the_metapackage_requires_any_build_of_its_kind(packed: Layout, tmp_path: Path) -> None:
    extract(packed.dist / "conda/noarch/tinytorch-cpu-1.0-0.conda", tmp_path)
    index = rattler.package.IndexJson.from_package_directory(tmp_path)
    assert index.noarch.generic
    assert index.depends == ["tinytorch 1.0 *cpu*"]
    assert rattler.package.PathsJson.from_package_directory(tmp_path).paths == []
    about = json.loads((tmp_path / "info/about.json").read_text())
    assert "extra" not in about, "it is of no particular wheel"


def test_rattler_builds_own_test_of_the_package_passes(
    packed: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))
    python_channel = tmp_path / "stand-ins"
    stand_ins.python(python_channel, SUBDIR, tmp_path / "python")
    stand_ins.index(python_channel)
    torch = rattler_build.Package.from_file(packed.conda / SUBDIR / TORCH)
    assert [test.imports for test in torch.tests] == [["tinytorch"]]
    results = torch.run_tests(channel=[python_channel.as_uri()])
    assert [result.success for result in results] == [True]


def test_the_same_wheel_makes_the_same_bytes(
    sample: Facts, wheels: tuple[Path, Path], packed: Layout, tmp_path: Path
) -> None:
    wheel = verified(sample, layout_of(tmp_path), wheels[0])
    again = package.make_conda_package(wheel, LIBTORCH).file
    assert again.name == TORCH
    assert again.read_bytes() == (packed.conda / SUBDIR / TORCH).read_bytes()
    assert not list((tmp_path / "dist/conda").glob(".*"))
    assert not list((tmp_path / ".torchmill").glob("conda-*"))


def test_a_package_is_made_again_only_if_it_changes(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes with its own file, the build number, the facts and the day of the release."""
    copy = tmp_path / "wheels" / wheels[0].name
    copy.parent.mkdir()
    shutil.copy(wheels[0], copy)
    wheel = verified(sample, layout_of(tmp_path), copy)
    place = package.make_conda_package(wheel, PLAIN).file
    content = place.read_bytes()

    def is_made(wheel: VerifiedWheel, number: int | None = None) -> bool:
        product = package.make_conda_package(wheel, ProductOptions(number))
        assert product.file.is_file()
        return not product.unchanged

    assert not is_made(wheel)
    place.write_bytes(content[:-1])
    assert is_made(wheel)
    place.unlink()
    assert is_made(wheel)
    assert place.read_bytes() == content
    assert not is_made(wheel, 0)
    assert is_made(wheel, 3)
    assert not is_made(wheel, 3)
    assert place.with_name(TORCH.replace("_0.conda", "_3.conda")).is_file()
    third = package.make_conda_package(wheel, ProductOptions(3)).file
    assert rattler.package.IndexJson.from_package_archive(third).build_number == 3
    assert not is_made(wheel), "the one of another number is as it was"
    assert sample.conda is not None
    renamed = replace(sample, conda=replace(sample.conda, licenses={"BSD": "of another list"}))
    assert is_made(replace(wheel, facts=renamed))
    assert is_made(wheel)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    assert is_made(wheel)
    assert not is_made(wheel)

    def add_keywords(name: str, data: bytes) -> bytes:
        return data + b"Keywords: more\n" if name.endswith("/METADATA") else data

    tiny.rewrite(wheels[0], copy, add_keywords)
    with refused("wheel-changed"):
        package.make_conda_package(wheel, PLAIN)


def test_a_missing_package_is_made_again_with_the_others_of_its_wheel(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    torch, vision = wheels
    wheel = verified(sample, layout_of(tmp_path), torch)
    assert not package.make_conda_package(wheel, LIBTORCH).unchanged
    packages = sorted((tmp_path / "dist/conda").glob("*/*.conda"))
    assert [path.name for path in packages] == [
        "libtinytorch-1.0-cpu_0.conda",
        TORCH,
        "tinytorch-cpu-1.0-0.conda",
    ]
    contents = [path.read_bytes() for path in packages]
    for path in packages:
        assert package.make_conda_package(wheel, LIBTORCH).unchanged
        path.unlink()
        assert not package.make_conda_package(wheel, LIBTORCH).unchanged
    assert [path.read_bytes() for path in packages] == contents
    with refused("no-libtorch"):
        package.make_conda_package(verified(sample, layout_of(tmp_path), vision), LIBTORCH)


def test_a_package_has_the_files_that_other_clients_read(packed: Layout, tmp_path: Path) -> None:
    file = packed.conda / SUBDIR / TORCH
    folder = tmp_path / "package"
    extract(file, folder)
    exports = rattler.package.RunExportsJson.from_package_directory(folder)
    assert exports.weak == ["tinytorch >=1.0,<1.1.0a0"]
    index = rattler.package.IndexJson.from_package_archive(file)
    assert index.subdir == SUBDIR
    assert index.noarch.none
    assert index.track_features == ["cpu"]
    listed = {
        str(entry.relative_path)
        for entry in rattler.package.PathsJson.from_package_archive(file).paths
    }
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert listed == {name for name in files if not name.startswith("info/")}
    with zipfile.ZipFile(file) as archive:
        times = {member.date_time for member in archive.infolist()}
    assert times == {(1980, 1, 1, 0, 0, 0)}


def test_a_wheel_that_contradicts_its_record_is_refused(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    def damage(name: str, data: bytes) -> bytes:
        return data + b"#" if name == "tinytorch/__init__.py" else data

    wheel = tiny.rewrite(wheels[0], tmp_path / wheels[0].name, damage)
    with refused("wheel-changed"):
        package.make_conda_package(verified(sample, layout_of(tmp_path), wheel), PLAIN)
    assert not (tmp_path / "dist").exists()


def test_a_wheel_that_contradicts_its_manifest_is_refused(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel = verified(sample, layout_of(tmp_path), wheels[0])
    with refused("wheel-changed"):
        package.make_conda_package(replace(wheel, manifest={"sha256": "0" * 64}), PLAIN)


def test_a_missing_rattler_build_is_refused(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rattler_build", None)
    with refused("conda-tools-missing"):
        package.make_conda_package(verified(sample, layout_of(tmp_path), wheels[0]), PLAIN)


def test_nox_makes_a_package_of_the_wheel_in_dist(tmp_path: Path) -> None:
    wheel = written_wheels.made(
        tmp_path / "dist", "tinytorch", "1.0.0+cpu", f"{tiny.PYTHON}-{tiny.ABI}-{tiny.PLATFORM}"
    )
    manifest = {"planned": wheel.name, "sha256": hash_file(wheel)}
    wheel.with_name(f"{wheel.name}.json").write_text(json.dumps(manifest))

    def nox(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {"TORCHMILL_CONFIGS": str(CONFIGS), "TORCHMILL_TAG": "v1.0.0", **environ}
        return run("nox", "-s", f"conda-{PYTHON}-cpu", *words, home=tmp_path, env=env)

    done = nox()
    assert done.returncode == 0, done.stderr
    place = tmp_path / "dist/conda" / SUBDIR / f"tinytorch-1.0.0-py{PYTHON}_cpu_0.conda"
    assert f"{place} is made" in done.stderr
    assert place.is_file()
    assert f"{place} is up to date" in nox().stderr
    numbered = place.with_name(place.name.replace("cpu_0", "cpu_7"))
    assert f"{numbered} is made" in nox("--", "--build-number", "7").stderr
    done = nox(CONDA_SUBDIR="osx-64")
    assert done.returncode == 1
    assert "CONDA_SUBDIR is osx-64" in done.stderr
    assert "Traceback" not in done.stderr


def test_nox_lists_a_conda_session_for_every_package_outside_the_matrix(tmp_path: Path) -> None:
    env = {"TORCHMILL_CONFIGS": str(CONFIGS), "TORCHMILL_TAG": "v1.0.0"}
    listed = run("nox", "--list", "-t", "conda", "conda-vision", home=tmp_path, env=env).stdout
    assert f"* conda-{PYTHON}-cpu [conda,tinytorch,cpu,v1.0.0]" in listed
    assert f"* conda-vision-{PYTHON}-cpu [conda-vision,tinyvision,cpu,v0.1.0]" in listed
    matrix = run("nox", "--list", "--json", "-t", "cpu", home=tmp_path, env=env).stdout
    assert "conda" not in matrix


def test_licences_of_the_same_name_are_all_in_the_package(packed: Layout, tmp_path: Path) -> None:
    texts = {
        "LICENSE": b"own",
        "licenses/fmt/LICENSE": b"of fmt",
        "licenses/NOTICE": b"notice",
        "NOTICE": b"another notice",
        "WHEEL": b"",
    }
    dist_info = tmp_path / "x.dist-info"
    for name, text in texts.items():
        (dist_info / name).parent.mkdir(parents=True, exist_ok=True)
        (dist_info / name).write_bytes(text)
    staged = StagedWheel("x.whl", tmp_path, dist_info, "x", "1.0", "x")
    licenses = layout.license_texts(staged)
    assert licenses == {
        "LICENSE": b"own",
        "fmt/LICENSE": b"of fmt",
        "NOTICE": b"another notice",
        "licenses/NOTICE": b"notice",
    }
    extended = tmp_path / "extended.conda"
    stamp = datetime(2020, 1, 1, tzinfo=UTC)
    extra_files = {f"info/licenses/{name}": text for name, text in licenses.items()}
    package.add_info_files(packed.conda / SUBDIR / TORCH, extended, extra_files, stamp)
    extract(extended, tmp_path / "package")
    assert (tmp_path / "package/info/licenses/fmt/LICENSE").read_bytes() == b"of fmt"
    assert (tmp_path / "package/info/tests/tests.yaml").exists()


CALLS = re.findall(
    r"`(upload_package_to_\w+\(.*\))`", (ROOT / "docs/how-to/make-conda-packages.md").read_text()
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.partition("(")[0])
def test_packages_are_uploaded_as_the_guide_says(packed: Layout, call: str) -> None:
    """In a process of its own: the library lets nothing else run meanwhile."""
    assert len(CALLS) == 3
    file = next(packed.conda.glob("*/tinytorch-*.conda"))
    with publishing_servers.conda_services() as (url, received):
        for token, code in (("wrong", 1), (publishing_servers.TOKEN, 0)):
            program = "import sys; from rattler_build import *; "
            program += f"files = sys.argv[1:2]; token = {token!r}; "
            program += re.sub(r"https://[^\"]+", url, call)
            done = subprocess.run(
                [sys.executable, "-c", program, file], capture_output=True, text=True, check=False
            )
            assert done.returncode == code, done.stderr
            assert [file.read_bytes() in body for body in received] == [True] * (1 - code)

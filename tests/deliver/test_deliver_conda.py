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
    """Return what a session hands over for a wheel."""
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
def made(
    sample: Facts, wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Layout:
    """Return where the packages of both wheels lie."""
    layout = layout_of(tmp_path_factory.mktemp("home"))
    for wheel in wheels:
        package.make_conda_package(
            verified(sample, layout, wheel), LIBTORCH if wheel == wheels[0] else PLAIN
        )
    return layout


def test_a_client_solves_for_installs_and_imports_it(
    sample: Facts, made: Layout, tmp_path: Path
) -> None:
    """The Python in the prefix is a stand-in: it leads to the interpreter that runs this."""
    ours, theirs = tmp_path / "channel", tmp_path / "stand-ins"
    told = channel.write_channel(sample, made, ours)
    assert told.splitlines()[0] == f"{ours}: a channel of 4 packages, 4 of them new"
    assert told.endswith("-c conda-forge libtinytorch tinytorch tinyvision")
    stand_ins.python(theirs, SUBDIR, tmp_path / "python")
    stand_ins.index(theirs)
    prefix, cache = tmp_path / "prefix", tmp_path / "cache"
    records = stand_ins.install([ours, theirs], SUBDIR, prefix, cache, "tinyvision")
    assert {record.file_name for record in records} >= {TORCH, VISION}
    said = stand_ins.run(
        prefix,
        "import tinyvision, tinytorch as t; print(t.__file__, t.add(1, 2), tinyvision.scale(2, 3))",
    )
    assert said == f"{prefix}/lib/python{PYTHON}/site-packages/tinytorch/__init__.py 3.0 6.0"
    listed = stand_ins.run(
        prefix,
        "import importlib.metadata as m; d = m.distribution('tinytorch'); print(d.read_text('INSTALLER'))",
    )
    assert listed == "conda"


def test_the_package_for_cxx_needs_no_python(sample: Facts, made: Layout, tmp_path: Path) -> None:
    """A program in C is compiled, linked and run with nothing but it in the environment."""
    channel.write_channel(sample, made, tmp_path / "channel")
    prefix = tmp_path / "prefix"
    records = stand_ins.install(
        [tmp_path / "channel"], SUBDIR, prefix, tmp_path / "cache", "libtinytorch"
    )
    assert [record.file_name for record in records] == ["libtinytorch-1.0-cpu_0.conda"]
    headers = [path.relative_to(prefix).as_posix() for path in prefix.rglob("*.h")]
    assert headers == ["include/tiny.h"], "pybind11's are of another package"
    source = tmp_path / "main.c"
    source.write_text(
        '#include <stdio.h>\n#include <tiny.h>\nint main() { printf("%.1f", tiny_add(2, 3)); }'
    )
    lib = prefix / "lib"
    found = [f"-I{prefix}/include", f"-L{lib}", f"-Wl,-rpath,{lib}"]
    words: list[str | Path] = ["cc", source, *found, "-ltiny", "-o", tmp_path / "main"]
    subprocess.run(words, check=True)
    assert (
        subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True).stdout
        == "5.0"
    )
    own = made.dist / "conda" / SUBDIR / records[0].file_name
    assert rattler.package.RunExportsJson.from_package_archive(own).weak == [
        "libtinytorch >=1.0,<1.1.0a0"
    ]


def test_a_package_asks_for_any_build_of_a_kind(made: Layout, tmp_path: Path) -> None:
    extract(made.dist / "conda/noarch/tinytorch-cpu-1.0-0.conda", tmp_path)
    index = rattler.package.IndexJson.from_package_directory(tmp_path)
    assert (index.noarch.generic, index.depends) == (True, ["tinytorch 1.0 *cpu*"])
    assert rattler.package.PathsJson.from_package_directory(tmp_path).paths == []
    assert "extra" not in json.loads((tmp_path / "info/about.json").read_text()), (
        "it is every wheel's"
    )


def test_rattler_builds_own_test_of_the_package_passes(
    made: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "cache"))
    theirs = tmp_path / "stand-ins"
    stand_ins.python(theirs, SUBDIR, tmp_path / "python")
    stand_ins.index(theirs)
    there = rattler_build.Package.from_file(made.conda / SUBDIR / TORCH)
    assert [test.imports for test in there.tests] == [["tinytorch"]]
    results = there.run_tests(channel=[theirs.as_uri()])
    assert [result.success for result in results] == [True]


def test_the_same_wheel_makes_the_same_bytes(
    sample: Facts, wheels: tuple[Path, Path], made: Layout, tmp_path: Path
) -> None:
    again = package.make_conda_package(
        verified(sample, layout_of(tmp_path), wheels[0]), LIBTORCH
    ).file
    assert again.name == TORCH
    assert again.read_bytes() == (made.conda / SUBDIR / TORCH).read_bytes()
    assert not list((tmp_path / "dist/conda").glob(".*"))
    assert not list((tmp_path / ".torchmill").glob("conda-*"))


def test_it_is_kept_while_it_would_be_the_same(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And made again where it was edited or is gone; the wheel, the number, facts or the day are others."""
    mine = tmp_path / "wheels" / wheels[0].name
    mine.parent.mkdir()
    shutil.copy(wheels[0], mine)
    found = verified(sample, layout_of(tmp_path), mine)
    place = package.make_conda_package(found, PLAIN).file
    content = place.read_bytes()

    def again(found: VerifiedWheel, number: int | None = None) -> bool:
        product = package.make_conda_package(found, ProductOptions(number))
        assert product.file.is_file()
        return not product.unchanged

    assert not again(found)
    place.write_bytes(content[:-1])
    assert again(found)
    place.unlink()
    assert again(found)
    assert place.read_bytes() == content
    assert [again(found, 0), again(found, 3), again(found, 3)] == [False, True, False]
    assert place.with_name(TORCH.replace("_0.conda", "_3.conda")).is_file()
    third = package.make_conda_package(found, ProductOptions(3)).file
    assert rattler.package.IndexJson.from_package_archive(third).build_number == 3
    assert not again(found), "the one of another number is as it was"
    assert sample.conda is not None
    renamed = replace(sample, conda=replace(sample.conda, licenses={"BSD": "of another list"}))
    assert again(replace(found, facts=renamed))
    assert again(found)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1600000000")
    assert again(found)
    assert not again(found)

    def more(name: str, data: bytes) -> bytes:
        return data + b"Keywords: more\n" if name.endswith("/METADATA") else data

    tiny.rewrite(wheels[0], mine, more)
    with refused("wheel-changed"):
        package.make_conda_package(found, PLAIN)


def test_a_package_that_is_gone_is_made_again_with_its_wheels(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    found = verified(sample, layout_of(tmp_path), wheels[0])
    assert not package.make_conda_package(found, LIBTORCH).unchanged
    every = sorted((tmp_path / "dist/conda").glob("*/*.conda"))
    assert [path.name for path in every] == [
        "libtinytorch-1.0-cpu_0.conda",
        TORCH,
        "tinytorch-cpu-1.0-0.conda",
    ]
    before = [path.read_bytes() for path in every]
    for path in every:
        assert package.make_conda_package(found, LIBTORCH).unchanged
        path.unlink()
        assert not package.make_conda_package(found, LIBTORCH).unchanged
    assert [path.read_bytes() for path in every] == before
    with refused("no-libtorch"):
        package.make_conda_package(verified(sample, layout_of(tmp_path), wheels[1]), LIBTORCH)


def test_it_holds_what_other_clients_read(made: Layout, tmp_path: Path) -> None:
    file = made.conda / SUBDIR / TORCH
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
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert listed == {name for name in there if not name.startswith("info/")}
    with zipfile.ZipFile(file) as archive:
        assert {one.date_time for one in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_wheel_that_is_not_what_record_says_is_refused(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    def spoiled(name: str, data: bytes) -> bytes:
        return data + b"#" if name == "tinytorch/__init__.py" else data

    wheel = tiny.rewrite(wheels[0], tmp_path / wheels[0].name, spoiled)
    with refused("wheel-changed"):
        package.make_conda_package(verified(sample, layout_of(tmp_path), wheel), PLAIN)
    assert not (tmp_path / "dist").exists()


def test_a_sound_wheel_that_is_not_its_manifests_is_refused(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path
) -> None:
    found = replace(verified(sample, layout_of(tmp_path), wheels[0]), manifest={"sha256": "0" * 64})
    with refused("wheel-changed"):
        package.make_conda_package(found, PLAIN)


def test_who_lacks_the_library_is_told_what_to_install(
    sample: Facts, wheels: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rattler_build", None)
    with refused("conda-tools-missing"):
        package.make_conda_package(verified(sample, layout_of(tmp_path), wheels[0]), PLAIN)


def test_nox_makes_it_of_the_wheel_in_dist(tmp_path: Path) -> None:
    wheel = written_wheels.made(
        tmp_path / "dist", "tinytorch", "1.0.0+cpu", f"{tiny.PYTHON}-{tiny.ABI}-{tiny.PLATFORM}"
    )
    wheel.with_name(f"{wheel.name}.json").write_text(
        json.dumps({"planned": wheel.name, "sha256": hash_file(wheel)})
    )
    env = {"TORCHMILL_CONFIGS": str(CONFIGS), "TORCHMILL_TAG": "v1.0.0"}
    done = run("nox", "-s", f"conda-{PYTHON}-cpu", home=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    place = tmp_path / "dist/conda" / SUBDIR / f"tinytorch-1.0.0-py{PYTHON}_cpu_0.conda"
    assert f"{place} is made" in done.stderr
    assert place.is_file()
    done = run("nox", "-s", f"conda-{PYTHON}-cpu", home=tmp_path, env=env)
    assert f"{place} is there and nothing changed" in done.stderr
    done = run(
        "nox", "-s", f"conda-{PYTHON}-cpu", "--", "--build-number", "7", home=tmp_path, env=env
    )
    assert f"{place.with_name(place.name.replace('cpu_0', 'cpu_7'))} is made" in done.stderr
    done = run(
        "nox", "-s", f"conda-{PYTHON}-cpu", home=tmp_path, env={**env, "CONDA_SUBDIR": "osx-64"}
    )
    assert done.returncode == 1
    assert "CONDA_SUBDIR is osx-64" in done.stderr
    assert "Traceback" not in done.stderr


def test_nox_lists_it_for_every_package_and_keeps_it_out_of_the_matrix(tmp_path: Path) -> None:
    env = {"TORCHMILL_CONFIGS": str(CONFIGS), "TORCHMILL_TAG": "v1.0.0"}
    listed = run("nox", "--list", "-t", "conda", "conda-vision", home=tmp_path, env=env).stdout
    assert f"* conda-{PYTHON}-cpu [conda,tinytorch,cpu,v1.0.0]" in listed
    assert f"* conda-vision-{PYTHON}-cpu [conda-vision,tinyvision,cpu,v0.1.0]" in listed
    assert "conda" not in run("nox", "--list", "--json", "-t", "cpu", home=tmp_path, env=env).stdout


def test_licences_of_the_same_name_are_all_in_it(made: Layout, tmp_path: Path) -> None:
    texts = {
        "LICENSE": b"own",
        "licenses/fmt/LICENSE": b"of fmt",
        "licenses/NOTICE": b"notice",
        "WHEEL": b"",
    }
    for name, text in texts.items():
        (tmp_path / "x.dist-info" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x.dist-info" / name).write_bytes(text)
    staged = StagedWheel("x.whl", tmp_path, tmp_path / "x.dist-info", "x", "1.0", "x")
    found = dict(layout.license_texts(staged))
    assert found == {"LICENSE": b"own", "fmt/LICENSE": b"of fmt", "NOTICE": b"notice"}
    whole = tmp_path / "whole.conda"
    stamp = datetime(2020, 1, 1, tzinfo=UTC)
    told = {f"info/licenses/{name}": text for name, text in found.items()}
    package.add_info_files(made.conda / SUBDIR / TORCH, whole, told, stamp)
    extract(whole, tmp_path / "package")
    assert (tmp_path / "package/info/licenses/fmt/LICENSE").read_bytes() == b"of fmt"
    assert (tmp_path / "package/info/tests/tests.yaml").exists()


CALLS = re.findall(
    r"`(upload_package_to_\w+\(.*\))`", (ROOT / "docs/how-to/make-conda-packages.md").read_text()
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.partition("(")[0])
def test_packages_are_uploaded_as_the_guide_says(made: Layout, call: str) -> None:
    """In a process of its own: the library lets nothing else run meanwhile."""
    assert len(CALLS) == 3
    file = next(made.conda.glob("*/tinytorch-*.conda"))
    with publishing_servers.conda_services() as (url, received):
        for token, code in (("wrong", 1), (publishing_servers.TOKEN, 0)):
            program = f"import sys; from rattler_build import *; files, token = sys.argv[1:2], {token!r}; "
            program += re.sub(r"https://[^\"]+", url, call)
            done = subprocess.run(
                [sys.executable, "-c", program, file], capture_output=True, text=True, check=False
            )
            assert done.returncode == code, done.stderr
            assert [file.read_bytes() in body for body in received] == [True] * (1 - code)

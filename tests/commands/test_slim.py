"""`invoke slim`: wheels, what becomes of them, and environments."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from millpress import content_checks, record_file, wheel_file
from press_support import written_wheels

from tests.support import documented_wheels, gpu_libraries
from tests.support.fatbins import fatbin, piece
from tests.support.refusals import refused
from torchmill.commands import index, slim, snippet, verify
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout
from torchmill.wheel import finished_wheel, sbom
from torchmill.wheel.verify import device_code, slimming

TAG = "cp310-cp310-manylinux_2_28_x86_64"
VERSION_MODULE = b"__version__ = '2.6.0+cu124'\ncuda = '12.4'\n"
LIBRARY, VENDOR = "torch/lib/libtorch_cuda.so", "torch/lib/libcublasLt.so.12"


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    code = fatbin(*(piece(arch, size=20_000) for arch in (70, 80, 86)))
    return gpu_libraries.shared(
        tmp_path_factory.mktemp("library") / "lib.so", [code] * 3
    ).read_bytes()


def torch_wheel(folder: Path, binary: bytes, **other: Any) -> Path:
    files = {LIBRARY: binary, VENDOR: binary, "torch/version.py": VERSION_MODULE}
    return written_wheels.made(
        folder, "torch", "2.6.0", TAG, files=other.pop("files", files), **other
    )


def capabilities(library: Path) -> set[str]:
    return {
        piece.capability
        for fatbin in device_code.read_device_code(library)
        for piece in fatbin.pieces
    }


def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, tmp_path / "cache")


def run(facts: Facts, tmp_path: Path, wheel: Path, arch_list: str = "8.6", **other: Any) -> str:
    return slim.slim_wheels(
        facts, layout(tmp_path), wheel=[str(wheel)], arch_list=arch_list, **other
    )


def test_a_wheel_becomes_one_for_its_gpus(shipped: Facts, tmp_path: Path, binary: bytes) -> None:
    wheel = torch_wheel(tmp_path / "in", binary, requires=["numpy"])
    run(shipped, tmp_path, wheel, "8.6+PTX", gpu=["A100"])
    name = f"torch-2.6.0+cu124.sm80.sm86.ptx86-{TAG}.whl"
    slim_wheel = finished_wheel.read_wheel(tmp_path / "dist" / name)
    assert list(content_checks.wheel_problems(slim_wheel.path)) == []
    assert str(slim_wheel.version) == "2.6.0+cu124.sm80.sm86.ptx86"
    assert slim_wheel.requires == ("numpy",)
    assert slim_wheel.manifest["original"]["sha256"] == finished_wheel.read_wheel(wheel).sha256
    with zipfile.ZipFile(slim_wheel.path) as archive:
        archive.extractall(tmp_path / "installed")
    assert capabilities(tmp_path / "installed" / LIBRARY) == {"8.0", "8.6"}
    assert (tmp_path / "installed" / VENDOR).read_bytes() == binary  # NVIDIA's stay as they are
    assert (tmp_path / "installed" / LIBRARY).stat().st_size < len(binary) - 50_000
    statement = (tmp_path / "dist" / f"{name}.intoto.json").read_text()
    assert slim_wheel.manifest["original"]["sha256"] in statement
    assert (
        slim_wheel.manifest["original"]["sha256"]
        in (tmp_path / "dist" / f"{name}.cdx.json").read_text()
    )


def test_a_program_is_still_one(shipped: Facts, tmp_path: Path, binary: bytes) -> None:
    program = "torch/bin/tool"
    plain = torch_wheel(tmp_path / "plain", binary, files={program: binary, LIBRARY: binary})
    wheel = tmp_path / plain.name
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(wheel, "w") as new:
        for info in old.infolist():
            mode = 0o100755 if info.filename == program else 0o100644
            info.external_attr = mode << 16
            new.writestr(info, old.read(info.orig_filename))
    run(shipped, tmp_path, wheel)
    (slim_wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(slim_wheel) as archive:
        assert archive.getinfo(program).file_size < len(binary)
        modes = {
            name: archive.getinfo(name).external_attr >> 16 & 0o777 for name in (program, LIBRARY)
        }
    assert modes == {program: 0o755, LIBRARY: 0o644}


def test_it_is_proved_against_its_original(shipped: Facts, tmp_path: Path, binary: bytes) -> None:
    wheel = torch_wheel(tmp_path / "in", binary)
    run(shipped, tmp_path, wheel)
    verify.verify_wheels(layout(tmp_path), original=str(wheel)).require()
    other = torch_wheel(tmp_path / "other", binary, body="x = 1\n")
    with refused("wheel-rejected"):
        verify.verify_wheels(layout(tmp_path), original=str(other)).require()


@pytest.mark.parametrize(
    ("manifest", "library_path"),
    [(True, LIBRARY), (False, LIBRARY), (True, f"torch-2.6.0.data/platlib/{LIBRARY}")],
)
def test_the_sbom_in_it_is_of_what_is_left(
    shipped: Facts, tmp_path: Path, binary: bytes, manifest: bool, library_path: str
) -> None:
    def add_sbom(members: dict[str, bytes]) -> None:
        described = documented_wheels.manifest(tmp_path / f"torch-2.6.0-{TAG}.whl") | {
            "bundled": bundled,
            "origins": {},
        }
        digests = {library_path: hashlib.sha256(binary).hexdigest()}
        inner = sbom.compose_inner_sbom(
            described, members["torch-2.6.0.dist-info/METADATA"], digests
        )
        documented_wheels.add(members, f"torch-2.6.0.dist-info/{sbom.INNER_PATH}", inner)

    bundled = [
        {
            "name": "libtorch_cuda.so",
            "path": library_path,
            "source": "/opt/libtorch_cuda.so",
            "sha256": "aa" * 32,
        }
    ]
    files = {library_path: binary, "torch/version.py": VERSION_MODULE}
    wheel = torch_wheel(tmp_path / "in", binary, files=files, change=add_sbom)
    if manifest:
        documented_wheels.write(
            wheel, documented_wheels.manifest(wheel) | {"bundled": bundled, "origins": {}}
        )
        verify.verify_wheels(layout(tmp_path), wheel=[str(wheel)]).require()
    run(shipped, tmp_path, wheel)
    verify.verify_wheels(layout(tmp_path), original=str(wheel)).require()
    (slim_wheel,) = (tmp_path / "dist").glob("*.whl")
    content = record_file.read_dist_info_file(slim_wheel, sbom.INNER_PATH)
    assert (content is not None) == manifest
    if content is not None:
        document = json.loads(content)
        assert document["metadata"]["component"]["version"].endswith(".sm86")
        (library,) = (
            entry for entry in document["components"] if entry["name"] == "libtorch_cuda.so"
        )
        with zipfile.ZipFile(slim_wheel) as archive:
            (slim_path,) = (name for name in archive.namelist() if name.endswith(LIBRARY))
            digest = hashlib.sha256(archive.read(slim_path)).hexdigest()
        assert [entry["content"] for entry in library["hashes"]] == [digest]


def test_what_was_added_to_it_is_found(tmp_path: Path, binary: bytes) -> None:
    """Also under another hash in RECORD, which is not all that a wheel is made of; a requirement is one, too."""

    def add_file(members: dict[str, bytes]) -> None:
        content = b"import evil\n"
        digest = base64.urlsafe_b64encode(hashlib.sha512(content).digest()).rstrip(b"=").decode()
        members["zz_evil.pth"] = content
        members["torch-2.6.0.dist-info/RECORD"] += (
            f"zz_evil.pth,sha512={digest},{len(content)}\n".encode()
        )

    original = torch_wheel(tmp_path / "in", binary, requires=["numpy", "triton==3.2.0"])
    plain = torch_wheel(tmp_path / "plain", binary, requires=["triton (==3.2.0+cu124)", "numpy"])
    assert list(slimming.wheel_differences(original, plain)) == []
    added = torch_wheel(
        tmp_path / "added", binary, requires=["numpy", "triton==3.2.0"], change=add_file
    )
    assert list(slimming.wheel_differences(original, added)) == ["it has other files"]
    evil = torch_wheel(
        tmp_path / "evil", binary, requires=["numpy", "evil @ https://evil.example/x.whl"]
    )
    (problem,) = slimming.wheel_differences(original, evil)
    assert "METADATA: it changes more" in problem
    swapped = [
        torch_wheel(
            tmp_path / first,
            binary,
            change=partial(describe, text=f"Requires-Dist: {first}\n\nRequires-Dist: {second}\n"),
        )
        for first, second in (("numpy", "evil"), ("evil", "numpy"))
    ]
    (problem,) = slimming.wheel_differences(*swapped)
    assert "METADATA: it changes more" in problem


def describe(members: dict[str, bytes], text: str) -> None:
    name = "torch-2.6.0.dist-info/METADATA"
    documented_wheels.add(
        members, name, f"Metadata-Version: 2.1\nName: torch\nVersion: 2.6.0\n{text}".encode()
    )


def test_a_licence_with_form_feeds_loses_no_requirement(
    shipped: Facts, tmp_path: Path, binary: bytes
) -> None:
    text = "License: GPL\n        \x0cEND\x85 OF\u2028TERMS\nRequires-Dist: numpy\nRequires-Dist: filelock\n"
    wheel = torch_wheel(tmp_path / "in", binary, change=partial(describe, text=text))
    run(shipped, tmp_path, wheel)
    (slim_wheel,) = (tmp_path / "dist").glob("*.whl")
    assert finished_wheel.read_wheel(slim_wheel).requires == ("numpy", "filelock")


def test_what_is_slim_already_stays_as_it_is(shipped: Facts, tmp_path: Path, binary: bytes) -> None:
    run(shipped, tmp_path, torch_wheel(tmp_path / "in", binary))
    (slim_wheel,) = (tmp_path / "dist").glob("*.whl")
    slim_wheel.with_name(f"{slim_wheel.name}.intoto.jsonl").write_text("signed")
    before = {path.name: path.read_bytes() for path in slim_wheel.parent.iterdir()}
    assert "is slim for these GPUs already" in run(shipped, tmp_path, slim_wheel)
    assert {path.name: path.read_bytes() for path in slim_wheel.parent.iterdir()} == before


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_wheel_for_these_gpus_alone_is_not_copied(
    shipped: Facts, tmp_path: Path, binary: bytes, dry_run: bool
) -> None:
    wheel = torch_wheel(tmp_path / "in", binary)
    printed = run(shipped, tmp_path, wheel, "7.0;8.0;8.6", dry_run=dry_run)
    assert printed == f"{wheel.name}: {slim._NOTHING_TO_REMOVE}"
    assert list((tmp_path / "dist").glob("*")) == []
    environment(tmp_path, binary)
    printed = slim.slim_wheels(
        shipped, layout(tmp_path), arch_list="7.0;8.0;8.6", environment=str(tmp_path / "venv")
    )
    assert printed.startswith(f"torch 2.6.0: {slim._NOTHING_TO_REMOVE}\n")
    assert "to undo this" not in printed


@pytest.mark.parametrize(
    "change", [{"toolkit": "12.4 custom"}, {"bundled": 3}, {"submodules": ["a"]}]
)
def test_a_manifest_that_cannot_be_understood_is_said(
    shipped: Facts, tmp_path: Path, binary: bytes, change: dict[str, Any]
) -> None:
    wheel = torch_wheel(tmp_path / "in", binary)
    manifest = documented_wheels.manifest(wheel) | {"bundled": [], "origins": {}} | change
    wheel.with_name(f"{wheel.name}.json").write_text(json.dumps(manifest))
    with refused("foreign-document"):
        run(shipped, tmp_path, wheel)


def test_what_was_changed_beside_the_code_is_found(
    shipped: Facts, tmp_path: Path, binary: bytes
) -> None:
    spoiled = bytearray(binary)
    spoiled[spoiled.index(b"zero\0")] = ord("Z")
    original = torch_wheel(tmp_path / "in", binary)
    run(shipped, tmp_path, torch_wheel(tmp_path / "spoiled", bytes(spoiled)))
    (manifest,) = (tmp_path / "dist").glob("*.whl.json")
    record = json.loads(manifest.read_text())
    record["original"]["sha256"] = finished_wheel.read_wheel(original).sha256
    manifest.write_text(json.dumps(record))
    verify.write_missing([])
    for document in (*manifest.parent.glob("*.intoto.json"), *manifest.parent.glob("*.cdx.json")):
        document.unlink()
    (verdict,) = verify.verify_wheels(layout(tmp_path), original=str(original), write=True).data[
        "wheels"
    ]
    problems = [problem for check in verdict["checks"] for problem in check["problems"]]
    assert len(problems) == 2  # the library, and the other file that holds the same
    assert all("no code for GPUs" in problem or "differs" in problem for problem in problems)


def test_index_and_snippet_take_it(shipped: Facts, tmp_path: Path, binary: bytes) -> None:
    run(shipped, tmp_path, torch_wheel(tmp_path / "in", binary))
    data = index.write_index(shipped, layout(tmp_path)).data
    assert data["wheels"] == [f"torch-2.6.0+cu124.sm86-{TAG}.whl"]
    text = str(snippet.write_snippet(shipped, layout(tmp_path), tool="pip", tag="v2.6.0"))
    assert "torch==2.6.0+cu124.sm86" in text


def test_wheels_that_pin_each_other_still_do(shipped: Facts, tmp_path: Path, binary: bytes) -> None:
    folder = tmp_path / "in"
    written_wheels.made(folder, "torch", "2.6.0+cu124", TAG, files={LIBRARY: binary})
    written_wheels.made(
        folder,
        "torchvision",
        "0.21.0+cu124",
        TAG,
        files={"v.so": binary},
        requires=["torch==2.6.0+cu124"],
    )
    run(shipped, tmp_path, folder)
    requirements = {
        slim_wheel.name: slim_wheel
        for slim_wheel in finished_wheel.read_wheels(wheel_file.list_wheels(tmp_path / "dist"))
    }
    assert requirements["torchvision"].requires == ("torch==2.6.0+cu124.sm86",)


def test_a_dry_run_tells_and_writes_nothing(shipped: Facts, tmp_path: Path, binary: bytes) -> None:
    printed = run(shipped, tmp_path, torch_wheel(tmp_path / "in", binary), dry_run=True)
    assert LIBRARY in printed
    assert not list((tmp_path / "dist").rglob("*"))


def drop_hash(members: dict[str, bytes]) -> None:
    members["torch/version.py"] += b"# changed\n"


def contradict(members: dict[str, bytes]) -> None:
    members["torch-2.6.0.dist-info/RECORD"] += b"torch/version.py,sha256=x,1\n"


def write_in_latin(members: dict[str, bytes]) -> None:
    members["torch-2.6.0.dist-info/RECORD"] += "torch/é.py,,\n".encode("latin-1")


def sign(members: dict[str, bytes]) -> None:
    members["torch-2.6.0.dist-info/RECORD.jws"] = b"{}"


@pytest.mark.parametrize(
    ("code", "arch_list", "other"),
    [
        ("no-device-code", "8.6", {"files": {"torch/lib/libtorch.so": b"\x7fELF"}}),
        ("capability-not-in-wheel", "9.0", {}),
        ("capability-not-in-wheel", "8.6;6.0", {}),
        ("signed-wheel", "8.6", {"change": sign}),
        ("wheel-rejected", "8.6", {"change": drop_hash}),
        ("damaged-wheel", "8.6", {"change": contradict}),
        ("damaged-wheel", "8.6", {"change": write_in_latin}),
        ("no-capability", "", {}),
        ("invalid-arch-list", "8.x", {}),
        ("unknown-capability", "8.5", {}),
    ],
)
def test_it_is_refused_and_nothing_changes(  # noqa: PLR0917
    shipped: Facts, tmp_path: Path, binary: bytes, code: str, arch_list: str, other: dict[str, Any]
) -> None:
    wheel = torch_wheel(tmp_path / "in", binary, **other)
    before = wheel.read_bytes()
    with refused(code):
        run(shipped, tmp_path, wheel, arch_list)
    assert wheel.read_bytes() == before
    assert not list((tmp_path / "dist").rglob("*"))  # hidden ones neither


def test_a_library_that_would_not_be_the_same_is_refused(
    shipped: Facts, tmp_path: Path, binary: bytes
) -> None:
    strange = bytearray(binary)
    struct.pack_into("<Q", strange, 64 + 40, 1 << 20)  # the first segment reaches into the next
    wheel = torch_wheel(tmp_path / "in", binary, files={LIBRARY: bytes(strange)})
    with refused("not-slimmed"):
        run(shipped, tmp_path, wheel)
    assert not list((tmp_path / "dist").rglob("*"))


def environment(tmp_path: Path, binary: bytes) -> Path:
    """Return the packages of an environment in which a torch and a package of NVIDIA's are installed."""
    packages = tmp_path / "venv/lib/python3.10/site-packages"
    for wheel in (
        torch_wheel(tmp_path / "in", binary),
        written_wheels.made(
            tmp_path / "in", "nvidia_thing", "1.0", TAG, files={"nvidia/lib.so": binary}
        ),
    ):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    return packages


def test_what_is_damaged_in_an_environment_stays_and_the_rest_is_slimmed(
    shipped: Facts, tmp_path: Path, binary: bytes
) -> None:
    packages = environment(tmp_path, binary)
    data = {"other/data.so": binary[:200], "other/data.a": b"!<arch>\nno member"}
    other = written_wheels.made(tmp_path / "in", "other", "1.0", TAG, files=data)
    with zipfile.ZipFile(other) as archive:
        archive.extractall(packages)
    printed = slim.slim_wheels(
        shipped, layout(tmp_path), arch_list="8.6", environment=str(tmp_path / "venv")
    )
    assert "other/data." in next(
        line for line in printed.splitlines() if line.endswith("; it stays as it is")
    )
    assert capabilities(packages / LIBRARY) == {"8.6"}


@pytest.mark.parametrize("pip", ["bin/pip", ""])
def test_an_environment_is_slimmed_in_place(
    shipped: Facts, tmp_path: Path, binary: bytes, pip: str
) -> None:
    packages, venv = environment(tmp_path, binary), tmp_path / "venv"
    if pip:
        (venv / "bin").mkdir()
        (venv / pip).touch()
    back = (
        f"{venv / pip} install --force-reinstall"
        if pip
        else f"uv pip install --python {venv} --reinstall"
    )
    printed = slim.slim_wheels(shipped, layout(tmp_path), arch_list="8.6", environment=str(venv))
    assert f"to undo this: {back} --no-deps torch==2.6.0" in printed
    assert capabilities(packages / LIBRARY) == {"8.6"}
    assert (packages / "nvidia/lib.so").read_bytes() == (packages / VENDOR).read_bytes() == binary
    rows = dict(
        line.split(",", 1)
        for line in (packages / "torch-2.6.0.dist-info/RECORD").read_text().splitlines()
    )
    assert rows[LIBRARY].endswith(f",{(packages / LIBRARY).stat().st_size}")
    again = slim.slim_wheels(
        shipped, layout(tmp_path), arch_list="8.6", environment=str(tmp_path / "venv")
    )
    assert "torch 2.6.0" in again


def test_a_library_that_was_changed_since_stays(
    shipped: Facts, tmp_path: Path, binary: bytes
) -> None:
    packages = environment(tmp_path, binary)
    (packages / LIBRARY).write_bytes(binary + b"more")
    slim.slim_wheels(shipped, layout(tmp_path), arch_list="8.6", environment=str(tmp_path / "venv"))
    assert (packages / LIBRARY).read_bytes() == binary + b"more"


@pytest.mark.parametrize(
    "content", [b"torch/lib.so,\xff\n", b'"' + b"x" * 200_000]
)  # no UTF-8, no CSV
def test_a_record_that_cannot_be_read_is_refused(
    shipped: Facts, tmp_path: Path, binary: bytes, content: bytes
) -> None:
    record = environment(tmp_path, binary) / "torch-2.6.0.dist-info/RECORD"
    record.write_bytes(content)
    with refused("invalid-record") as caught:
        slim.slim_wheels(
            shipped, layout(tmp_path), arch_list="8.6", environment=str(tmp_path / "venv")
        )
    assert "reinstall torch" in str(caught.value)


def test_a_record_without_digests_leaves_the_libraries(
    shipped: Facts, tmp_path: Path, binary: bytes
) -> None:
    packages = environment(tmp_path, binary)
    (packages / "torch-2.6.0.dist-info/RECORD").write_text(f"{LIBRARY}\n")
    printed = slim.slim_wheels(
        shipped, layout(tmp_path), arch_list="8.6", environment=str(tmp_path / "venv")
    )
    assert "is not what was installed" in printed
    assert (packages / LIBRARY).read_bytes() == binary


def test_no_environment_is_refused(shipped: Facts, tmp_path: Path) -> None:
    with refused("not-an-environment"):
        slim.slim_wheels(shipped, layout(tmp_path), arch_list="8.6", environment=str(tmp_path))
    with refused("nothing-to-slim"):
        slim.slim_wheels(shipped, layout(tmp_path), arch_list="8.6")


@pytest.mark.slow
def test_invoke_slims_and_pip_installs(tmp_path: Path, binary: bytes) -> None:
    wheel = written_wheels.made(
        tmp_path / "in", "tinygpu", "1.0+cu124", "py3-none-any", files={"tinygpu/lib.so": binary}
    )
    words = [
        sys.executable,
        "-m",
        "invoke",
        "slim",
        str(wheel),
        "--gpu",
        "RTX 3090",
        "--out",
        str(tmp_path / "out"),
    ]
    subprocess.run(words, check=True, cwd=Path(__file__).parents[2])
    (slim_wheel,) = (tmp_path / "out").glob("*.whl")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--target",
        str(tmp_path / "there"),
    ]
    subprocess.run([*pip, str(slim_wheel)], check=True)
    assert capabilities(tmp_path / "there/tinygpu/lib.so") == {"8.6"}
    shutil.rmtree(tmp_path / "there")

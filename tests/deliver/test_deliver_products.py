"""Products of a wheel: what stands after --, and what is kept while nothing of it changed."""

import json
import os
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.refusals import refused
from torchmill.commands import machine_report, matrix, plan
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core import formats
from torchmill.core.digests import hash_file
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache, digest_code
from torchmill.deliver import products
from torchmill.deliver.products import ProductOptions, parse_conda_options
from torchmill.host.description import load_host
from torchmill.wheel import dist_files

PARTS = {"wheel": "a.whl", "wheel_sha256": "1", "recipe": "2", "facts": "3", "code": "4"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with the record of what it was made of."""
    path = tmp_path / "a.zip"
    path.write_bytes(b"made")
    products.write_record(path, PARTS, hash_file(path), {"consumer": "5"})
    return path


def kept(file: Path, **changed: str) -> bool:
    recall = StatCache(file.with_name("recall.json"))
    return products.find_unchanged([file], PARTS | changed, recall) == file


@pytest.mark.parametrize(
    ("identifier", "product", "wheel"),
    [
        ("conda-3.10-cpu", "conda", "wheel-3.10-cpu"),
        ("conda-vision-3.10-cu117", "conda", "vision-3.10-cu117"),
        ("libtorch-3.10-cpu-aarch64", "libtorch", "wheel-3.10-cpu-aarch64"),
        ("check-vision-3.10-cpu", "check", "vision-3.10-cpu"),
        ("wheel-3.10-cpu", "", "wheel-3.10-cpu"),
    ],
)
def test_what_is_made_of_a_wheel_is_known_by_its_name(
    shipped: Facts, identifier: str, product: str, wheel: str
) -> None:
    word, cell = products.product_cell(
        shipped, identifier, "x86_64", find_release(shipped, "torch", "1.13.1")
    )
    assert (word, cell.build.identifier("x86_64")) == (product, wheel)


@pytest.mark.parametrize(
    ("identifier", "code"),
    [
        ("conda-2.7-cpu", "unknown-build"),
        ("libtorch-vision-3.10-cpu", "unknown-build"),
        ("image-3.10-cpu", "unknown-build"),
        ("conda-3.12-cpu", "impossible-build"),
        ("conda-3.10-cpu-amd64", "no-conda-platform"),
    ],
)
def test_what_is_not_made_is_refused(shipped: Facts, identifier: str, code: str) -> None:
    with refused(code):
        products.product_cell(
            shipped, identifier, "x86_64", find_release(shipped, "torch", "1.13.1")
        )


def test_plan_doctor_and_explain_tell_of_products(shipped: Facts, tmp_path: Path) -> None:
    layout, host = Layout(tmp_path, tmp_path), str(ROOT / "tests/golden/hosts/ubuntu-2004.toml")
    said = plan.show_plan(shipped, layout, "libtorch-3.8-cu110", "v1.8.0", host)
    assert said.endswith(
        "libtorch: makes dist/libtorch-cxx11-abi-shared-with-deps-1.8.0+cu110.zip of the wheel"
    )
    said = plan.show_plan(shipped, layout, "conda-3.8-cu110", "v1.8.0", host, json=True)
    assert json.loads(said)["product"]["file"].endswith(
        "/pytorch-1.8.0-py3.8_cuda11.0.221_cudnn8.0.5_0.conda"
    )
    assert "check: tries the wheel" in plan.show_plan(
        shipped, layout, "check-3.8-cu110", "v1.8.0", host
    )
    told = matrix.explain_cell_name(shipped, layout, "conda-3.8-cu110", "v1.8.0", host)
    assert str(told).startswith(
        "conda-3.8-cu110 is made of the wheel of wheel-3.8-cu110\nwheel-3.8-cu110 is possible"
    )
    release = find_release(shipped, "torch", "1.8.0")
    found = machine_report.examine_host(
        shipped, layout, load_host(Path(host)), "conda-3.8-cu110", release
    )
    assert found.findings[-1].subject == "py-rattler-build"


def test_nothing_changed(file: Path) -> None:
    assert kept(file)
    assert json.loads(dist_files.manifest_path(file).read_text()) == {
        "format": formats.PRODUCT,
        "sha256": hash_file(file),
        "size": 4,
        "consumer": "5",
        "made_of": [PARTS],
    }


@pytest.mark.parametrize("part", PARTS)
def test_any_part_that_changed_is_seen(file: Path, part: str) -> None:
    assert not kept(file, **{part: "other"})


def test_a_part_more_or_less_is_seen(file: Path) -> None:
    assert not kept(file, tools="6")
    products.write_record(file, PARTS | {"tools": "6"}, hash_file(file), {})
    assert not kept(file)


def test_an_edited_file_is_seen_whatever_its_size_and_time_say(file: Path) -> None:
    seen = file.stat()
    file.write_bytes(b"mode")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert not kept(file)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"made_of": 1}', '{"made_of": ["x"], "sha256": null}']
)
def test_a_record_that_is_damaged_says_nothing(file: Path, text: str) -> None:
    dist_files.manifest_path(file).write_text(text)
    assert not kept(file)
    products.write_record(file, PARTS, hash_file(file), {})
    assert kept(file)


def test_a_deleted_file_or_record_is_seen(file: Path) -> None:
    content = file.read_bytes()
    file.unlink()
    assert not kept(file)
    file.write_bytes(content)
    assert kept(file)
    dist_files.manifest_path(file).unlink()
    assert not kept(file)


def test_wheels_that_make_the_same_bytes_have_one_file(file: Path) -> None:
    """As those of two Pythons make one archive: neither is reason to make it again."""
    other = PARTS | {"wheel": "b.whl", "wheel_sha256": "9"}
    products.write_record(file, other, hash_file(file), {})
    assert kept(file)
    assert kept(file, **other)
    products.write_record(file, PARTS | {"code": "new"}, hash_file(file), {})
    assert not kept(file), "of each wheel the newest is told"
    assert kept(file, **other)
    file.write_bytes(b"another")
    products.write_record(file, PARTS, hash_file(file), {})
    assert kept(file)
    assert not kept(file, **other), "those bytes are gone"


def test_code_is_all_files_of_a_room(tmp_path: Path) -> None:
    recall = StatCache(tmp_path / "recall.json")
    one, other = (
        digest_code(recall, "deliver/products.py"),
        digest_code(recall, "deliver/agreement.py"),
    )
    assert (
        len(
            {
                one,
                other,
                digest_code(recall, "deliver"),
                digest_code(recall, "deliver/index"),
            }
        )
        == 4
    )
    assert one == digest_code(recall, "deliver/products.py")


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert products.installed_version("pytest") == pytest.__version__
    assert products.installed_version("torchmill-of-nobody") == ""


PROG = "nox -s conda-3.10-cpu --"


@pytest.mark.parametrize(
    ("words", "number", "rest"),
    [
        ([], None, []),
        (["--label", "none"], None, ["--label", "none"]),
        (["--build-number", "0"], 0, []),
        (["--label=git", "--build-number=12", "--jobs", "3"], 12, ["--label=git", "--jobs", "3"]),
        (["--build-number", "999999999"], 999_999_999, []),
    ],
)
def test_the_build_number_is_taken_and_the_rest_left(
    words: list[str], number: int | None, rest: list[str]
) -> None:
    own, left = parse_conda_options(words, PROG)
    assert (own.number, left) == (number, rest)
    assert parse_conda_options([*own.words, *rest], PROG) == (own, rest), (
        "what is passed on says the same"
    )


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "one", "٣", "1_0", " 1", "+1", "1000000000", "9" * 5000]
)
def test_what_is_no_build_number_is_refused(text: str) -> None:
    with refused("invalid-build-number") as caught:
        parse_conda_options([f"--build-number={text}"], PROG)
    assert len(str(caught.value)) < 200


def test_a_build_number_that_is_left_out_is_refused() -> None:
    with refused("invalid-option"):
        parse_conda_options(["--build-number"], PROG)


def test_help_tells_of_it_before_it_tells_of_the_wheels(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_conda_options(["--help"], PROG) == (ProductOptions(), ["--help"])
    assert "--build-number N" in capsys.readouterr().out

"""Products of a wheel: their options, and when an unchanged one is used again."""

import json
import os
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.documents import assert_fits
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
    """Return a product with its record."""
    path = tmp_path / "a.zip"
    path.write_bytes(b"made")
    products.write_record(path, PARTS, hash_file(path), {"consumer": "5"})
    return path


def is_unchanged(file: Path, **changed: str) -> bool:
    stat_cache = StatCache(file.with_name("stat_cache.json"))
    return products.find_unchanged([file], PARTS | changed, stat_cache) == file


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
def test_a_session_name_gives_the_product_and_the_cell_of_its_wheel(
    shipped: Facts, identifier: str, product: str, wheel: str
) -> None:
    release = find_release(shipped, "torch", "1.13.1")
    kind, cell = products.product_cell(shipped, identifier, "x86_64", release)
    assert kind == product
    assert cell.build.identifier("x86_64") == wheel


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
def test_unknown_and_impossible_products_are_refused(
    shipped: Facts, identifier: str, code: str
) -> None:
    release = find_release(shipped, "torch", "1.13.1")
    with refused(code):
        products.product_cell(shipped, identifier, "x86_64", release)


def test_plan_doctor_and_explain_know_products(shipped: Facts, tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path)
    host = str(ROOT / "tests/golden/hosts/ubuntu-2004.toml")
    output = plan.show_plan(shipped, layout, "libtorch-3.8-cu110", tag="v1.8.0", host=host)
    product = (
        "libtorch: makes dist/libtorch-cxx11-abi-shared-with-deps-1.8.0+cu110.zip of the wheel"
    )
    assert output.text.count(product) == 1
    output = plan.show_plan(shipped, layout, "conda-3.8-cu110", tag="v1.8.0", host=host)
    assert output.data["product"]["file"].endswith(
        "/pytorch-1.8.0-py3.8_cuda11.0.221_cudnn8.0.5_0.conda"
    )
    output = plan.show_plan(shipped, layout, "check-3.8-cu110", tag="v1.8.0", host=host)
    assert "check: tries the wheel" in output.text
    explanation = matrix.explain_cell_name(shipped, layout, "conda-3.8-cu110", "v1.8.0", host)
    assert str(explanation).startswith(
        "conda-3.8-cu110 is made of the wheel of wheel-3.8-cu110\nwheel-3.8-cu110 is possible"
    )
    release = find_release(shipped, "torch", "1.8.0")
    report = machine_report.examine_host(
        shipped, layout, load_host(Path(host)), "conda-3.8-cu110", release
    )
    assert report.findings[-1].subject == "py-rattler-build"


def test_a_product_of_the_same_parts_is_unchanged(file: Path) -> None:
    assert is_unchanged(file)
    record = json.loads(dist_files.manifest_path(file).read_text())
    assert_fits(record, "product")
    assert record == {
        "format": formats.PRODUCT,
        "sha256": hash_file(file),
        "size": 4,
        "consumer": "5",
        "made_of": [PARTS],
    }


@pytest.mark.parametrize("part", PARTS)
def test_a_changed_part_makes_another_product(file: Path, part: str) -> None:
    assert not is_unchanged(file, **{part: "other"})


def test_a_part_more_or_less_makes_another_product(file: Path) -> None:
    assert not is_unchanged(file, tools="6")
    products.write_record(file, PARTS | {"tools": "6"}, hash_file(file), {})
    assert not is_unchanged(file)


def test_an_edit_is_noticed_even_if_size_and_time_are_the_same(file: Path) -> None:
    status = file.stat()
    file.write_bytes(b"mode")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not is_unchanged(file)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"made_of": 1}', '{"made_of": ["x"], "sha256": null}']
)
def test_a_damaged_record_is_ignored(file: Path, text: str) -> None:
    dist_files.manifest_path(file).write_text(text)
    assert not is_unchanged(file)
    products.write_record(file, PARTS, hash_file(file), {})
    assert is_unchanged(file)


def test_a_missing_file_or_record_makes_another_product(file: Path) -> None:
    content = file.read_bytes()
    file.unlink()
    assert not is_unchanged(file)
    file.write_bytes(content)
    assert is_unchanged(file)
    dist_files.manifest_path(file).unlink()
    assert not is_unchanged(file)


def test_wheels_that_make_the_same_bytes_have_one_file(file: Path) -> None:
    """The wheels of two Pythons make one archive, and neither makes the other's outdated."""
    other = PARTS | {"wheel": "b.whl", "wheel_sha256": "9"}
    products.write_record(file, other, hash_file(file), {})
    assert is_unchanged(file)
    assert is_unchanged(file, **other)
    products.write_record(file, PARTS | {"code": "new"}, hash_file(file), {})
    assert not is_unchanged(file), "the record has the newest parts of each wheel"
    assert is_unchanged(file, **other)
    file.write_bytes(b"another")
    products.write_record(file, PARTS, hash_file(file), {})
    assert is_unchanged(file)
    assert not is_unchanged(file, **other), "those bytes are gone"


def test_the_digest_of_code_is_that_of_all_files_in_a_folder(tmp_path: Path) -> None:
    stat_cache = StatCache(tmp_path / "stat_cache.json")
    places = ("deliver/products.py", "deliver/agreement.py", "deliver", "deliver/index")
    digests = [digest_code(stat_cache, place) for place in places]
    assert len(set(digests)) == len(places)
    assert digest_code(stat_cache, places[0]) == digests[0]


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
def test_the_build_number_is_parsed_and_the_rest_returned(
    words: list[str], number: int | None, rest: list[str]
) -> None:
    options, remaining = parse_conda_options(words, PROG)
    assert options.number == number
    assert remaining == rest
    assert parse_conda_options([*options.words, *rest], PROG) == (options, rest)


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "one", "٣", "1_0", " 1", "+1", "1000000000", "9" * 5000]
)
def test_an_invalid_build_number_is_refused(text: str) -> None:
    with refused("invalid-build-number") as caught:
        parse_conda_options([f"--build-number={text}"], PROG)
    assert len(str(caught.value)) < 200


def test_a_missing_build_number_is_refused() -> None:
    with refused("invalid-option"):
        parse_conda_options(["--build-number"], PROG)


def test_help_shows_the_options_of_the_package_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert parse_conda_options(["--help"], PROG) == (ProductOptions(), ["--help"])
    assert "--build-number N" in capsys.readouterr().out

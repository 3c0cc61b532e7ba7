"""The files and folders that options name: looked up, or refused."""

from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.cell.option_files import options_of_task, parse_options
from torchmill.plan.build_options import Options
from torchmill.plan.options import format_options


@pytest.mark.parametrize(
    ("word", "code"),
    [
        ("--parts=", "invalid-parts"),
        (f"--parts={__file__}", "invalid-parts"),
        ("--parts=/dev/null", "invalid-parts"),
        ("--torch=absent.whl", "no-such-wheel"),
        ("--torch=absent", "no-such-wheel"),
        ("--patch=absent.patch", "no-such-patch"),
        ("--patch=tests/plan", "no-such-patch"),
    ],
)
def test_each_mistake_is_one_sentence(word: str, code: str) -> None:
    with refused(code) as caught:
        parse_options([word], "test")
    assert str(caught.value).startswith("test: ")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "torch-1.0-cp310-cp310-linux_x86_64.whl"
    wheel.touch()
    monkeypatch.chdir(tmp_path)
    options = parse_options([f"--torch={wheel.name}", "--parts=parts"], "test")
    assert options == Options(torch=str(wheel), parts=str(tmp_path / "parts"))


def test_the_torch_of_an_environment_is_looked_up(tmp_path: Path) -> None:
    dist_info = tmp_path / "torch-2.4.1.dist-info"
    dist_info.mkdir()
    (tmp_path / "torch").mkdir()
    (dist_info / "WHEEL").write_text("Tag: cp312-cp312-linux_x86_64\n")
    options = parse_options([f"--torch={tmp_path}"], "test")
    assert options.torch_folder == tmp_path
    (installed,) = options.torch_installed
    assert installed.dist_info == dist_info
    assert parse_options(format_options(options), "test") == options


def test_patches_are_files_or_folders_of_them_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("b.patch", "a.diff", "notes.txt"):
        (folder / name).touch()
    (tmp_path / "first.patch").touch()
    words = [f"--patch={tmp_path}/first.patch", f"--patch={folder}"]
    options = parse_options(words, "test")
    assert list(options.patches) == ["given/first.patch", "given/a.diff", "given/b.patch"]
    assert parse_options(format_options(options), "test") == options


def test_two_patches_of_one_name_are_refused(tmp_path: Path) -> None:
    words = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.diff").touch()
        words.append(f"--patch={tmp_path / folder}")
    with refused("no-such-patch"):
        parse_options(words, "test")


def test_the_options_of_a_task_are_those_with_values() -> None:
    values = {"set_": ["USE_X=0"], "arch_list": "8.6", "jobs": "3", "memory": None}
    expected = Options(settings={"USE_X": "0"}, arch_list="8.6", jobs=3)
    assert options_of_task("plan", values) == expected

"""What may stand after `--`."""

from dataclasses import fields
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.config.model import Options
from torchmill.plan.options import format_options, options_of_task, parse_options


def test_nothing_means_the_defaults() -> None:
    assert parse_options([], "test") == Options()


def test_everything(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-1.0-cp310-cp310-linux_x86_64.whl"
    wheel.touch()
    arguments = [
        "--label=git",
        "--set=USE_X=0",
        "--set=CFLAGS=-O2 -g=1",
        "--arch-list=8.6",
        "--jobs=3",
        "--memory=12 GiB",
        f"--torch={wheel}",
        "--toolkit=11.8",
        "--plat=manylinux_2_28",
        "--no-guard",
        "--network",
    ]
    assert parse_options(arguments, "test") == Options(
        label="git",
        settings={"USE_X": "0", "CFLAGS": "-O2 -g=1"},
        arch_list="8.6",
        jobs=3,
        memory=12 * 1024**3,
        torch=str(wheel),
        toolkit="11.8",
        platform="manylinux_2_28",
        guard=False,
        network=True,
    )


@pytest.mark.parametrize("spelling", ["PyPI", "pypi", "PYPI"])
def test_pypi_in_any_case(spelling: str) -> None:
    assert parse_options(["--torch", spelling], "test").torch == "PyPI"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--labl=git"], "invalid-option"),
        (["--label=mine"], "invalid-option"),
        (["--set=USE_X"], "invalid-setting"),
        (["--set=A B=1"], "invalid-setting"),
        (["--jobs=0"], "invalid-option"),
        (["--jobs=many"], "invalid-option"),
        (["--jobs=4097"], "invalid-option"),
        ([f"--jobs={'9' * 5000}"], "invalid-option"),
        (["--memory="], "invalid-memory"),
        (["--memory=0"], "invalid-memory"),
        (["--memory=12"], "invalid-memory"),
        (["--memory=-2G"], "invalid-memory"),
        (["--memory=lots"], "invalid-memory"),
        (["--parts="], "invalid-parts"),
        ([f"--parts={__file__}"], "invalid-parts"),
        (["--parts=/dev/null"], "invalid-parts"),
        (["--shard=1/4"], "shard-without-parts"),
        (["--shard="], "shard-without-parts"),
        (["--shard=5/4", "--parts=x"], "invalid-shard"),
        (["--until=0"], "invalid-option"),
        (["--until=-1h"], "invalid-option"),
        (["--until=23:00"], "invalid-option"),
        (["--torch=absent.whl"], "no-such-wheel"),
        (["--patch=absent.patch"], "no-such-patch"),
        (["--patch=tests/plan"], "no-such-patch"),
        (["wheel-3.10-cpu"], "invalid-option"),
    ],
)
def test_each_mistake_is_one_sentence(arguments: list[str], code: str) -> None:
    with refused(code) as caught:
        parse_options(arguments, "test")
    assert str(caught.value).startswith("test: ")


@pytest.mark.parametrize(
    "tag",
    [
        "any",
        "win_amd64",
        "manylinux",
        "manylinux_2",
        "manylinux_2_028",
        "manylinux2015",
        "musllinux1",
        "LINUX",
    ],
)
def test_a_platform_of_no_linux_is_a_mistake(tag: str) -> None:
    with refused("invalid-platform"):
        parse_options(["--plat", tag], "test")


def test_patches_are_files_or_folders_of_them_in_order(tmp_path: Path) -> None:
    for name in ("b.patch", "a.diff", "notes.txt"):
        (tmp_path / "many" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "many" / name).touch()
    (tmp_path / "first.patch").touch()
    words = [f"--patch={tmp_path}/first.patch", f"--patch={tmp_path}/many"]
    options = parse_options(words, "test")
    assert list(options.patches) == ["given/first.patch", "given/a.diff", "given/b.patch"]
    assert parse_options(format_options(options), "test") == options
    (tmp_path / "a.diff").touch()
    with refused("no-such-patch"):  # another of the same name
        parse_options([*words, f"--patch={tmp_path}/a.diff"], "test")


def test_options_of_a_task_are_those_that_were_given() -> None:
    given = options_of_task("plan", {"set_": ["USE_X=0"], "arch_list": "8.6", "jobs": "3", "memory": None})
    assert given == Options(settings={"USE_X": "0"}, arch_list="8.6", jobs=3)


def test_an_empty_size_is_a_mistake_and_not_left_out() -> None:
    with refused("invalid-memory"):
        options_of_task("jobs", {"memory": ""})


EVERY = Options(
    "git",
    {"USE_MKLDNN": "0", "CFLAGS": "-O2 -g"},
    "8.0;8.6",
    3,
    2**33,
    "PyPI",
    "11.8",
    "linux",
    guard=False,
    network=True,
    cpu="x86-64-v3",
    shard="3/16",
    parts="/parts",
    until=90.0,
)


def test_words_that_say_options_are_read_as_the_same() -> None:
    for one in fields(Options):
        if one.name in {"processor", "patches"}:  # follows from `cpu`, once the compiler was asked; is of files
            continue
        assert getattr(EVERY, one.name) != getattr(Options(), one.name), f"{one.name} is not tried"
    assert parse_options(format_options(EVERY), "test") == EVERY
    assert format_options(Options()) == []

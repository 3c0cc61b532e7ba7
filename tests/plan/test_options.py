"""What may stand after `--`."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core.errors import TorchmillError
from torchmill.host.description import load_host
from torchmill.plan import cell_lookup
from torchmill.plan.base_package import find_installed
from torchmill.plan.build_options import Options
from torchmill.plan.build_plan import compute_plan
from torchmill.plan.options import HELP, format_options, options_of_task, parse_options
from torchmill.plan.plan import Plan


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
        (["--until=0s"], "invalid-option"),
        (["--until=-1h"], "invalid-option"),
        (["--until=23:00"], "invalid-option"),
        (["--torch=absent.whl"], "no-such-wheel"),
        (["--patch=absent.patch"], "no-such-patch"),
        (["--patch=tests/plan"], "no-such-patch"),
        (["wheel-3.10-cpu"], "invalid-option"),
        (["--jobs=2", "--jobs", "3"], "contradictory-options"),
        (["--torch=PyPI", "--torch=PyPI"], "contradictory-options"),
        (["--set=A=1", "--set=B=2", "--set=A=2"], "contradictory-options"),
    ],
)
def test_each_mistake_is_one_sentence(arguments: list[str], code: str) -> None:
    with refused(code) as caught:
        parse_options(arguments, "test")
    assert str(caught.value).startswith("test: ")


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with refused("invalid-option") as caught:
        parse_options(["--arch_list=8.6"], "test")
    assert (
        str(caught.value)
        == "test: there is no option --arch_list; did you mean --arch-list? (`test --help` lists the options)"
    )


@pytest.mark.parametrize(
    "tag",
    [
        "any",
        "win_amd64",
        "manylinux",
        "manylinux_2",
        "manylinux_2_028",
        "manylinux_2_2٨",
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
    given = options_of_task(
        "plan", {"set_": ["USE_X=0"], "arch_list": "8.6", "jobs": "3", "memory": None}
    )
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
        if one.name in {
            "processor",
            "patches",
        }:  # follows from `cpu`, once the compiler was asked; is of files
            continue
        assert getattr(EVERY, one.name) != getattr(Options(), one.name), f"{one.name} is not tried"
    assert parse_options(format_options(EVERY), "test") == EVERY
    assert format_options(Options()) == []


CELLS = {
    "rtx3090": ("wheel-3.12-cpu", "wheel-3.12-cu121", "vision-3.12-cpu", "vision-3.12-cu121"),
    "macbook": ("wheel-3.12-cpu", "vision-3.12-cpu"),
}
SOME = {
    "label": "git",
    "set_": "USE_X=1",
    "arch_list": "8.6",
    "jobs": "3",
    "memory": "3 GiB",
    "torch": "PyPI",
}
SOME |= {
    "toolkit": "12.4",
    "cpu": "native",
    "plat": "linux",
    "patch": "README.md",
}  # a value of each option
OF_THE_RUN = {"shard", "parts", "until"}  # which a plan does not tell
IDLE = {
    "--torch": "torch-for-itself",
    "--toolkit": "toolkit-without-cuda",
    "--arch-list": "arch-list-without-cuda",
}
IDLE |= {
    "--cpu": "processor-not-told",
    "--plat": "platform-of-another-system",
    "--label": "unknown-commit",
}


def planned(facts: Facts, host: str, cell: str, *words: str) -> Plan:
    machine = load_host(ROOT / f"tests/golden/hosts/{host}.toml")
    found = cell_lookup.find_cell(facts, cell, machine.arch, find_release(facts, "torch", "v2.4.1"))
    plan = compute_plan(facts, found, machine, parse_options(words, "test"))
    return replace(plan, official=replace(plan.official, published=None))


def outcome(facts: Facts, *words: str) -> Plan | str:
    """Return a plan, or the code of the error that refuses it."""
    try:
        return planned(facts, *words)
    except TorchmillError as error:
        return error.code


@pytest.mark.parametrize(
    ("host", "cell"), [(host, cell) for host, cells in CELLS.items() for cell in cells]
)
def test_each_option_changes_what_a_session_does_or_is_refused(
    shipped: Facts, host: str, cell: str
) -> None:
    assert SOME.keys() | OF_THE_RUN == HELP.keys()
    usual = planned(shipped, host, cell)
    for name, value in SOME.items():
        flag = f"--{name.strip('_').replace('_', '-')}"
        made = outcome(shipped, host, cell, f"{flag}={value}")
        assert made == IDLE.get(flag) if isinstance(made, str) else made != usual, (
            f"{flag} does nothing"
        )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--set=TORCH_CUDA_ARCH_LIST=8.6", None),
        ("--set=TORCH_CUDA_ARCH_LIST=8.6 --arch-list=8.0", "two-settings"),
        ("--set=MAX_JOBS=3", "two-settings"),
        ("--set=USE_CUDA=0", "two-settings"),
        ("--set=MAX_JOBS=3 --jobs=2", "two-settings"),
        ("--set=PYTORCH_BUILD_VERSION=9", "two-settings"),
        ("--set=PYTORCH_BUILD_NUMBER=2", "two-settings"),  # which would append .post2
        ("--set=CUDA_HOME=/opt/cuda-12.4", "two-settings"),
        ("--set=PYTORCH_EXTRA_INSTALL_REQUIREMENTS= --label=git", None),
    ],
)
def test_no_setting_hides_an_option(shipped: Facts, words: str, code: str | None) -> None:
    made = outcome(shipped, "rtx3090", "wheel-3.12-cu121", *words.split())
    assert made == code if code else isinstance(made, Plan)


@pytest.mark.parametrize(
    ("wheel", "made"),
    [
        ("torch-2.4.1+cu121-cp312-cp312-linux_x86_64.whl", "torch==2.4.1+cu121"),
        ("torch-2.4.1+own-cp312-cp312-linux_x86_64.whl", "torch==2.4.1+own"),
        ("torch-2.4.1+cpu-cp312-cp312-linux_x86_64.whl", "torch-cuda-mismatch"),
        ("torch-2.4.1+cu118-cp312-cp312-linux_x86_64.whl", "torch-cuda-mismatch"),
        ("torch-2.5.0+cu121-cp312-cp312-linux_x86_64.whl", "torch-of-another-release"),
        ("torch-2.4.1+cu121-cp311-cp311-linux_x86_64.whl", "no-such-wheel"),
        ("torch-2.4.1+cu121-cp312-cp312-linux_aarch64.whl", "no-such-wheel"),
        ("torchvision-0.19.1-cp312-cp312-linux_x86_64.whl", "no-such-wheel"),
        ("torch.whl", "no-such-wheel"),
    ],
)
def test_what_is_built_against_is_a_wheel_of_that_torch_for_that_python_and_cuda(
    shipped: Facts, wheel: str, made: str, tmp_path: Path
) -> None:
    (tmp_path / wheel).touch()
    found = outcome(shipped, "rtx3090", "vision-3.12-cu121", f"--torch={tmp_path / wheel}")
    assert (found if isinstance(found, str) else found.wheel.torch) == made


def installed(folder: Path, version: str, tag: str, arch: str = "x86_64") -> Path:
    info = folder / f"torch-{version}.dist-info"
    info.mkdir(parents=True)
    (folder / "torch").mkdir(exist_ok=True)
    (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}-linux_{arch}\n")
    return info


@pytest.mark.parametrize("named", ["env", "env/lib/python3.12/site-packages"])
def test_what_is_built_against_may_be_installed(shipped: Facts, named: str, tmp_path: Path) -> None:
    info = installed(tmp_path / "env/lib/python3.12/site-packages", "2.4.1a0+own", "cp312-cp312")
    word = f"--torch={tmp_path / named}"
    made = outcome(shipped, "rtx3090", "vision-3.12-cu121", word)
    assert not isinstance(made, str)
    assert (made.wheel.torch, made.wheel.torch_folder) == ("torch==2.4.1a0+own", info.parent)
    assert not any(one.startswith("torch") for one in made.requirements)  # pip is not asked for it
    assert find_installed("torch", tmp_path / named) == info
    given = parse_options([word], "nox")
    assert parse_options(format_options(given), "nox") == given


def test_an_environment_for_another_python_or_without_torch_or_with_two_is_refused(
    shipped: Facts, tmp_path: Path
) -> None:
    word = f"--torch={tmp_path}"
    assert outcome(shipped, "rtx3090", "vision-3.12-cu121", word) == "no-such-wheel"
    installed(tmp_path / "editable", "2.4.1", "cp312-cp312")
    (tmp_path / "editable/torch").rmdir()
    assert outcome(shipped, "rtx3090", "vision-3.12-cu121", f"{word}/editable") == "no-such-wheel"
    installed(tmp_path / "board", "2.4.1", "cp312-cp312", "aarch64")
    assert outcome(shipped, "rtx3090", "vision-3.12-cu121", f"{word}/board") == "no-such-wheel"
    installed(tmp_path, "2.4.1", "cp311-cp311")
    assert outcome(shipped, "rtx3090", "vision-3.12-cu121", word) == "no-such-wheel"
    installed(tmp_path, "2.4.0", "cp312-cp312")
    assert outcome(shipped, "rtx3090", "vision-3.12-cu121", word) == "no-such-wheel"


@pytest.mark.parametrize(
    ("version", "said", "made"),
    [
        ("2.4.1", "cuda: Optional[str] = '12.1'", "torch==2.4.1"),
        ("2.4.1", "cuda = '11.8'", "torch-cuda-mismatch"),
        ("2.4.1", "cuda: Optional[str] = None", "torch-cuda-mismatch"),
        ("2.4.1a0+nv25.06", "hip = None", "torch==2.4.1a0+nv25.06"),
        ("2.4.1+custom", "", "torch==2.4.1+custom"),
        ("2.4.one", "", "no-such-wheel"),
        ("2.5.0", "cuda = '12.1'", "torch-of-another-release"),
    ],
)
def test_an_installed_torch_tells_its_cuda(
    shipped: Facts, version: str, said: str, made: str, tmp_path: Path
) -> None:
    installed(tmp_path, version, "cp312-cp312")
    (tmp_path / "torch/version.py").write_text(f"__version__ = 'x'\n{said}\n")
    found = outcome(shipped, "rtx3090", "vision-3.12-cu121", f"--torch={tmp_path}")
    assert (found if isinstance(found, str) else found.wheel.torch) == made

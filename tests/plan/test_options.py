"""The options after `--`: read, refused, written again, and each of some effect."""

from dataclasses import fields, replace

import pytest

from tests.support.commands import ROOT
from tests.support.plans import options_of, plan_torch
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.core.errors import TorchmillError
from torchmill.host.description import load_host
from torchmill.plan.build_options import Options
from torchmill.plan.options import HELP, NamedFiles, format_options, parse_words, words_of_task
from torchmill.plan.plan import Plan


def test_without_words_the_defaults_hold() -> None:
    assert options_of() == Options()


def test_every_option_is_read() -> None:
    words = [
        "--label=git",
        "--set=USE_X=0",
        "--set=CFLAGS=-O2 -g=1",
        "--arch-list=8.6",
        "--jobs=3",
        "--memory=12 GiB",
        "--torch=PyPI",
        "--toolkit=11.8",
        "--plat=manylinux_2_28",
        "--debug-info=lines",
        "--no-guard",
        "--network",
    ]
    assert options_of(*words) == Options(
        label="git",
        settings={"USE_X": "0", "CFLAGS": "-O2 -g=1"},
        arch_list="8.6",
        jobs=3,
        memory=12 * 1024**3,
        torch="PyPI",
        toolkit="11.8",
        platform="manylinux_2_28",
        debug_info="lines",
        guard=False,
        network=True,
    )


@pytest.mark.parametrize("spelling", ["PyPI", "pypi", "PYPI"])
def test_pypi_in_any_case(spelling: str) -> None:
    assert options_of("--torch", spelling).torch == "PyPI"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--labl=git"], "invalid-option"),
        (["--label=mine"], "invalid-option"),
        (["--debug-info=much"], "invalid-option"),
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
        (["--shard=1/4"], "shard-without-parts"),
        (["--shard="], "shard-without-parts"),
        (["--shard=5/4", "--parts=x"], "invalid-shard"),
        (["--until=0"], "invalid-option"),
        (["--until=0s"], "invalid-option"),
        (["--until=-1h"], "invalid-option"),
        (["--until=23:00"], "invalid-option"),
        (["wheel-3.10-cpu"], "invalid-option"),
        (["--jobs=2", "--jobs", "3"], "contradictory-options"),
        (["--torch=PyPI", "--torch=PyPI"], "contradictory-options"),
        (["--set=A=1", "--set=B=2", "--set=A=2"], "contradictory-options"),
    ],
)
def test_each_mistake_is_one_sentence(words: list[str], code: str) -> None:
    with refused(code) as caught:
        parse_words(words, "test", {})
    assert str(caught.value).startswith("test: ")


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with refused("invalid-option") as caught:
        options_of("--arch_list=8.6")
    assert str(caught.value) == (
        "test: there is no option --arch_list; did you mean --arch-list? "
        "(`test --help` lists the options)"
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
        options_of("--plat", tag)


def test_files_are_named_and_nobody_looks_at_them() -> None:
    words = ["--torch=absent.whl", "--parts=absent", "--patch=b.patch", "--patch=a"]
    options, files = parse_words(words, "test", {})
    assert options == Options()
    assert files == NamedFiles("absent.whl", "absent", ("b.patch", "a"))


def test_an_engine_tells_the_share() -> None:
    engine = {"CI_NODE_INDEX": "3", "CI_NODE_TOTAL": "16"}
    options, _ = parse_words(["--shard=auto", "--parts=x"], "test", engine)
    assert options.shard == "3/16"
    with refused("invalid-shard"):
        parse_words(["--shard=auto", "--parts=x"], "test", {})


def test_the_options_of_a_task_are_those_with_values() -> None:
    values = {"set_": ["USE_X=0"], "arch_list": "8.6", "jobs": "3", "memory": None}
    assert words_of_task(values) == ["--set=USE_X=0", "--arch-list=8.6", "--jobs=3"]


def test_an_empty_size_is_a_mistake_and_not_left_out() -> None:
    with refused("invalid-memory"):
        options_of(*words_of_task({"memory": ""}))


def test_options_that_are_written_are_read_as_the_same() -> None:
    options = Options(
        label="git",
        settings={"USE_MKLDNN": "0", "CFLAGS": "-O2 -g"},
        arch_list="8.0;8.6",
        jobs=3,
        memory=2**33,
        torch="PyPI",
        toolkit="11.8",
        platform="linux",
        guard=False,
        network=True,
        cpu="x86-64-v3",
        debug_info="lines",
        shard="3/16",
        parts="/parts",
        until=90.0,
        secure="all",
    )
    # The processor follows from `cpu`, the installed packages from `torch`; patches need files.
    names = {field.name for field in fields(Options)} - {"processor", "torch_installed", "patches"}
    same = [name for name in names if getattr(options, name) == getattr(Options(), name)]
    assert same == [], "an option is not tried"
    words = format_options(options)
    assert parse_words(words, "test", {}) == (
        replace(options, parts=None),
        NamedFiles(parts="/parts"),
    )
    assert format_options(Options()) == []


# A value of each option that a plan shows.
VALUES = {
    "label": "git",
    "set_": "USE_X=1",
    "arch_list": "8.6",
    "jobs": "3",
    "memory": "3 GiB",
    "torch": "PyPI",
    "toolkit": "12.4",
    "cpu": "native",
    "plat": "linux",
    "debug_info": "full",
    "patch": "README.md",
}
OPTIONS_OF_A_RUN = {"shard", "parts", "until"}  # which a plan does not show
OPTIONS_OF_A_RELEASE = {"secure"}  # which change nothing for a release without such patches
REFUSALS = {
    "torch": "torch-for-itself",
    "toolkit": "toolkit-without-cuda",
    "arch_list": "arch-list-without-cuda",
    "cpu": "processor-not-told",
    "plat": "platform-of-another-system",
    "label": "unknown-commit",
    "debug_info": "debug-info-impossible",
}


def plan_on(shipped: Facts, host: str, identifier: str, *words: str) -> Plan:
    """Return a plan on a described host, without the published wheel, which options do not change."""
    machine = load_host(ROOT / f"tests/golden/hosts/{host}.toml")
    options, files = parse_words(words, "test", {})
    options = replace(options, patches={f"given/{path}": path for path in files.patches})
    plan = plan_torch(shipped, identifier, "v2.4.1", machine, options=options)
    return replace(plan, official=replace(plan.official, published=None))


def plan_or_code(shipped: Facts, host: str, identifier: str, word: str) -> Plan | str:
    """Return a plan with one option, or the code of the error that refuses it."""
    try:
        return plan_on(shipped, host, identifier, word)
    except TorchmillError as error:
        return error.code


@pytest.mark.parametrize(
    ("host", "identifier"),
    [
        ("rtx3090", "wheel-3.12-cpu"),
        ("rtx3090", "wheel-3.12-cu121"),
        ("rtx3090", "vision-3.12-cpu"),
        ("rtx3090", "vision-3.12-cu121"),
        ("macbook", "wheel-3.12-cpu"),
        ("macbook", "vision-3.12-cpu"),
    ],
)
def test_each_option_changes_a_plan_or_is_refused(
    shipped: Facts, host: str, identifier: str
) -> None:
    assert VALUES.keys() | OPTIONS_OF_A_RUN | OPTIONS_OF_A_RELEASE == HELP.keys()
    usual = plan_on(shipped, host, identifier)
    for name, value in VALUES.items():
        word = f"--{name.strip('_').replace('_', '-')}={value}"
        plan = plan_or_code(shipped, host, identifier, word)
        if isinstance(plan, str):
            assert plan == REFUSALS.get(name), word
        else:
            assert plan != usual, f"{word} does nothing"


@pytest.mark.parametrize(
    "words",
    [
        "--set=TORCH_CUDA_ARCH_LIST=8.6 --arch-list=8.0",
        "--set=MAX_JOBS=3",
        "--set=USE_CUDA=0",
        "--set=MAX_JOBS=3 --jobs=2",
        "--set=PYTORCH_BUILD_VERSION=9",
        "--set=PYTORCH_BUILD_NUMBER=2",  # which would append .post2
        "--set=CUDA_HOME=/opt/cuda-12.4",
    ],
)
def test_no_setting_hides_an_option(shipped: Facts, words: str) -> None:
    with refused("two-settings"):
        plan_on(shipped, "rtx3090", "wheel-3.12-cu121", *words.split())


@pytest.mark.parametrize(
    "words",
    [
        "--set=TORCH_CUDA_ARCH_LIST=8.6",
        "--set=PYTORCH_EXTRA_INSTALL_REQUIREMENTS= --label=git",
    ],
)
def test_a_setting_on_which_nothing_decides_is_taken(shipped: Facts, words: str) -> None:
    name, _, value = words.split(maxsplit=1)[0].removeprefix("--set=").partition("=")
    plan = plan_on(shipped, "rtx3090", "wheel-3.12-cu121", *words.split())
    assert plan.variables[name] == value

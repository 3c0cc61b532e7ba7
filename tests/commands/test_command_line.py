"""The tasks of tasks.py: loaded only where they are named, and told by the line that their code says."""

import importlib
import json
import shlex
from pathlib import Path

import pytest
from invoke import Argument, Collection, Program
from invoke.parser import Parser, ParserContext

import tasks
from tests.support import paper_wheels
from tests.support.commands import ROOT, InvokeHere, run
from tests.support.refusals import refused
from torchmill.commands.command import TaskCommand, read_help
from torchmill.commands.verify import VERIFY
from torchmill.host.native import native_arch

SWITCHES = {"--json", "-j", "--local", "--help", "-h"}


@pytest.mark.parametrize("name", tasks.COMMANDS)
def test_the_line_of_a_task_is_what_its_code_says(name: str) -> None:
    module, line = tasks.COMMANDS[name]
    command: TaskCommand = getattr(importlib.import_module(module), name.upper())
    assert (command.run.__doc__ or "").partition("\n")[0] == line


@pytest.mark.parametrize("name", tasks.COMMANDS)
def test_the_help_of_a_task_tells_of_each_option(name: str) -> None:
    arguments = tasks.make_task(
        name, ["invoke", name]
    ).get_arguments()  # which fails for help without an option
    assert [one.name for one in arguments if not one.help] == []


@pytest.mark.parametrize("name", tasks.COMMANDS)
def test_the_help_of_a_task_has_examples_that_can_be_typed(name: str) -> None:
    """They are parsed by invoke itself, which refuses options that do not exist and values that are missing."""
    examples = read_help()["examples"][name]
    assert 1 <= len(examples) <= 2
    for example in examples:
        words = shlex.split(example.partition(" -- ")[0].rpartition(" | ")[2])
        assert words[:2] == ["invoke", name]
        task = tasks.make_task(name, words)
        (parsed,) = Parser([ParserContext(name, args=task.get_arguments())]).parse_argv(words[1:])
        assert parsed.name == name


@pytest.mark.parametrize("name", [*tasks.COMMANDS, "deps"])
def test_the_help_of_a_task_fits_a_page(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    task = tasks.deps if name == "deps" else tasks.make_task(name, ["invoke", "--help", name])
    Program(namespace=Collection(task)).run(["invoke", "--help", name], exit=False)
    help_ = capsys.readouterr().out
    assert "For example:\n    " in help_
    assert len(help_.splitlines()) <= 50
    assert max(map(len, help_.partition("Options:")[2].splitlines())) <= 80


@pytest.mark.parametrize("name", tasks.COMMANDS)
def test_an_option_that_is_given_twice_or_without_its_value_is_named(name: str) -> None:
    """Of one that may be repeated invoke takes no value for none, and of the second of others it knows nothing."""
    for one in _arguments(name):
        flag = "--" + one.names[0].strip("_").replace("_", "-")
        for words in (
            [[flag], [f"{flag}="], [flag, ""], [flag, "--help"]] if one.takes_value else ()
        ):
            with refused("option-without-value"):
                tasks.make_task(name, ["invoke", name, *words])
        if one.takes_value and one.kind is not list:
            with refused("contradictory-options"):
                tasks.make_task(name, ["invoke", name, flag, "a", f"{flag}=b"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "plan wheel-3.12-cpu --arch-lst=8.6",
            "invoke plan: there is no option --arch-lst; did you mean --arch-list? (`invoke plan -h` is its help)",
        ),
        (
            "build --arch aarch64",
            "invoke build: there is no option --arch; did you mean --arch-list?",
        ),
        (
            "fetch --tag v2.4.1 --package vision --all",
            "--all fetches every package: leave out --package, or --all",
        ),
        (
            "plan wheel-3.12-cpu --zzz",
            "invoke plan: there is no option --zzz (`invoke plan -h` is its help",
        ),
        ("matrix -q", "invoke matrix: there is no option -q (`invoke matrix -h`"),
        ("matrix --tag", "invoke matrix: --tag needs a value"),
        ("matrix --all=3", "invoke matrix: 3 is one argument too many"),
        ("plan", "invoke plan: the identifier is missing, as in `invoke plan wheel-3.10-cpu`"),
        ("plan wheel-3.12-cpu twice", "invoke plan: twice is one argument too many"),
        (
            "plan wheel-3.12-cpu --sh --json",
            "invoke plan: --sh prints a script, --json data: give one",
        ),
        ("plan wheel-3.12-cpu --tag=v2.4.1 --tag=v2.5.1", "invoke plan: --tag is given twice"),
        ("matrix --tag v2.4.1 --from debian", "invoke matrix: there is no option --from"),
    ],
)
def test_a_slip_is_told_with_what_is_near_and_where_help_is(
    line: str, said: str, invoke: InvokeHere
) -> None:
    code, printed, error = invoke(line)
    assert (code, printed, error.count("Traceback")) == (2, "", 0)
    assert error.startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("deps", "--tag"), "invoke deps: --tag needs a value (`invoke deps -h` is its help)"),
        (
            ("mtrix",),
            "there is no task mtrix; did you mean matrix? (`invoke --list` shows the tasks)",
        ),
        (
            ("wheel-3.10-cpu",),
            "there is no task wheel-3.10-cpu; `invoke build` and such a name builds a wheel",
        ),
        (("--bogus",), "there is no option --bogus (`invoke --list`"),
    ],
)
def test_what_is_no_task_is_told(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = run("invoke", *words, home=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {said}")


THERE = f"--host={ROOT / 'tests/golden/hosts/rtx3090.toml'}"
SAID = "--tag=v2.4.1 wheel-3.12-cpu"  # where a build has to be named
NEEDED = {
    "cluster": f"{SAID} --engine=gitlab",
    "doctor": THERE,
    "arch": THERE,
    "jobs": f"{THERE} {SAID}",
}
NEEDED |= {"plan": f"{THERE} {SAID}", "shards": f"{THERE} {SAID}", "explain": f"{THERE} {SAID}"}
NEEDED |= {"diagnose": str(ROOT / "README.md"), "clean": "--dry-run"}
ALONE = {*tasks.COMMANDS} - {
    "build",
    "facts",
    "fetch",
    "bisect",
    "toolkit",
    "image",
}  # which ask indexes, or do much


@pytest.mark.parametrize("name", sorted(ALONE))
def test_no_option_alone_makes_a_traceback(
    name: str, invoke: InvokeHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a value that means nothing each is refused in a sentence, or does no harm."""
    monkeypatch.chdir(tmp_path)  # some write a file or a folder of that name
    needed = NEEDED.get(name, "")
    for one in _arguments(name):
        flag = "--" + one.names[0].strip("_").replace("_", "-")
        first = (
            "-" if one.name in {"cell", "identifier", "build", "log"} else "-w/"
        )  # of what is named beside it
        for value in ("=x", "=''") if one.takes_value else ("",):
            others = " ".join(
                word for word in needed.split() if not word.startswith(flag) and word[0] in first
            )
            code, printed, error = invoke(f"{name} {others} {flag}{value}")
            assert "please report" not in error, (flag, value, error)
            assert "Traceback" not in error, (flag, value, error)
            assert code == 0 or printed or error.startswith("error: "), (flag, value, code, error)


def test_the_matrix_is_that_of_torch_on_this_machine_unless_more_is_asked_for(
    invoke: InvokeHere,
) -> None:
    code, printed, _ = invoke("matrix --tag v1.13.1")
    assert (
        code,
        printed.startswith(f"torch 1.13.1 on {native_arch()}\n"),
        printed.count(" on "),
    ) == (0, True, 1)
    assert invoke("matrix --tag v1.13.1 --all")[1].count(" on ") > 5


@pytest.mark.parametrize(
    ("variant", "said"), [("rocm63", "ROCm is no variant yet"), ("mps", "cpu includes MPS")]
)
def test_what_is_no_variant_is_explained(variant: str, said: str, invoke: InvokeHere) -> None:
    code, _, error = invoke(f"explain wheel-3.11-{variant} {THERE}")
    assert (code, said in error, error.count("\n")) == (4, True, 1)


@pytest.mark.parametrize("name", tasks.COMMANDS)
def test_an_option_has_one_letter_at_most_and_h_is_help(name: str) -> None:
    letters = [each for one in _arguments(name) for each in one.names if len(each) == 1]
    assert "h" not in letters
    assert len(letters) == len({*letters})
    assert all(sum(len(each) == 1 for each in one.names) <= 1 for one in _arguments(name))


def test_help_of_an_option_that_no_task_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        tasks,
        "read_help",
        lambda: {
            "shared": {},
            "examples": {"verify": []},
            "verify": {"former": "no longer an option"},
        },
    )
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - of Invoke
        tasks.make_task("verify", ["invoke", "verify"])
    assert "former" in str(refused.value)


def test_no_help_is_left_over() -> None:
    _, shared, *others = read_help().values()
    assert list(read_help())[:2] == ["examples", "shared"]
    assert read_help().keys() <= {"examples", "shared", *tasks.COMMANDS}
    options = [parameter for name in tasks.COMMANDS for parameter in _options(name)]
    assert [one for one in shared if options.count(one) < 2] == []
    assert [one for each in others for one in each.items() if one in shared.items()] == []


def _arguments(name: str) -> list[Argument]:
    return tasks.make_task(name, ["invoke", name]).get_arguments()


def _options(name: str) -> list[str]:
    return [str(one.name) for one in _arguments(name)]


def test_a_task_that_is_not_named_is_only_listed() -> None:
    named, other = (
        tasks.make_task("report", ["invoke", "report"]),
        tasks.make_task("report", ["invoke"]),
    )
    assert {one.name for one in named.get_arguments()} == {"build", "out"}
    assert other.get_arguments() == []
    assert other.__doc__ == tasks.COMMANDS["report"][1]


@pytest.mark.parametrize(
    ("words", "positional"),
    [
        ("invoke doctor", []),
        ("invoke doctor wheel-3.10-cpu", ["build"]),
        ("invoke doctor --tag v1.13.1 wheel-3.10-cpu", ["build"]),
        ("invoke doctor wheel-3.10-cpu --tag=v1.13.1", ["build"]),
        ("invoke doctor --json wheel-3.10-cpu", ["build"]),
        ("invoke doctor --tag v1.13.1 --host=doctor", []),
        ("invoke doctor -j --tag v1.13.1", []),
        ("invoke doctor --local 8.6", ["build"]),
        ("invoke plan wheel-3.10-cpu", []),
    ],
)
def test_a_task_may_have_an_argument_without_a_flag(words: str, positional: list[str]) -> None:
    assert (
        tasks.positional("doctor", TaskCommand(print, argument="build"), words.split(), SWITCHES)
        == positional
    )


@pytest.mark.parametrize(
    ("words", "positional"),
    [
        ("invoke plan", ["identifier"]),  # invoke says that it is missing
        ("invoke plan --help", []),
        ("invoke plan -h", []),
        ("invoke plan wheel-3.10-cpu --help", ["identifier"]),
    ],
)
def test_a_call_for_help_is_not_an_argument(words: str, positional: list[str]) -> None:
    assert (
        tasks.positional(
            "plan",
            TaskCommand(print, argument="identifier", required=True),
            words.split(),
            SWITCHES,
        )
        == positional
    )


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("invoke verify", []),
        ("invoke verify a.whl", ["wheel"]),
        ("invoke verify a.whl b.whl --json c.whl", ["wheel", "wheel_2", "wheel_3"]),
        ("invoke verify --original a.whl b.whl", ["wheel"]),
        ("invoke verify a.whl index", ["wheel"]),
        ("invoke verify --original index a.whl", ["wheel"]),
    ],
)
def test_one_that_may_be_repeated_takes_several_words(words: str, names: list[str]) -> None:
    assert tasks.positional("verify", VERIFY, words.split(), SWITCHES) == names


def test_a_value_may_be_called_as_a_task() -> None:
    tasks.make_task("clean", ["invoke", "clean", "--kind", "bisect"])
    with refused("option-without-value"):
        tasks.make_task("clean", ["invoke", "clean", "--kind", ""])


def test_all_wheels_that_a_shell_names_are_looked_at(tmp_path: Path) -> None:
    wheels = [
        str(paper_wheels.made(tmp_path, name, "1.0", "py3-none-any")) for name in ("one", "two")
    ]
    for words in ((*wheels, "--json"), ("--wheel", wheels[0], "--json", f"--wheel={wheels[1]}")):
        said = json.loads(run("invoke", "verify", *words, home=tmp_path).stdout)
        assert [each["wheel"] for each in said["wheels"]] == wheels


@pytest.mark.parametrize("words", ["invoke doctor -t v2.4.1", "invoke jobs -t v2.4.1"])
def test_the_value_of_a_short_option_is_no_argument(words: str) -> None:
    name = words.split()[1]
    assert not any(one.positional for one in tasks.make_task(name, words.split()).get_arguments())


def test_short_options_mean_the_same_in_every_task() -> None:
    named = [
        one
        for name in tasks.COMMANDS
        for one in tasks.make_task(name, ["invoke", name]).get_arguments()
    ]
    short = {
        (one.names[1], one.names[0])
        for one in [*named, *tasks.deps.get_arguments()]
        if len(one.names) > 1
    }
    assert short == {("j", "json"), ("t", "tag"), ("y", "yes")}


def test_a_switch_has_no_value() -> None:
    words = "invoke arch -j 8.6".split()  # noqa: SIM905 - as it is typed
    assert any(one.positional for one in tasks.make_task("arch", words).get_arguments())

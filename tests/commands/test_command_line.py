"""The tasks of tasks.py: their options, their help, and the answers to slips."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from invoke import Argument, Collection, Program
from invoke.parser import Parser, ParserContext
from press_support import written_wheels

import tasks
from tests.support.commands import ROOT, InvokeHere, run
from tests.support.refusals import refused, without_code
from tests.support.task_options import task_options
from torchmill.commands import command_line
from torchmill.commands.clean.command import KIND_NAMES
from torchmill.commands.command import read_help
from torchmill.core.task_lines import TASK_LINES
from torchmill.deliver.publish.targets import TARGET_FORMS
from torchmill.fetch.toolkit.request import LIBRARIES
from torchmill.host.native import native_arch
from torchmill.plan.options import HELP

SWITCHES = {"--json", "-j", "--local", "--help", "-h"}


def flag_of(option: Argument) -> str:
    """Return how an option is written, "--arch-list"."""
    return "--" + option.names[0].strip("_").replace("_", "-")


def test_every_task_is_listed() -> None:
    assert list(tasks.namespace.tasks) == list(TASK_LINES)


@pytest.mark.parametrize("name", TASK_LINES)
def test_the_line_of_a_task_is_what_its_code_says(name: str) -> None:
    assert (tasks.namespace[name].body.__doc__ or "").partition("\n")[0] == TASK_LINES[name]


@pytest.mark.parametrize("name", TASK_LINES)
def test_the_help_of_a_task_explains_each_option(name: str) -> None:
    """To read them fails for help without an option."""
    assert [option.name for option in task_options(name) if not option.help] == []


def test_the_help_of_an_option_lists_the_choices_that_the_code_knows() -> None:
    table = read_help()
    assert f"only this kind: {', '.join(KIND_NAMES)};" in table["clean"]["kind"]
    assert f"install {', '.join(LIBRARIES)}, as" in table["toolkit"]["library"]
    assert table["publish"]["to"] == TARGET_FORMS


def test_tasks_take_the_options_of_sessions_that_make_a_whole_build() -> None:
    assert [*command_line.BUILD_OPTIONS] == [
        name for name in HELP if name not in {"shard", "parts", "until"}
    ]


@pytest.mark.parametrize("name", TASK_LINES)
def test_the_help_of_a_task_has_examples_that_can_be_typed(name: str) -> None:
    """They are parsed by invoke itself, which refuses options that do not exist and values that are missing."""
    examples = command_line.examples(tasks.namespace[name])
    assert 1 <= len(examples) <= 2
    for example in examples:
        words = shlex.split(example.partition(" -- ")[0].rpartition(" | ")[2])
        assert words[:2] == ["invoke", name]
        context = ParserContext(name, args=task_options(name, words))
        (parsed,) = Parser([context]).parse_argv(words[1:])
        assert parsed.name == name


@pytest.mark.parametrize("name", TASK_LINES)
def test_the_help_of_a_task_fits_a_page(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = ["invoke", "--help", name]
    monkeypatch.setattr(command_line, "COMMAND_LINE", command_line.read_command_line(words))
    Program(namespace=Collection(tasks.namespace[name])).run(words, exit=False)
    help_ = capsys.readouterr().out
    assert "For example:\n    " in help_
    assert len(help_.splitlines()) <= 50
    assert max(map(len, help_.partition("Options:")[2].splitlines())) <= 80


@pytest.mark.parametrize("name", TASK_LINES)
def test_an_option_that_is_given_twice_or_without_its_value_is_named(name: str) -> None:
    """Invoke itself takes an empty list, and the last value of two."""
    for option in task_options(name):
        if not option.takes_value:
            continue
        flag = flag_of(option)
        without_value = [[f"{flag}="]]
        if not option.optional:
            without_value += [[flag], [flag, ""], [flag, "--help"]]
        for words in without_value:
            with refused("option-without-value"):
                task_options(name, ["invoke", name, *words])
        if option.kind is not list:
            with refused("contradictory-options"):
                task_options(name, ["invoke", name, flag, "a", f"{flag}=b"])


@pytest.mark.parametrize(
    ("line", "message"),
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
        (
            "build --debug-info vision-3.12-cpu --dry-run",
            "vision-3.12-cpu after --debug-info may be its value: write --debug-info=VALUE, or --debug-info at the end",
        ),
        ("plan wheel-3.12-cpu --debug-info=", "invoke plan: --debug-info needs a value"),
        (
            "plan wheel-3.12-cpu --debug-info=all",
            "invoke plan: argument --debug-info: invalid choice: 'all'",
        ),
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
def test_a_slip_is_answered_with_the_nearest_word_and_the_command_for_help(
    line: str, message: str, invoke: InvokeHere
) -> None:
    code, printed, error = invoke(line)
    assert (code, error.count("Traceback")) == (2, 0)
    assert printed == "" or json.loads(printed)["error"]["exit_code"] == code
    assert without_code(error).startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("deps", "--tag"), "invoke deps: --tag needs a value"),
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
def test_an_unknown_task_is_answered_with_the_nearest(
    words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    process = run("invoke", *words, home=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")
    assert without_code(process.stderr).startswith(f"error: {message}")


DESCRIBED = f"--host={ROOT / 'tests/golden/hosts/rtx3090.toml'}"
CELL = "--tag=v2.4.1 wheel-3.12-cpu"  # for tasks that need a build
COMPANIONS = {
    "cluster": f"{CELL} --engine=gitlab",
    "doctor": DESCRIBED,
    "arch": DESCRIBED,
    "jobs": f"{DESCRIBED} {CELL}",
}
COMPANIONS |= {
    "plan": f"{DESCRIBED} {CELL}",
    "shards": f"{DESCRIBED} {CELL}",
    "explain": f"{DESCRIBED} {CELL}",
}
COMPANIONS |= {"diagnose": str(ROOT / "README.md"), "clean": "--dry-run"}
QUICK_TASKS = {*TASK_LINES} - {
    "deps",
    "build",
    "facts",
    "fetch",
    "bisect",
    "toolkit",
    "image",
}  # which ask indexes, or do much


def test_all_lines_of_a_plan_are_folded_in_a_pipe(invoke: InvokeHere) -> None:
    code, printed, _ = invoke(f"plan wheel-3.12-cu121 --tag=v2.4.1 {DESCRIBED}")
    assert code == 0
    assert "known vulnerabilities" in printed
    assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize("name", sorted(QUICK_TASKS))
def test_no_option_alone_makes_a_traceback(
    name: str, invoke: InvokeHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is refused in a sentence if its value means nothing, or does no harm."""
    monkeypatch.chdir(tmp_path)  # some write a file or a folder of that name
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # no index answers there
    monkeypatch.setenv("TORCHMILL_TRIES", "1")  # a line would say that it is tried again
    companions = COMPANIONS.get(name, "")
    for option in task_options(name):
        flag = flag_of(option)
        first_letters = (
            "-" if option.name in {"cell", "identifier", "build", "log"} else "-w/"
        )  # of what is named beside it
        for value in ("=x", "=''") if option.takes_value else ("",):
            companion_words = " ".join(
                word
                for word in companions.split()
                if not word.startswith(flag) and word[0] in first_letters
            )
            code, printed, error = invoke(f"{name} {companion_words} {flag}{value}")
            assert "please report" not in error, (flag, value, error)
            assert "Traceback" not in error, (flag, value, error)
            assert code == 0 or printed or without_code(error).startswith("error: "), (
                flag,
                value,
                code,
                error,
            )


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
    ("variant", "message"), [("rocm63", "ROCm is no variant yet"), ("mps", "cpu includes MPS")]
)
def test_a_word_that_is_no_variant_is_explained(
    variant: str, message: str, invoke: InvokeHere
) -> None:
    code, _, error = invoke(f"explain wheel-3.11-{variant} {DESCRIBED}")
    assert (code, message in error, error.count("\n")) == (4, True, 1)


@pytest.mark.parametrize("name", TASK_LINES)
def test_an_option_has_one_letter_at_most_and_h_is_help(name: str) -> None:
    letters = [form for option in task_options(name) for form in option.names if len(form) == 1]
    assert "h" not in letters
    assert len(letters) == len({*letters})
    assert all(sum(len(form) == 1 for form in option.names) <= 1 for option in task_options(name))


def test_help_of_an_option_that_no_task_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"shared": {}, "verify": {"former": "no longer an option"}}
    monkeypatch.setattr(command_line, "read_help", lambda: table)
    with pytest.raises(ValueError, match="former"):  # of Invoke
        task_options("verify")


def test_no_help_is_left_over() -> None:
    shared, *tables = read_help().values()
    assert next(iter(read_help())) == "shared"
    assert read_help().keys() <= {"shared", *TASK_LINES}
    options = [str(option.name) for name in TASK_LINES for option in task_options(name)]
    assert [name for name in shared if options.count(name) < 2] == []
    assert [item for table in tables for item in table.items() if item in shared.items()] == []


def test_a_task_that_is_not_named_has_no_options() -> None:
    assert {option.name for option in task_options("report")} == {"build", "out"}
    assert task_options("report", ["invoke"]) == []


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ("invoke doctor", 0),
        ("invoke doctor wheel-3.10-cpu", 1),
        ("invoke doctor --tag v1.13.1 wheel-3.10-cpu", 1),
        ("invoke doctor wheel-3.10-cpu --tag=v1.13.1", 1),
        ("invoke doctor --json wheel-3.10-cpu", 1),
        ("invoke doctor --tag v1.13.1 --host=doctor", 0),
        ("invoke doctor -j --tag v1.13.1", 0),
        ("invoke doctor --local 8.6", 1),
        ("invoke plan wheel-3.10-cpu", 0),
        ("invoke doctor a index", 1),
        ("invoke doctor a b -j c", 3),
    ],
)
def test_the_words_of_a_task_that_are_no_options_are_counted(words: str, count: int) -> None:
    task_words = command_line.words_of_task("doctor", words.split(), SWITCHES)
    assert command_line.count_unnamed(task_words, SWITCHES) == count


def positional(words: Sequence[str]) -> list[str | None]:
    """Return the options of the first task that need not be named."""
    return [option.name for option in task_options(words[1], words) if option.positional]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("invoke plan", ["identifier"]),  # invoke says that it is missing
        ("invoke plan --help", []),
        ("invoke plan -h", []),
        ("invoke plan wheel-3.10-cpu --help", ["identifier"]),
        ("invoke doctor", []),
        ("invoke doctor -j wheel-3.10-cpu", ["build"]),
        ("invoke doctor -t v2.4.1", []),
        ("invoke jobs -t v2.4.1", []),
        ("invoke arch -j 8.6", ["list_"]),
    ],
)
def test_an_argument_may_have_no_name_and_a_call_for_help_is_none(
    words: str, names: list[str]
) -> None:
    assert positional(words.split()) == names


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("invoke verify", []),
        ("invoke verify a.whl", ["a.whl"]),
        ("invoke verify a.whl b.whl --json c.whl", ["a.whl", "b.whl", "c.whl"]),
        ("invoke verify --original a.whl b.whl", ["b.whl"]),
        ("invoke verify --original index a.whl", ["a.whl"]),
        ("invoke verify --wheel a.whl --wheel=b.whl", ["a.whl", "b.whl"]),
        ("invoke verify a.whl --wheel b.whl", ["a.whl", "b.whl"]),
    ],
)
def test_one_that_may_be_repeated_takes_several_words(words: str, values: list[str]) -> None:
    context = ParserContext("verify", args=task_options("verify", words.split()))
    (parsed,) = Parser([context]).parse_argv(words.split()[1:])
    assert parsed.as_kwargs["wheel"] == values


def test_a_value_may_be_called_as_a_task() -> None:
    assert task_options("clean", ["invoke", "clean", "--kind", "bisect"])
    with refused("option-without-value"):
        task_options("clean", ["invoke", "clean", "--kind", ""])


def test_all_wheels_that_a_shell_names_are_looked_at(tmp_path: Path) -> None:
    wheels = [
        str(written_wheels.made(tmp_path, name, "1.0", "py3-none-any")) for name in ("one", "two")
    ]
    for words in ((*wheels, "--json"), ("--wheel", wheels[0], "--json", f"--wheel={wheels[1]}")):
        data = json.loads(run("invoke", "verify", *words, home=tmp_path).stdout)
        assert [entry["wheel"] for entry in data["wheels"]] == wheels


def test_short_options_mean_the_same_in_every_task() -> None:
    options = [option for name in TASK_LINES for option in task_options(name)]
    short = {(option.names[1], option.names[0]) for option in options if len(option.names) > 1}
    assert short == {("j", "json"), ("t", "tag"), ("y", "yes")}


def test_an_error_is_data_for_who_asks_for_data(invoke: InvokeHere) -> None:
    code, printed, error = invoke("plan wheel-3.99-cpu --json --tag v2.4.1")
    assert error.startswith("error[")
    document = json.loads(printed)
    assert document["format"] == 1
    description = document["error"]
    assert error.startswith(f"error[{description['code']}]: ")
    assert description["exit_code"] == code != 0
    assert " ".join(error.split()) == f"error[{description['code']}]: {description['message']}"
    assert description["cure"] is None or description["cure"] in description["message"]

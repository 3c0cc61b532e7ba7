"""The invoke namespace: what looks after the machine and the source.

Each task is a `TaskCommand` of a module in torchmill/commands/, which is loaded only if the task is named
on the command line; of the others invoke needs no more than their names and a line of help.
"""

from torchmill.core import running_python  # noqa: F401, I001 - before what old ones lack

import importlib
import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from functools import wraps
from itertools import pairwise, takewhile
from json import dumps
from pathlib import Path
from typing import Any

from invoke import Argument, Collection, Context, Exit, ParseError, Program, Task
from invoke.parser.context import to_flag

from torchmill.commands.command import TaskCommand, read_help
from torchmill.core import reaper
from torchmill.core.console import colour_words, fit_screen, fold_text
from torchmill.core.errors import ConfigError, did_you_mean
from torchmill.core.formats import stamp_output
from torchmill.core.exits import exit_with_error, open_closed_streams, print_now, show_uncaught
from torchmill.core.homes import mark_home, require_untracked_state
from torchmill.core.paths import Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import name_programs, record_programs
from torchmill.core.task_lines import LINES, list_tasks

ROOT = Path(__file__).parent
sys.excepthook = show_uncaught
open_closed_streams()
record_programs(os.environ)
# Invoke has no bytecode written: every command would compile the modules that it loads again.
sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)

# Where those are that have no module of their own in torchmill/commands/.
PLACES = {
    "explain": "torchmill.commands.matrix",
    "facts": "tools.facts",
    "report": "torchmill.commands.report.command",
    "status": "torchmill.commands.clean.command",
    "clean": "torchmill.commands.clean.command",
}
COMMANDS = {
    name: (PLACES.get(name, f"torchmill.commands.{name}"), line)
    for name, line in LINES.items()
    if name != "deps"
}

SHORT_FORMS = {
    "json": "j",
    "tag": "t",
    "yes": "y",
}  # -h is the help, and Invoke's own take other letters
KEEPING_TASKS = {
    "bisect",
    "cluster",
    "fetch",
    "image",
    "index",
}  # which write to the state folder themselves
CELL_TASKS = {
    "bisect",
    "build",
    "cluster",
    "doctor",
    "explain",
    "jobs",
    "plan",
    "shards",
}  # whose argument names one


def positional(
    task: str, command: TaskCommand, words: Sequence[str], switches: Container[str]
) -> list[str]:
    """Return the argument of a task as positional where it is given so; invoke knows no optional one.

    One that is required is always positional, unless a call for help would be taken for it. Of one that may be
    given several times, each further word has a name of its own: "wheel", "wheel_2". `switches` are the options
    that take no value.
    """
    if not command.argument:
        return []
    if command.required and {"--help", "-h"}.isdisjoint(words):
        return [command.argument]
    own = [task, *own_words(task, words, switches)]
    count = sum(
        word[:1] != "-" and not takes_next(before, switches) for before, word in pairwise(own)
    )
    most = count if command.argument in command.repeated else min(count, 1)
    return [command.argument if n == 1 else f"{command.argument}_{n}" for n in range(1, most + 1)]


def takes_next(word: str, switches: Container[str]) -> bool:
    """Tell whether a word is an option that takes the next one as its value."""
    return word[:1] == "-" and "=" not in word and word not in switches


def own_words(task: str, words: Sequence[str], switches: Container[str]) -> Iterator[str]:
    """Return the words of a command line that are a task's: those after its name, up to the next task's."""
    given = words[words.index(task) :] if task in words else []
    for before, word in pairwise(given):
        if word in COMMANDS and not takes_next(before, switches):
            return
        yield word


def refuse_slips(
    task: str, arguments: Sequence[Argument], words: Sequence[str], switches: Container[str]
) -> None:
    """Raise ConfigError for an option that is given twice, and one without its value, of which invoke says little.

    An empty value is none: `--sign-key "$KEY"` must not publish unsigned wheels where there is no such variable.
    """
    own = [*own_words(task, words, switches), ""]
    flags = {to_flag(name): one for one in arguments for name in one.names}
    for number, word in enumerate(own):
        flag, _, value = word.partition("=")
        one = flags.get(flag)
        if one is None or not one.takes_value:
            continue
        if not value and ("=" in word or own[number + 1] in {"", "--help", "-h", *flags}):
            raise ConfigError(f"invoke {task}: {flag} needs a value", code="option-without-value")
        if one.kind is not list and [each.partition("=")[0] for each in own].count(flag) > 1:
            raise ConfigError(
                f"invoke {task}: {flag} is given twice: give it once", code="contradictory-options"
            )


def parse_tasks(self: Program, parse: Callable[[Program], None] = Program.parse_tasks) -> None:
    """Parse the command line as Invoke does; say of a slip what was meant and where help is, and exit with 2.

    Tasks are listed by stage, with `--list` and if no task is named; Invoke would list its own options then.
    """
    if _asks_for_list(self):
        print_now(on_terminal(list_tasks()))
        raise Exit
    try:
        parse(self)
    except ParseError as error:
        task = error.context.name if error.context else None
        help_ = f"`invoke {task} -h` is its help" if task else "`invoke --list` shows the tasks"
        slip = f"{f'invoke {task}: ' if task else ''}{_slip(task or '', error)} ({help_})"
        raise _ended(as_plain_text(f"error: {slip}"), ConfigError.exit_code) from None


def _asks_for_list(program: Program) -> bool:
    """Tell whether a command line asks for the list of all tasks, or names no task."""
    given = program.args
    if given.list.value:
        return (
            given.list.value is True
            and given["list-format"].value == "flat"
            and not given["list-depth"].value
        )
    return not (program.core.unparsed or given.help.value or given.complete.value)


Program.parse_tasks = parse_tasks  # type: ignore[method-assign]


def _slip(task: str, error: ParseError) -> str:
    """Return what is wrong with a command line, by what Invoke says of it."""
    said, context = str(error), error.context
    if context and context.missing_positional_args:
        example = read_help()["examples"][task][0]
        return f"the {context.missing_positional_args[0].name} is missing, as in `{example}`"
    if flag := re.match(r"Flag <Argument: (\w+).* needed value", said):
        return f"{to_flag(flag[1])} needs a value"
    if not (unknown := re.fullmatch(r"No idea what '(.*)' is!", said)):
        return said
    word = unknown[1]
    option = word[:1] == "-"
    if context and task:
        return (
            f"there is no option {word}{did_you_mean(word, context.flags)}"
            if option
            else f"{word} is one argument too many"
        )
    near = did_you_mean(word, [*COMMANDS, "deps"])
    cell = (
        "; `invoke build` and such a name builds a wheel"
        if re.match(r"[\w-]+-(cp|py)?\d", word)
        else ""
    )
    return f"there is no {'option' if option else 'task'} {word}{near or cell}"


class HelpfulTask(Task[Any]):
    """A task whose options have a short form only if that means the same in every task."""

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        """Return how an option is written."""
        options = super().arg_opts(name, default, taken_names)
        short = [SHORT_FORMS[name]] if name in SHORT_FORMS else []
        return {**options, "names": [*options["names"], *short]}


def make_task(name: str, words: Sequence[str]) -> Task[Any]:
    """Return the task of a name: whole where the words may mean it, else its name and a line of help."""
    module, line = COMMANDS[name]
    if name not in words:
        return _listed(name, line)
    command: TaskCommand = getattr(importlib.import_module(module), name.upper())
    arguments = _task(name, command, []).get_arguments()
    switches = {
        to_flag(one) for each in arguments if not each.takes_value for one in each.names
    } | {"--help", "-h"}
    if words[1:2] != ["--complete"]:  # by which a shell asks
        refuse_slips(name, arguments, words, switches)
    return _task(name, command, positional(name, command, words, switches))


def _task(name: str, command: TaskCommand, names: Sequence[str]) -> HelpfulTask:
    options = {each: _session_options().HELP[each] for each in command.session_options}
    body, told = _body(name, command, names), read_help()
    line = fold_text(
        COMMANDS[name][1], shutil.get_terminal_size().columns - 2
    )  # by which invoke indents it
    body.__doc__ = name_programs("\n  ".join([f"{line}\n\nFor example:", *told["examples"][name]]))
    shared = {
        each: text
        for each, text in told["shared"].items()
        if each in inspect.signature(body).parameters
    }
    meanings = {**shared, **told.get(name, {}), **command.help, **options}
    return HelpfulTask(
        exit_with_error(body, _ended),
        name=name,
        help={option: name_programs(meaning) for option, meaning in meanings.items()},
        iterable=[
            each
            for each in (*command.repeated, *({"set_", "patch"} & options.keys()))
            if each not in names
        ],
        positional=list(names),
        auto_shortflags=False,
    )


def _ended(message: str, code: int) -> Exit:
    return Exit(fit_screen(message, sys.stderr), code=code)


def _listed(name: str, line: str) -> Task[Any]:
    def body(_: Context) -> None:
        raise AssertionError(f"{name} is on no command line")

    body.__doc__ = line
    return Task(body, name=name)


def on_terminal(text: str) -> str:
    """Return a text as a terminal shows it best: folded, verdicts and marks in colour."""
    if not sys.stdout.isatty():
        return text
    return colour_words(fit_screen(text))


def _body(task: str, command: TaskCommand, names: Sequence[str]) -> Any:
    first, layout, *options = inspect.signature(command.run).parameters.values()
    options = [one for one in options if one.name not in {"options", command.rest}]
    options += (
        [inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False)]
        if command.json
        else []
    )
    more = (*command.session_options, *names[1:])
    options += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in more
    ]

    @wraps(command.run)
    def body(_: Context, *args: Any, **kwargs: Any) -> None:
        reaper.watch_run()
        if task in KEEPING_TASKS:
            mark_home(LAYOUT)
        if command.argument in command.repeated and names:
            kwargs[command.argument] = [kwargs.pop(name) for name in names]
        if command.session_options:
            said = {name: kwargs.pop(name) for name in command.session_options}
            kwargs["options"] = _session_options().options_of_task(task, said)
        if command.rest:
            kwargs[command.rest] = REST
        elif REST:
            raise ConfigError(
                f"invoke {task} takes its options without `--`: leave it out",
                code="words-after-dash",
            )
        as_json = command.json and kwargs.pop("json")
        folded = command.folded and not (
            kwargs.get("json") or kwargs.get("sh")
        )  # which return a file's text
        result: Any = command.run(
            _load_facts() if first.name == "facts" else None, LAYOUT, *args, **kwargs
        )
        text = on_terminal(str(result)) if folded else result
        print_now(dumps(stamp_output(result.data), indent=1) if as_json else text)
        getattr(result, "require", lambda: None)()
        if code := getattr(result, "exit_code", 0):
            raise Exit(code=code)

    vars(body)["__signature__"] = inspect.Signature([layout.replace(name="context"), *options])
    return body


def _session_options() -> Any:
    from torchmill.plan import options

    return options


def _load_facts() -> Any:
    from torchmill.config import facts_reader

    facts = facts_reader.load_facts(ROOT)
    for file in facts.left_out:
        sys.stderr.write(as_plain_text(f"warning: {file.warning}\n"))
    return facts


def install_dependencies(
    context: Context, tag: str = "", print_: bool = False, manager: str = ""
) -> None:
    """Install the packages of the system."""
    from torchmill.commands.deps import plan_installation

    if REST:
        raise ConfigError(
            "invoke deps takes its options without `--`: leave it out", code="words-after-dash"
        )
    installation = plan_installation(_load_facts(), LAYOUT, tag, manager, run=not print_)
    for remark in installation.remarks:
        sys.stderr.write(f"{as_plain_text(remark)}\n")
    print_now(installation.line)
    if not print_:
        context.run(installation.line, pty=sys.stdout.isatty())


def complete_cells(words: Sequence[str]) -> None:
    """Print the builds of the selected release where a shell completes one: Invoke itself knows tasks and options."""
    from torchmill.commands.sessions import list_sessions, newest_release_alone
    from torchmill.config import selection
    from torchmill.host.native import native_arch

    if CELL_TASKS.isdisjoint(words) or words[-1].startswith("-"):
        return
    tag = selection.selected_tag(LAYOUT)
    sessions = list_sessions(ROOT, native_arch(), tag).sessions
    for one in sessions if tag else newest_release_alone(sessions):
        print_now(one.name)


# Invoke leaves what follows -- to tasks, but joins it to one string: the words themselves are taken from here.
install_dependencies.__doc__ = name_programs(
    f"{LINES['deps']}\n\nFor example:\n  invoke deps --tag v1.13.1 --print"
)
own = sys.argv if "--complete" in sys.argv else [*takewhile(lambda word: word != "--", sys.argv)]
REST = sys.argv[len(own) + 1 :]
deps: Task[Any] = HelpfulTask(
    exit_with_error(install_dependencies, _ended),
    name="deps",
    auto_shortflags=False,
    help={
        "tag": "the release; default: the selected one",
        "print_": "print the command instead of running it",
        "manager": "the package manager, such as apt; default: that of this system",
    },
)
try:
    LAYOUT = Layout.of_checkout(ROOT)
    require_untracked_state(LAYOUT.root)
    if "--complete" in sys.argv:
        complete_cells(sys.argv[sys.argv.index("--complete") + 1 :])
    namespace = Collection(deps, *(make_task(name, own) for name in COMMANDS))
except ConfigError as slip:
    sys.stderr.write(fit_screen(as_plain_text(f"error: {slip}\n"), sys.stderr))
    sys.exit(slip.exit_code)

"""The command line of `invoke`: additions to it, behind the `klass` of its tasks.

Invoke lets a task be of a class of one's own: `klass` in
https://docs.pyinvoke.org/en/stable/api/tasks.html. The class `SuiteTask` adds:

- an argument that may be left out, or given without its name, once or several times;
- options of sessions, such as --jobs, that several tasks share;
- help that is read only if the task is named, so that `invoke --list` reads none;
- an error as one message with its own exit code.

Invoke loads tasks.py before it reads the words of tasks. At the end of tasks.py, `answer_first`
reads them with invoke's own parser: it lists the tasks by stage, and answers a slip with the
nearest word and the command for help.
"""

import inspect
import re
import shutil
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import pairwise
from json import dumps
from typing import TYPE_CHECKING, Any, NamedTuple

import invoke
from invoke import Argument, Collection, Exit, ParseError, Program, Task
from invoke.parser import Parser
from invoke.parser.context import to_flag

from torchmill.commands.command import CommandOutput, read_help
from torchmill.core.console import colour_words, fit_screen, fold_text
from torchmill.core.errors import ConfigError, did_you_mean
from torchmill.core.exits import exit_with_error, print_now
from torchmill.core.formats import stamp_output
from torchmill.core.homes import mark_home, require_untracked_state
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import name_programs
from torchmill.core.task_lines import LINES, list_tasks

if TYPE_CHECKING:
    from torchmill.config.facts import Facts
    from torchmill.plan.build_options import Options

# Of `nox -s wheel-3.10-cpu -- OPTIONS`, those that a task takes which plans or runs whole builds.
BUILD_OPTIONS = (
    "label",
    "set_",
    "arch_list",
    "jobs",
    "memory",
    "torch",
    "toolkit",
    "cpu",
    "patch",
    "plat",
)
_REPEATED_BUILD_OPTIONS = {"set_", "patch"}
# A short form means the same in every task. -h is help; invoke's own options have other letters.
_SHORT_FORMS = {"json": "j", "tag": "t", "yes": "y"}
_HELP_FLAGS = {"--help", "-h"}
# A shell completes the argument of these: it names a build.
_TASKS_OF_BUILDS = {"bisect", "build", "cluster", "doctor", "explain", "jobs", "plan", "shards"}
# Whoever imports tasks.py without one of these, such as a test, has a command line of his own.
_RUNNERS = {"invoke.main", "torchmill_suite"}


class CommandLine(NamedTuple):
    """The words of a command line of invoke."""

    words: Sequence[str]  # up to --, with the program's name
    rest: Sequence[str]  # after --, which invoke would join to one string
    completes: bool  # a shell asks for completions


def read_words(argv: Sequence[str]) -> CommandLine:
    """Return a command line; `argv` is `sys.argv`."""
    if ("--complete", "--") in pairwise(argv):
        # So a shell asks for completions. `invoke toolkit` has an option of that name.
        return CommandLine(argv, [], completes=True)
    words = list(argv)
    if "--" not in words:
        return CommandLine(words, [], completes=False)
    end = words.index("--")
    return CommandLine(words[:end], words[end + 1 :], completes=False)


LINE = read_words(sys.argv)


class SuiteTask(Task[Any]):
    """A task of tasks.py.

    `argument` is the option that may also be given without its name; it is required if it has no
    default. `options` are the options of sessions that the body takes as `**options`. Only with
    `takes_rest` may words follow --. If a task is killed, the processes that it started are ended,
    unless it is not `watched`.
    """

    def __init__(
        self,
        body: Callable[..., None],
        *,
        argument: str = "",
        options: Sequence[str] = (),
        takes_rest: bool = False,
        watched: bool = True,
        iterable: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        repeated = [*iterable, *_REPEATED_BUILD_OPTIONS.intersection(options)]
        super().__init__(body, positional=(), auto_shortflags=False, iterable=repeated, **settings)
        self.argument = argument
        self.options = options
        self.takes_rest = takes_rest
        self.watched = watched

    def argspec(self, body: Callable[..., None]) -> inspect.Signature:
        """Return the options: the body's parameters, and those of sessions for `**options`."""
        parameters = [
            parameter
            for parameter in super().argspec(body).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        parameters += [inspect.Parameter(name, keyword_only, default=None) for name in self.options]
        return inspect.Signature(parameters)

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        """Return how an option is written, with its short form if it has one."""
        form = super().arg_opts(name, default, taken_names)
        if name in _SHORT_FORMS:
            form["names"].append(_SHORT_FORMS[name])
        return form

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the options; none if the command line does not name the task.

        Raises ConfigError for an option that is given twice, or without its value.
        """
        if self.name not in LINE.words:
            return []
        self.__doc__ = _docstring(self.body)
        self.help = _option_meanings(self)
        arguments: list[Argument] = super().get_arguments(ignore_unknown_help)
        switches = {*_HELP_FLAGS}
        for argument in arguments:
            if not argument.takes_value:
                switches.update(map(to_flag, argument.names))
        if not LINE.completes:
            _refuse_slips(self.name, arguments, LINE.words, switches)
        if not self.argument:
            return arguments
        return [self._as_positional(argument, switches) for argument in arguments]

    def _as_positional(self, argument: Argument, switches: Container[str]) -> Argument:
        """Return an argument, without its name if it is this task's and so given."""
        if argument.name != self.argument:
            return argument
        words = words_of_task(self.name, LINE.words, switches)
        count = count_unnamed(words, switches)
        if argument.kind is list and count == 0:
            return argument
        if argument.kind is list:
            flags = [to_flag(name) for name in argument.names]
            count += sum(word.partition("=")[0] in flags for word in words)
            return WordsArgument(argument, count)
        parameter = inspect.signature(self.body).parameters[self.argument]
        required = parameter.default is inspect.Parameter.empty
        # Invoke would take -h for the value of an argument that is still missing.
        argument.positional = count > 0 or (required and _HELP_FLAGS.isdisjoint(LINE.words))
        return argument

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; whatever it raises ends invoke with one message and an exit code."""
        as_json = bool(kwargs.get("json"))
        return exit_with_error(self._run, _as_exit, as_json=as_json)(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> None:
        if self.watched:
            from torchmill.core import reaper

            reaper.watch_run()
        if LINE.rest and not self.takes_rest:
            raise ConfigError(
                f"invoke {self.name} takes its options without `--`: leave it out",
                code="words-after-dash",
            )
        super().__call__(*args, **kwargs)


class WordsArgument(Argument):
    """A list that takes several words without its name: invoke hands one to each such argument."""

    def __init__(self, argument: Argument, count: int) -> None:
        super().__init__(
            names=argument.names,
            kind=list,
            help=argument.help,
            positional=True,
            attr_name=argument.attr_name,
        )
        self.count = count  # of values, with and without the name
        self._values: list[str] = []

    @property
    def value(self) -> Any:
        """Return the values; None while some are still to come: then invoke hands over more."""
        return self._values if len(self._values) >= self.count else None

    @value.setter
    def value(self, value: str) -> None:
        self.raw_value = value
        self._values = [*self._values, value]


def task(
    *,
    argument: str = "",
    iterable: Sequence[str] = (),
    options: Sequence[str] = (),
    takes_rest: bool = False,
    watched: bool = True,
) -> Callable[[Callable[..., None]], SuiteTask]:
    """Return invoke's decorator `task` for a `SuiteTask`, which explains the parameters.

    `iterable` are options that may be given several times, as for invoke.
    """
    decorator: Callable[[Callable[..., None]], SuiteTask] = invoke.task(
        klass=SuiteTask,
        argument=argument,
        iterable=iterable,
        options=options,
        takes_rest=takes_rest,
        watched=watched,
    )
    return decorator


def _docstring(body: Callable[..., None]) -> str:
    """Return a task's docstring: its first line fits the terminal, commands name programs here."""
    first, _, rest = inspect.cleandoc(body.__doc__ or "").partition("\n")
    columns = shutil.get_terminal_size().columns - 2  # by which invoke indents it
    return name_programs(f"{fold_text(first, columns)}\n{rest}")


def _option_meanings(task: SuiteTask) -> dict[str, str]:
    """Return the help of a task's options, by name."""
    table = read_help()
    names = task.argspec(task.body).parameters
    meanings = {name: text for name, text in table["shared"].items() if name in names}
    meanings.update(table.get(task.name, {}))
    if task.options:
        from torchmill.plan.options import HELP

        meanings.update({name: HELP[name] for name in task.options})
    return {name: name_programs(meaning) for name, meaning in meanings.items()}


def takes_next(word: str, switches: Container[str]) -> bool:
    """Tell whether a word is an option that takes the next one as its value."""
    return word.startswith("-") and "=" not in word and word not in switches


def words_of_task(task: str, words: Sequence[str], switches: Container[str]) -> list[str]:
    """Return the words of a command line that are a task's: its name and those up to the next task.

    `switches` are the options that take no value. The value of an option may be the name of a task.
    """
    task_words = [task]
    if task in words:
        for previous, word in pairwise(words[words.index(task) :]):
            if word in LINES and not takes_next(previous, switches):
                break
            task_words.append(word)
    return task_words


def count_unnamed(words: Sequence[str], switches: Container[str]) -> int:
    """Return how many words of a task, after its name, are neither options nor their values."""
    return sum(
        not word.startswith("-") and not takes_next(previous, switches)
        for previous, word in pairwise(words)
    )


def _refuse_slips(
    task: str, arguments: Sequence[Argument], words: Sequence[str], switches: Container[str]
) -> None:
    """Raise ConfigError for an option that is given twice, or without its value.

    Invoke's own messages say little of either. An empty value is none: `--sign-key "$KEY"` must
    not publish unsigned wheels if there is no such variable.
    """
    options = {}
    for argument in arguments:
        options.update({to_flag(name): argument for name in argument.names})
    # An empty word at the end stands for the value that the last option lacks.
    task_words = [*words_of_task(task, words, switches)[1:], ""]
    flags = [word.partition("=")[0] for word in task_words]
    for number, word in enumerate(task_words):
        flag, equals, value = word.partition("=")
        option = options.get(flag)
        if option is None or not option.takes_value:
            continue
        if not value and (equals or task_words[number + 1] in {"", *_HELP_FLAGS, *options}):
            raise ConfigError(f"invoke {task}: {flag} needs a value", code="option-without-value")
        if option.kind is not list and flags.count(flag) > 1:
            raise ConfigError(
                f"invoke {task}: {flag} is given twice: give it once", code="contradictory-options"
            )


def answer_first(tasks: Collection) -> None:
    """Answer a command line before invoke reads the words of tasks, if its own answer is poor.

    Raises Exit, with which invoke ends: after the list of tasks, with --list and if no task is
    named; with exit code 2 for a slip. Does nothing unless a runner of invoke has loaded tasks.py.
    """
    if not _RUNNERS.isdisjoint(sys.modules):
        exit_with_error(answer_words, _as_exit)(tasks, LINE)


def answer_words(tasks: Collection, line: CommandLine) -> None:
    """Do as `answer_first` does for a command line. Raises ConfigError for a slip."""
    require_untracked_state(layout().root)
    if line.completes:
        _complete_builds(line.words[line.words.index("--complete") + 1 :])
        return
    core = Program().initial_context
    core_words = Parser(initial=core, ignore_unknown=True).parse_argv(list(line.words[1:]))
    if _asks_for_list(core_words[0].args, core_words.unparsed):
        print_now(on_terminal(list_tasks()))
        raise Exit
    try:
        Parser(initial=core, contexts=tasks.to_contexts()).parse_argv(core_words.unparsed)
    except ParseError as error:
        raise ConfigError(_explain_slip(tasks, error), code="invalid-option") from None


def _asks_for_list(core: Mapping[str, Argument], task_words: Sequence[str]) -> bool:
    """Tell whether invoke's own options ask for the list of all tasks, or no task is named."""
    if core["list"].value:
        return (
            core["list"].value is True
            and core["list-format"].value == "flat"
            and not core["list-depth"].value
        )
    return not (task_words or core["help"].value)


def _explain_slip(tasks: Collection, error: ParseError) -> str:
    """Return a message about a slip: the problem, the nearest word, and the command for help."""
    task = error.context.name if error.context else None
    if task is None:
        slip = _explain_unknown_word(error)
        return f"{slip} (`invoke --list` shows the tasks)"
    slip = _explain_slip_of_task(tasks[task], error)
    return f"invoke {task}: {slip} (`invoke {task} -h` is its help)"


def _explain_slip_of_task(task: SuiteTask, error: ParseError) -> str:
    message = str(error)
    missing = error.context.missing_positional_args if error.context else []
    if missing:
        example = examples(task)[0]
        return f"the {missing[0].name} is missing, as in `{example}`"
    valueless = re.match(r"Flag <Argument: (\w+).* needed value", message)
    if valueless:
        return f"{to_flag(valueless[1])} needs a value"
    unknown = re.fullmatch(r"No idea what '(.*)' is!", message)
    if not unknown:
        return message
    word = unknown[1]
    if not word.startswith("-"):
        return f"{word} is one argument too many"
    hint = did_you_mean(word, error.context.flags if error.context else [])
    return f"there is no option {word}{hint}"


def _explain_unknown_word(error: ParseError) -> str:
    unknown = re.fullmatch(r"No idea what '(.*)' is!", str(error))
    if not unknown:
        return str(error)
    word = unknown[1]
    kind = "option" if word.startswith("-") else "task"
    hint = did_you_mean(word, LINES)
    if not hint and re.match(r"[\w-]+-(cp|py)?\d", word):
        hint = "; `invoke build` and such a name builds a wheel"
    return f"there is no {kind} {word}{hint}"


def examples(task: SuiteTask) -> list[str]:
    """Return the commands that a task's docstring has as examples."""
    _, _, text = inspect.cleandoc(task.body.__doc__ or "").partition("\nFor example:\n")
    return [line.strip() for line in text.splitlines()]


def _complete_builds(words: Sequence[str]) -> None:
    """Print the builds of the selected release if a shell completes one.

    Invoke itself completes tasks and options.
    """
    from torchmill.commands.session_matrix import list_sessions, newest_release_alone
    from torchmill.config import selection
    from torchmill.host.native import native_arch

    if _TASKS_OF_BUILDS.isdisjoint(words) or words[-1].startswith("-"):
        return
    tag = selection.selected_tag(layout())
    sessions = list_sessions(CHECKOUT, native_arch(), tag).sessions
    if not tag:
        sessions = newest_release_alone(sessions)
    for session in sessions:
        print_now(session.name)


def _as_exit(message: str, code: int) -> Exit:
    return Exit(fit_screen(message, sys.stderr), code=code)


def layout() -> Layout:
    """Return the folders of this checkout."""
    return Layout.of_checkout(CHECKOUT)


def marked_layout() -> Layout:
    """Return the folders of this checkout, for a task that writes state: it is the user's now."""
    folders = layout()
    mark_home(folders)
    return folders


def load_facts() -> "Facts":
    """Return the facts. Files with mistakes are left out, with a warning on standard error."""
    from torchmill.config import facts_reader

    facts = facts_reader.load_facts(CHECKOUT)
    for file in facts.left_out:
        sys.stderr.write(as_plain_text(f"warning: {file.warning}\n"))
    return facts


def build_options(task: str, values: Mapping[str, Any]) -> "Options":
    """Return the options of sessions that a task was given. Raises ConfigError for bad values."""
    from torchmill.plan.options import options_of_task

    return options_of_task(task, values)


def show(output: object, *, json: bool = False, folded: bool = True) -> None:
    """Print the output of a command, and end as it says: it may fail, or have an exit code.

    `json` prints its data. Text is folded and coloured on a terminal, unless it is that of a file.
    """
    if json and isinstance(output, CommandOutput):
        print_now(dumps(stamp_output(output.data), indent=1))
    else:
        print_now(on_terminal(str(output)) if folded else output)
    if isinstance(output, CommandOutput):
        output.require()
        if output.exit_code:
            raise Exit(code=output.exit_code)


def on_terminal(text: str) -> str:
    """Return a text as a terminal shows it best: folded, verdicts and marks in colour."""
    return colour_words(fit_screen(text)) if sys.stdout.isatty() else text

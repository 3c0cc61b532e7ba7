"""The command line of `invoke`: the class of the suite's tasks, and the answers to slips.

Invoke's decorator takes a class of tasks, `klass` in
https://docs.pyinvoke.org/en/stable/api/tasks.html. The class `SuiteTask` adds:

- an argument that may be left out, or given without its name, once or several times;
- options of sessions, such as --jobs, that several tasks share;
- help that is read only if the task is named, so that `invoke --list` reads none;
- an error as one message with its own exit code.

Invoke loads tasks.py before it parses the words of the command line that name tasks and their
options. At the end of tasks.py, `answer_first` parses these words with invoke's own parser. It
lists the tasks by stage, and answers a slip (a mistake in the command line) with the nearest word
and the command for help.
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
from torchmill.core.console import colour_words, fold_text, format_for_user
from torchmill.core.errors import ConfigError, did_you_mean
from torchmill.core.exits import exit_with_error, print_now
from torchmill.core.formats import stamp_output
from torchmill.core.homes import mark_home, require_untracked_state
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import name_programs
from torchmill.core.task_lines import TASK_LINES, list_tasks

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
    "secure",
    "debug_info",
    "plat",
)
# `invoke bisect` gives its wheels a label of its own, and keeps none of them.
BISECT_OPTIONS = tuple(name for name in BUILD_OPTIONS if name not in {"label", "debug_info"})
_REPEATED_BUILD_OPTIONS = {"set_", "patch"}
# Options whose value may be left out: `--debug-info` is `--debug-info=full`. With a value, they are
# one word, because the next word may be an argument: `--debug-info vision-3.12-cpu`.
_VALUE_OPTIONAL = {"debug_info"}
# A short form means the same in every task. -h is help; invoke's own options have other letters.
_SHORT_FORMS = {"json": "j", "tag": "t", "yes": "y"}
_HELP_FLAGS = {"--help", "-h"}
# A shell completes the argument of these: it names a build.
_TASKS_OF_BUILDS = {"bisect", "build", "cluster", "doctor", "explain", "jobs", "plan", "shards"}
# Modules of the programs that run tasks: `invoke` and the installed `torchmill`. If neither is
# loaded, a test has imported tasks.py, and the command line of the process is not invoke's.
_RUNNERS = {"invoke.main", "torchmill_suite"}


class CommandLine(NamedTuple):
    """The words of a command line of invoke."""

    words: Sequence[str]  # up to --, with the program's name
    rest: Sequence[str]  # after --, which invoke would join to one string
    completes: bool  # a shell asks for completions


def read_command_line(argv: Sequence[str]) -> CommandLine:
    """Return the words of a command line; `argv` is `sys.argv`."""
    if ("--complete", "--") in pairwise(argv):
        # A shell asks for completions: invoke's scripts call `invoke --complete -- LINE`. Without
        # the "--" it would be the option --complete of `invoke toolkit`.
        return CommandLine(argv, [], completes=True)
    words = list(argv)
    if "--" not in words:
        return CommandLine(words, [], completes=False)
    end = words.index("--")
    return CommandLine(words[:end], words[end + 1 :], completes=False)


COMMAND_LINE = read_command_line(sys.argv)


class SuiteTask(Task[Any]):
    """A task of tasks.py; `body` is the decorated function.

    - `argument` is the option that may also be given without its name: `invoke explain BUILD` means
      `invoke explain --identifier BUILD`. It is required if the body has no default for it.
    - `options` are the options of sessions that the body takes as `**options`.
    - `takes_rest` allows words after `--`.
    - `watched`: if the task is killed, the processes that it started are ended.
    - `iterable` are the options that may be given several times.
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
        super().__init__(
            body,
            positional=(),
            auto_shortflags=False,
            iterable=repeated,
            optional=_VALUE_OPTIONAL.intersection(options),
            **settings,
        )
        self.argument = argument
        self.options = options
        self.takes_rest = takes_rest
        self.watched = watched

    def argspec(self, body: Callable[..., None]) -> inspect.Signature:
        """Return the body's parameters, with the options of sessions in the place of `**options`.

        Invoke makes an option of each.
        """
        parameters = []
        for parameter in super().argspec(body).parameters.values():
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                parameters.append(parameter)
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        for name in self.options:
            parameters.append(inspect.Parameter(name, keyword_only, default=None))
        return inspect.Signature(parameters)

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        """Return the settings from which invoke makes the `Argument` of a parameter.

        Invoke calls this for each parameter; here the short form of the option is added.
        """
        settings = super().arg_opts(name, default, taken_names)
        if name in _SHORT_FORMS:
            settings["names"].append(_SHORT_FORMS[name])
        return settings

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the options, for invoke's parser; none if the command line does not name the task.

        Invoke asks each task for its options, and those of the others would cost start-up time.
        Raises ConfigError for an option that is given twice, or without its value.
        """
        if self.name not in COMMAND_LINE.words:
            return []
        self.__doc__ = _docstring(self.body)
        self.help = _option_meanings(self)
        arguments: list[Argument] = super().get_arguments(ignore_unknown_help)
        switches = {*_HELP_FLAGS}
        for argument in arguments:
            if not argument.takes_value or argument.optional:
                switches.update(map(to_flag, argument.names))
        if not COMMAND_LINE.completes:
            _refuse_slips(self.name, arguments, COMMAND_LINE.words, switches)
        if not self.argument:
            return arguments
        return [self._as_positional(argument, switches) for argument in arguments]

    def _as_positional(self, argument: Argument, switches: Container[str]) -> Argument:
        """Return an argument as it is parsed: `self.argument` may be given without its name.

        A positional argument of invoke takes a word without a name, and invoke refuses a task
        whose positional argument is missing. So it is positional only if there is such a word, or
        if the task requires it.
        """
        if argument.name != self.argument:
            return argument
        words = words_of_task(self.name, COMMAND_LINE.words, switches)
        unnamed_count = count_unnamed(words, switches)
        if argument.kind is list:
            if unnamed_count == 0:
                return argument
            flags = {to_flag(name) for name in argument.names}
            named_values = [word for word in words if word.partition("=")[0] in flags]
            return WordsArgument(argument, unnamed_count + len(named_values))
        parameter = inspect.signature(self.body).parameters[self.argument]
        required = parameter.default is inspect.Parameter.empty
        # Invoke would take -h for the value of an argument that is still missing.
        asks_for_help = not _HELP_FLAGS.isdisjoint(COMMAND_LINE.words)
        argument.positional = unnamed_count > 0 or (required and not asks_for_help)
        return argument

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task; any error ends invoke with one message and an exit code."""
        as_json = bool(kwargs.get("json"))
        return exit_with_error(self._run, _as_exit, as_json=as_json)(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> None:
        """Run the body. Raises ConfigError for words after `--` that the task does not take."""
        if self.watched:
            from torchmill.core import reaper

            reaper.watch_run()
        if COMMAND_LINE.rest and not self.takes_rest:
            raise ConfigError(
                f"invoke {self.name} takes its options without `--`: leave it out",
                code="words-after-dash",
            )
        super().__call__(*args, **kwargs)


class WordsArgument(Argument):
    """A positional list that takes several words.

    Invoke gives a word without a name to the first positional argument whose value is None
    (`see_positional_arg` in invoke/parser/parser.py), so that a list would take one. This list's
    value stays None until it has `count` words, including those given with its name.
    """

    def __init__(self, argument: Argument, count: int) -> None:
        super().__init__(
            names=argument.names,
            kind=list,
            help=argument.help,
            positional=True,
            attr_name=argument.attr_name,
        )
        self.count = count
        self._values: list[str] = []

    @property
    def value(self) -> Any:
        """Return the values; None if some are still to come."""
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
    """Return invoke's decorator `task` for a `SuiteTask`, which explains the parameters."""
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
    """Return a task's docstring as its help shows it.

    The first line is folded for the terminal, and commands name the programs of this environment.
    """
    first, _, rest = inspect.cleandoc(body.__doc__ or "").partition("\n")
    columns = shutil.get_terminal_size().columns - 2  # invoke indents the docstring by 2
    return name_programs(f"{fold_text(first, columns)}\n{rest}")


def _option_meanings(task: SuiteTask) -> dict[str, str]:
    """Return the help of a task's options, by name.

    From help.toml, except for the options of sessions, which have theirs in plan/options.py.
    """
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
    return _is_option(word) and "=" not in word and word not in switches


def words_of_task(task: str, words: Sequence[str], switches: Container[str]) -> list[str]:
    """Return the words of a command line that belong to a task, its name first.

    They end before the name of the next task, unless that is the value of an option. `switches` are
    the options that take no value.
    """
    if task not in words:
        return [task]
    task_words = [task]
    for previous, word in pairwise(words[words.index(task) :]):
        if word in TASK_LINES and not takes_next(previous, switches):
            break
        task_words.append(word)
    return task_words


def count_unnamed(words: Sequence[str], switches: Container[str]) -> int:
    """Return how many words of a task, after its name, are neither options nor their values."""
    count = 0
    for previous, word in pairwise(words):
        if not _is_option(word) and not takes_next(previous, switches):
            count += 1
    return count


def _is_option(word: str) -> bool:
    """Tell whether a word is an option; "-" stands for standard input."""
    return word.startswith("-") and word != "-"


def _refuse_slips(
    task: str, arguments: Sequence[Argument], words: Sequence[str], switches: Container[str]
) -> None:
    """Raise ConfigError for an option that is given twice, or without its value.

    Invoke's own messages do not name the problem. An empty value counts as missing:
    `--sign-key "$KEY"` must not publish unsigned wheels if there is no such variable.
    """
    options = {}
    for argument in arguments:
        options.update({to_flag(name): argument for name in argument.names})
    task_words = words_of_task(task, words, switches)[1:]
    flags = [word.partition("=")[0] for word in task_words]
    no_values = {"", *_HELP_FLAGS, *options}
    for word, next_word in pairwise([*task_words, ""]):
        flag, equals, value = word.partition("=")
        option = options.get(flag)
        if option is None or not option.takes_value:
            continue
        if not value and (equals or (next_word in no_values and not option.optional)):
            raise ConfigError(f"invoke {task}: {flag} needs a value", code="option-without-value")
        if option.kind is not list and flags.count(flag) > 1:
            raise ConfigError(
                f"invoke {task}: {flag} is given twice: give it once", code="contradictory-options"
            )


def answer_first(tasks: Collection) -> None:
    """Answer a command line that asks for the list of tasks, for completions, or has a slip.

    Is called before invoke parses the words of tasks, because invoke's own answers would say less.
    Raises Exit, with which invoke ends, after the list of tasks; with exit code 2 for a slip. Does
    nothing if tasks.py is imported without invoke, as by a test.
    """
    if not _RUNNERS.isdisjoint(sys.modules):
        exit_with_error(answer_words, _as_exit)(tasks, COMMAND_LINE)


def answer_words(tasks: Collection, line: CommandLine) -> None:
    """Answer a command line as `answer_first` does. Raises ConfigError for a slip."""
    require_untracked_state(layout().root)
    if line.completes:
        _complete_builds(line.words[line.words.index("--complete") + 1 :])
        return
    # As invoke does: its own options first ("core"), then the tasks with theirs.
    core = Program().initial_context
    parsed = Parser(initial=core, ignore_unknown=True).parse_argv(list(line.words[1:]))
    if _asks_for_list(parsed[0].args, parsed.unparsed):
        print_now(on_terminal(list_tasks()))
        raise Exit
    try:
        Parser(initial=core, contexts=tasks.to_contexts()).parse_argv(parsed.unparsed)
    except ParseError as error:
        raise ConfigError(_explain_slip(tasks, error), code="invalid-option") from None


def _asks_for_list(core: Mapping[str, Argument], task_words: Sequence[str]) -> bool:
    """Tell whether invoke's own options ask for the list of all tasks, or no task is named.

    Other lists, such as those of --list-format=json and `--list NAMESPACE`, are left to invoke.
    """
    if not core["list"].value:
        return not task_words and not core["help"].value
    lists_all = core["list"].value is True
    return lists_all and core["list-format"].value == "flat" and not core["list-depth"].value


def _explain_slip(tasks: Collection, error: ParseError) -> str:
    """Return a message about a slip: the problem, the nearest word, and the command for help."""
    # Invoke raises this one without the task in which it happened (check_ambiguity in its parser).
    ambiguous = re.fullmatch(r"'(.*)' is ambiguous when given after an opt.*", str(error))
    if ambiguous:
        flag = "--debug-info"  # the only one of _VALUE_OPTIONAL
        return f"{ambiguous[1]} after {flag} may be its value: write {flag}=VALUE, or {flag} at the end"
    task = error.context.name if error.context else None
    if task is None:
        slip = _explain_unknown_word(error)
        return f"{slip} (`invoke --list` shows the tasks)"
    slip = _explain_slip_of_task(tasks[task], error)
    return f"invoke {task}: {slip} (`invoke {task} -h` is its help)"


def _explain_slip_of_task(task: SuiteTask, error: ParseError) -> str:
    """Return the problem that invoke's parser has with the words of a task.

    Invoke has one class of errors for all problems, so they are told apart by their messages (in
    invoke/parser/parser.py). An unknown message is returned as it is.
    """
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
    """Return the problem of a word before any task, with the nearest task."""
    unknown = re.fullmatch(r"No idea what '(.*)' is!", str(error))
    if not unknown:
        return str(error)
    word = unknown[1]
    kind = "option" if word.startswith("-") else "task"
    hint = did_you_mean(word, TASK_LINES)
    # The name of a build, such as "wheel-3.10-cpu", without the task.
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
    """Return the exception with which invoke ends: it prints the message on standard error."""
    return Exit(format_for_user(message, sys.stderr), code=code)


def layout() -> Layout:
    """Return the folders of this checkout."""
    return Layout.of_checkout(CHECKOUT)


def marked_layout() -> Layout:
    """Return the folders of this checkout, for a task that writes state; mark it as the user's."""
    folders = layout()
    mark_home(folders)
    return folders


def load_facts() -> "Facts":
    """Return the facts. Files with mistakes are left out, with a warning on standard error."""
    from torchmill.config import remembered_facts

    facts = remembered_facts.load_facts(CHECKOUT)
    for file in facts.left_out:
        sys.stderr.write(as_plain_text(f"warning: {file.warning}\n"))
    return facts


def build_options(task: str, values: Mapping[str, Any]) -> "Options":
    """Return the options of sessions that a task was given. Raises ConfigError for bad values."""
    from torchmill.cell.option_files import options_of_task

    return options_of_task(task, values)


def show(output: object, *, json: bool = False, folded: bool = True) -> None:
    """Print the output of a command, and end with its exit code.

    With `json`, the data of a `CommandOutput` is printed. Text is folded to the width of a terminal
    and coloured there, unless `folded` is False, as for a script or the lines of a file. Raises
    what `output.require` raises, or Exit with an exit code that is not 0.
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
    return colour_words(format_for_user(text)) if sys.stdout.isatty() else text

"""The options of sessions (after `--`) and of tasks that plan a build: parse and check their words.

Paths stay as the user wrote them: `cell/option_files.py` looks at what they name.
`prog` is throughout the command that messages name: "nox -s wheel-3.10-cpu --", "invoke plan". The
text of an option is None if it is not given, and so is then its value. Every refusal is a
ConfigError.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torchmill.core.errors import ConfigError, did_you_mean, parse_option, require_count
from torchmill.core.package_data import read_table_beside
from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import name_programs
from torchmill.core.units import format_bytes, parse_bytes, parse_duration
from torchmill.plan.build_options import NO_OPTIONS, PYPI, SECURE_CHOICES, Options
from torchmill.plan.debug_info import DEBUG_LEVELS, FULL
from torchmill.plan.wheel_name import AUTO_PLATFORM, LABELS, PLATFORM_PATTERN
from torchmill.toolchain.shards import parse_shard

# More is a slip: each job has a thread of its own, and machines have no more processors.
_MOST_JOBS = 4096
_LEAST_MEMORY = 2**20  # bytes; less is a slip, such as a unit that was left out
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # names of variables that every shell can set
# A torch that a user names by its release, as in "torch==2.13.0".
_RELEASE = re.compile(r"(?:torch ?={1,3} ?|v)?(\d+\.\d+(?:\.\d+)?)", re.ASCII)
# Destination of an option with a value -> its help: "cpu" -> "the processor that the wheel is …".
HELP = read_table_beside(__file__, "options.toml")
_REPEATED = ("set_", "patch")  # options that may be given several times
_SWITCHES = ("--network", "--no-guard")  # options without a value
_CPU = "--cpu"
ANY_PROCESSOR = "any"  # the value of --cpu for a wheel that any processor runs


class OptionParser(argparse.ArgumentParser):
    """A parser that raises for errors, and does not end the process: nox and invoke do that.

    `--help` still prints the help and ends the process.
    """

    def __init__(self, prog: str, **settings: Any) -> None:
        # The installed programs are named at once: argparse folds the usage by the name's length.
        super().__init__(prog=name_programs(prog), **settings)

    def format_help(self) -> str:
        """Return the help, whose commands name the programs that are installed."""
        return as_plain_text(super().format_help())

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError for words that are not options."""
        raise ConfigError(
            f"{self.prog}: {message} (`{self.prog} --help` lists the options)",
            code="invalid-option",
        )


def _flag(name: str) -> str:
    """Return the flag of a destination: "--arch-list" for "arch_list", "--set" for "set_"."""
    return f"--{name.strip('_').replace('_', '-')}"


def _make_parser(prog: str) -> OptionParser:
    """Return the parser of all options."""
    # An abbreviation would mean something else as soon as an option like it is added.
    parser = OptionParser(prog=prog, allow_abbrev=False)
    settings: dict[str, dict[str, Any]] = {
        "label": {"choices": LABELS, "default": "official"},
        "patch": {"action": "append", "default": [], "metavar": "FILE"},
        "set_": {"action": "append", "default": [], "metavar": "NAME=VALUE"},
        "debug_info": {"choices": tuple(DEBUG_LEVELS), "nargs": "?", "const": FULL},
        "plat": {"default": AUTO_PLATFORM},
        "secure": {"choices": SECURE_CHOICES, "default": NO_OPTIONS.secure},
    }
    for name, text in HELP.items():
        parser.add_argument(_flag(name), dest=name, help=text, **settings.get(name, {}))
    parser.add_argument(
        "--network", action="store_true", help="let the build itself download things, unrecorded"
    )
    parser.add_argument(
        "--no-guard",
        dest="guard",
        action="store_false",
        help="compile a fixed number of files at a time, without the memory guard",
    )
    return parser


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The paths in the words of options, as the user wrote them."""

    torch: str | None = None  # of a wheel or a folder; None: none is named, or PyPI
    parts: str | None = None  # of the folder of the objects of shares
    patches: tuple[str, ...] = ()  # of patches, and of folders of patches


def parse_words(
    arguments: Sequence[str], prog: str, environ: Mapping[str, str]
) -> tuple[Options, NamedFiles]:
    """Return the options in the words of a command line, and the files that they name.

    The options are complete but for these files. With `--shard auto`, `environ` tells the share.
    Raises ConfigError for a word that is not an option, and for a value that makes no sense.
    """
    parser = _make_parser(prog)
    parsed, unknown = parser.parse_known_args(arguments)
    if unknown:
        word = unknown[0].partition("=")[0]
        suggestion = did_you_mean(word, [*map(_flag, HELP), *_SWITCHES])
        parser.error(f"there is no option {word}{suggestion}")
    _refuse_repetitions(arguments, prog)
    settings = _parse_settings(parsed.set_, prog)
    memory = _parse_memory(parsed.memory, prog)
    if not PLATFORM_PATTERN.fullmatch(parsed.plat):
        raise ConfigError(
            f"{prog}: --plat '{parsed.plat}': choose auto, linux, or a Linux tag such as "
            "manylinux_2_28",
            code="invalid-platform",
        )
    jobs = parsed.jobs
    if jobs is not None:
        jobs = require_count(f"{prog}: --jobs", jobs, 1, _MOST_JOBS, "invalid-option")
    is_pypi = parsed.torch is not None and parsed.torch.casefold() == PYPI.casefold()
    options = Options(
        label=parsed.label,
        settings=settings,
        arch_list=parsed.arch_list,
        jobs=jobs,
        memory=memory,
        torch=PYPI if is_pypi else None,
        toolkit=parsed.toolkit,
        platform=parsed.plat,
        guard=parsed.guard,
        network=parsed.network,
        secure=parsed.secure,
        cpu=_parse_processor(parsed.cpu, prog),
        debug_info=parsed.debug_info,
        shard=_parse_shard(parsed.shard, parsed.parts, prog, environ),
        until=_parse_until(parsed.until, prog),
    )
    files = NamedFiles(
        torch=None if is_pypi else parsed.torch, parts=parsed.parts, patches=tuple(parsed.patch)
    )
    return options, files


def split_processors(arguments: Sequence[str], prog: str) -> list[list[str]]:
    """Return the words of a session for each processor in a list: --cpu any,x86-64-v3,x86-64-v4.

    Without such a list, these are the words as they are. Raises ConfigError for a list with an
    empty name, or with one twice.
    """
    words = list(arguments)
    for position, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag != _CPU:
            continue
        end = position + 1
        if not equals and end < len(words):
            value = words[end]
            end += 1
        names = [name.strip() for name in value.split(",")]
        if len(names) == 1:
            break
        if not all(names) or len(set(names)) < len(names):
            raise ConfigError(
                f"{prog}: {_CPU} {value}: name each processor once, as in "
                f"{ANY_PROCESSOR},x86-64-v3,x86-64-v4",
                code="invalid-option",
            )
        return [[*words[:position], f"{_CPU}={name}", *words[end:]] for name in names]
    return [words]


def _parse_processor(name: str | None, prog: str) -> str | None:
    """Return the processor that --cpu names; None for any. Raises ConfigError for a list."""
    if name is not None and "," in name:
        raise ConfigError(
            f"{prog}: {_CPU} {name}: only the session of a wheel makes one for each of several "
            "processors, as `nox -s wheel-3.12-cpu -- --cpu any,x86-64-v3`: name one",
            code="invalid-option",
        )
    return None if name == ANY_PROCESSOR else name


def tag_of_torch(torch: str) -> str:
    """Return the tag of the release that a value of `--torch` names: "2.13.0" or "torch==2.13.0".

    Without its last number, "2.13" is 2.13.0. The facts need not have the release. "" if the value
    names something else, such as a wheel.
    """
    match = _RELEASE.fullmatch(torch)
    if match is None:
        return ""
    version = match[1]
    if version.count(".") == 1:
        version += ".0"
    return f"v{version}"


def _refuse_repetitions(arguments: Sequence[str], prog: str) -> None:
    """Raise ConfigError for an option that is given twice: argparse would take the last."""
    repeated = {_flag(name) for name in _REPEATED}
    flags = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    for flag in flags:
        if flags.count(flag) > 1 and flag not in repeated:
            raise ConfigError(
                f"{prog}: {flag} is given twice: give it once", code="contradictory-options"
            )


def _parse_settings(texts: Sequence[str], prog: str) -> dict[str, str]:
    """Return the variables of `--set NAME=VALUE`; one may be repeated with the same value."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise ConfigError(
                f"{prog}: --set '{text}': write it as NAME=VALUE, such as USE_MKLDNN=0",
                code="invalid-setting",
            )
        if settings.setdefault(name, value) != value:
            raise ConfigError(
                f"{prog}: --set {name} is given twice: give it once", code="contradictory-options"
            )
    return settings


def _parse_memory(text: str | None, prog: str) -> int | None:
    """Return the bytes of `--memory`."""
    if text is None:
        return None
    memory = parse_option(f"{prog}: --memory", text, parse_bytes, "invalid-memory")
    if memory < _LEAST_MEMORY:
        raise ConfigError(
            f"{prog}: --memory {text}: no compiler fits into {format_bytes(memory)}; "
            "give a size with its unit, such as '4 GiB'",
            code="invalid-memory",
        )
    return memory


def _parse_shard(
    text: str | None, parts: str | None, prog: str, environ: Mapping[str, str]
) -> str | None:
    """Return the share of `--shard`, "3/16".

    For "auto", the engine that started this process (Slurm, GitLab, …) tells the share in its
    variables. They are asked now, because a container that builds would not see them.
    """
    if text is None:
        return None
    if parts is None:
        raise ConfigError(
            f"{prog}: --shard needs --parts, the folder for what it compiles",
            code="shard-without-parts",
        )
    shard = parse_option(
        f"{prog}: --shard", text, lambda word: parse_shard(word, environ), "invalid-shard"
    )
    return str(shard)


def _parse_until(text: str | None, prog: str) -> float | None:
    """Return the seconds of `--until`, after which a build has to end."""
    if text is None:
        return None
    seconds = parse_option(f"{prog}: --until", text, parse_duration, "invalid-option")
    if not seconds:
        raise ConfigError(
            f"{prog}: --until 0 leaves no time to build: give more, say 5h20m",
            code="invalid-option",
        )
    return seconds


def format_options(options: Options) -> list[str]:
    """Return the words that `parse_words` reads as these options, without the defaults."""
    defaults: dict[str, Any] = {
        "label": NO_OPTIONS.label,
        "plat": NO_OPTIONS.platform,
        "secure": NO_OPTIONS.secure,
    }
    words: list[str] = []
    for name in HELP:
        if name in _REPEATED:
            continue
        # `--plat` is the only option whose field has another name.
        value = getattr(options, "platform" if name == "plat" else name)
        if name == "until" and value is not None:
            # `--until` takes a duration with its unit; all other values are read as they are.
            value = f"{value:.0f}s"
        if value is not None and value != defaults.get(name):
            words.append(f"{_flag(name)}={value}")
    if not options.guard:
        words.append("--no-guard")
    if options.network:
        words.append("--network")
    words += [f"--patch={path}" for path in options.patches.values()]
    words += [f"--set={name}={value}" for name, value in options.settings.items()]
    return words


def words_of_task(values: Mapping[str, str | Sequence[str] | bool | None]) -> list[str]:
    """Return the options of an invoke task as words that `parse_words` takes.

    `values` has the keys of `HELP`. The value of an option that may be repeated is a sequence, that
    of an option without its value True. None stands for an option that is not given.
    """
    words: list[str] = []
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(_flag(name))
            continue
        texts = [value] if isinstance(value, str) else value
        words += [f"{_flag(name)}={text}" for text in texts]
    return words

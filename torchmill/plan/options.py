"""Options of sessions (after `--`) and of `invoke plan`: parsed and checked."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from torchmill.core.errors import ConfigError, did_you_mean, parse_option, require_count
from torchmill.core.lenient_paths import exists
from torchmill.core.package_data import read_table_beside
from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import name_programs
from torchmill.core.units import format_bytes, parse_bytes, parse_duration
from torchmill.plan.build_options import NO_OPTIONS, PYPI, Options
from torchmill.plan.wheel_name import AUTO_PLATFORM, LABELS, PLATFORM_PATTERN
from torchmill.toolchain.shards import parse_shard

_MOST_JOBS = (
    4096  # more is a slip: each has a thread of its own, and machines have no more processors
)
_LEAST_MEMORY = 2**20  # bytes; less is a slip, such as a unit that was left out
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # of a variable that every shell can set
HELP = read_table_beside(__file__, "options.toml")
_REPEATED = ("set_", "patch")


class OptionParser(argparse.ArgumentParser):
    """Raise instead of leaving the process: nox and invoke each end in their own way."""

    def __init__(self, prog: str, **forms: Any) -> None:
        super().__init__(prog=name_programs(prog), **forms)  # by whose length its usage is folded

    def format_help(self) -> str:
        """Return the help, whose commands name the programs that are here."""
        return as_plain_text(super().format_help())

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError for words that are no options."""
        raise ConfigError(
            f"{self.prog}: {message} (`{self.prog} --help` lists the options)",
            code="invalid-option",
        )


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = OptionParser(prog=prog, allow_abbrev=False)
    forms: dict[str, dict[str, Any]] = {
        "label": {"choices": LABELS, "default": "official"},
        "patch": {"action": "append", "default": [], "metavar": "FILE"},
        "set_": {"action": "append", "default": [], "metavar": "NAME=VALUE"},
        "plat": {"default": AUTO_PLATFORM},
    }
    for name, meaning in HELP.items():
        parser.add_argument(_flag(name), dest=name, help=meaning, **forms.get(name, {}))
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


def _flag(name: str) -> str:
    return f"--{name.strip('_').replace('_', '-')}"


def parse_options(arguments: Sequence[str], prog: str) -> Options:
    """Return the options in `arguments`. Raises ConfigError for anything that is no option, or has no sense."""
    parser = _parser(prog)
    found, left = parser.parse_known_args(arguments)
    if left:
        word = left[0].partition("=")[0]
        near = did_you_mean(word, [*map(_flag, HELP), "--network", "--no-guard"])
        parser.error(f"there is no option {word}{near}")
    named = [word.partition("=")[0] for word in arguments if word[:2] == "--"]
    for flag in named:
        if named.count(flag) > 1 and flag not in map(_flag, _REPEATED):
            raise ConfigError(
                f"{prog}: {flag} is given twice: give it once", code="contradictory-options"
            )
    settings: dict[str, str] = {}
    for text in found.set_:
        name, equals, value = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{prog}: --set '{text}': write it as NAME=VALUE, such as USE_MKLDNN=0",
                code="invalid-setting",
            )
        if settings.setdefault(name, value) != value:
            raise ConfigError(
                f"{prog}: --set {name} is given twice: give it once", code="contradictory-options"
            )
    said = found.memory
    memory = (
        None
        if said is None
        else parse_option(f"{prog}: --memory", said, parse_bytes, "invalid-memory")
    )
    if memory is not None and memory < _LEAST_MEMORY:
        raise ConfigError(
            f"{prog}: --memory {found.memory}: no compiler fits into {format_bytes(memory)}; "
            "give a size with its unit, such as '4 GiB'",
            code="invalid-memory",
        )
    if not PLATFORM_PATTERN.fullmatch(found.plat):
        raise ConfigError(
            f"{prog}: --plat '{found.plat}': choose auto, linux, or a Linux tag such as manylinux_2_28",
            code="invalid-platform",
        )
    torch = None if found.torch is None else _given_torch(found.torch, prog)
    jobs = (
        None
        if found.jobs is None
        else require_count(f"{prog}: --jobs", found.jobs, 1, _MOST_JOBS, "invalid-option")
    )
    limits = (found.arch_list, jobs, memory)
    options = Options(
        found.label, settings, *limits, torch, found.toolkit, found.plat, found.guard, found.network
    )
    options = replace(options, cpu=found.cpu, patches=_given_patches(found.patch, prog))
    return replace(options, **_part_of_build(found, prog))


def _part_of_build(found: argparse.Namespace, prog: str) -> dict[str, Any]:
    """Return which part of a build is asked for, and where the others' work is."""
    parts = None if found.parts is None else Path(found.parts).absolute()
    if parts and (not found.parts or (exists(parts) and not parts.is_dir())):
        raise ConfigError(
            f"{prog}: --parts '{found.parts}' is not a folder, and cannot be one",
            code="invalid-parts",
        )
    shard, until = found.shard, found.until
    if shard is not None and parts is None:
        raise ConfigError(
            f"{prog}: --shard needs --parts, the folder for what it compiles",
            code="shard-without-parts",
        )
    if shard is not None:  # what an engine tells is not told in a container
        shard = str(
            parse_option(
                f"{prog}: --shard", shard, lambda one: parse_shard(one, os.environ), "invalid-shard"
            )
        )
    if until is not None:
        until = parse_option(f"{prog}: --until", until, parse_duration, "invalid-option")
        if not until:
            raise ConfigError(
                f"{prog}: --until 0 leaves no time to build: give more, say 5h20m",
                code="invalid-option",
            )
    return {"shard": shard, "parts": str(parts) if parts else None, "until": until}


def format_options(options: Options) -> list[str]:
    """Return the words that `parse_options` reads as these options; defaults are left out."""
    said = {
        name: getattr(options, {"plat": "platform"}.get(name, name))
        for name in HELP
        if name not in _REPEATED
    }
    said["until"] = None if options.until is None else f"{options.until:.0f}s"
    usual = {"label": NO_OPTIONS.label, "plat": NO_OPTIONS.platform}
    words = [
        f"{_flag(name)}={value}"
        for name, value in said.items()
        if value not in {None, usual.get(name)}
    ]
    words += [
        *([] if options.guard else ["--no-guard"]),
        *(["--network"] if options.network else []),
    ]
    words += [f"--patch={path}" for path in options.patches.values()]
    return words + [f"--set={name}={value}" for name, value in options.settings.items()]


def options_of_task(name: str, said: Mapping[str, str | Sequence[str] | None]) -> Options:
    """Return the options that an invoke task was given, by the names of `HELP`; None was not given.

    Raises ConfigError for what has no sense.
    """
    given = {
        each: [value] if isinstance(value, str) else value or () for each, value in said.items()
    }
    words = [f"{_flag(each)}={value}" for each, values in given.items() for value in values]
    return parse_options(words, f"invoke {name}")


def _given_patches(paths: Sequence[str], prog: str) -> dict[str, str]:
    """Return the patches that are named, those of a folder by their names, by what they are called in a plan."""
    found: dict[str, str] = {}
    for text in paths:
        path = Path(text)
        inside = (
            sorted(one for one in path.glob("*") if one.suffix in {".patch", ".diff"})
            if path.is_dir()
            else [path]
        )
        if not inside or not all(one.is_file() for one in inside):
            raise ConfigError(
                f"{prog}: --patch {text}: no such patch, or no .patch in a folder",
                code="no-such-patch",
            )
        for one in inside:
            if found.setdefault(f"given/{one.name}", str(one.resolve())) != str(one.resolve()):
                raise ConfigError(
                    f"{prog}: --patch {text}: two patches are called {one.name}",
                    code="no-such-patch",
                )
    return found


def _given_torch(text: str, prog: str) -> str:
    """Return the wheel, or the folder of what is installed, that is named."""
    path = Path(text)
    if text.casefold() == PYPI.casefold():
        return PYPI
    if not (path.is_file() if path.suffix == ".whl" else path.is_dir()):
        why = "no such wheel or folder; give a .whl file, an environment that torch is installed in, or PyPI"
        raise ConfigError(f"{prog}: --torch {text}: {why}", code="no-such-wheel")
    return str(path.resolve())

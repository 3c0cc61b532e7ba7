"""What a user may say after `--`, and to `invoke plan`: parsed once, checked once."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from torchwright.errors import ConfigError
from torchwright.model import Options
from torchwright.plan import LABELS
from torchwright.quantity import parse_bytes


class _Parser(argparse.ArgumentParser):
    """Raise instead of leaving the process: nox and invoke each end in their own way."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}; `{self.prog} --help` lists the options")


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = _Parser(prog=prog, allow_abbrev=False)
    parser.add_argument(
        "--label",
        choices=LABELS,
        default="official",
        help="local version: official (+cpu, +cu118), git (+git<sha>) or none",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable for the build, such as USE_MKLDNN=0 or CFLAGS=-march=native",
    )
    parser.add_argument("--arch-list", metavar="LIST", help="compute capabilities, such as '8.0;8.6+PTX'")
    parser.add_argument("--jobs", type=_positive, metavar="N", help="compile this many files at a time")
    parser.add_argument("--memory", metavar="SIZE", help="memory the build may use, such as '12 GiB'")
    parser.add_argument(
        "--torch",
        metavar="WHEEL",
        help="build a dependent package against this wheel, or against PyPI's ('PyPI')",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def parse(arguments: Sequence[str], prog: str) -> Options:
    """Return the options in `arguments`.

    Raises ConfigError for anything that is no option, or has no sense.
    """
    found = _parser(prog).parse_args(arguments)
    settings = {}
    for text in found.set:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"{prog}: --set {text}: write it as NAME=VALUE")
        settings[name] = value
    try:
        memory = parse_bytes(found.memory) if found.memory else None
    except ValueError as error:
        raise ConfigError(f"{prog}: --memory: {error}") from None
    return Options(found.label, settings, found.arch_list, found.jobs, memory, _wheel(found.torch, prog))


def _wheel(text: str | None, prog: str) -> str | None:
    if text is None or text.casefold() == "pypi":
        return None if text is None else "PyPI"
    path = Path(text)
    if path.suffix != ".whl" or not path.is_file():
        raise ConfigError(f"{prog}: --torch {text}: there is no such wheel; give a .whl file, or PyPI")
    return str(path.resolve())

"""The options of sessions and tasks, with the files and folders that they name.

`plan/options.py` parses the words without a look at the disk. Here each path is looked up, so that
the options have all that a decision needs to know about it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torchmill.core.errors import ConfigError
from torchmill.core.lenient_paths import exists
from torchmill.host.installed_packages import find_installed
from torchmill.plan.build_options import Options
from torchmill.plan.options import parse_words, tag_of_torch, words_of_task

_BASE = "torch"  # the package that --torch names
_PATCHES = {".patch", ".diff"}  # suffixes of the files that a folder of patches stands for


def parse_options(arguments: Sequence[str], prog: str) -> Options:
    """Return the options in the words of a command line, with the paths that they name.

    `prog` is the command that messages name. With `--help` among the words, the program prints the
    help of all options and ends. Raises ConfigError for a word that is not an option, for a value
    that makes no sense, and for a path that does not exist.
    """
    # The variables of the engine that started this process are needed for `--shard auto`.
    options, files = parse_words(arguments, prog, os.environ)
    if files.torch is not None:
        options = _with_torch(options, files.torch, prog)
    patches = _find_patches(files.patches, prog)
    return replace(options, patches=patches, parts=_locate_parts(files.parts, prog))


def options_of_task(task: str, values: Mapping[str, str | Sequence[str] | bool | None]) -> Options:
    """Return the options of an invoke task; `values` has the keys of `HELP`.

    The value of an option that may be repeated is a sequence, that of an option without its value
    True. None stands for an option that is not given. Raises ConfigError as `parse_options` does.
    """
    return parse_options(words_of_task(values), f"invoke {task}")


def _with_torch(options: Options, text: str, prog: str) -> Options:
    """Return options with the wheel or the folder that `--torch` names."""
    path = Path(text)
    is_valid = path.is_file() if path.suffix == ".whl" else path.is_dir()
    if not is_valid:
        tag = tag_of_torch(text)
        by_release = f"; for the release on PyPI: --torch PyPI --tag {tag}" if tag else ""
        raise ConfigError(
            f"{prog}: --torch {text}: no such wheel or folder; give a .whl file, an environment "
            f"that torch is installed in, or PyPI{by_release}",
            code="no-such-wheel",
        )
    options = replace(options, torch=str(path.resolve()))
    if options.torch_folder is None:
        return options
    return replace(options, torch_installed=find_installed(_BASE, options.torch_folder))


def _find_patches(paths: Sequence[str], prog: str) -> dict[str, str]:
    """Return the paths of the user's patches by their names in a plan, "given/fix.patch".

    A folder stands for the patches in it, in the order of their names.
    """
    patches: dict[str, str] = {}
    for text in paths:
        path = Path(text)
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.glob("*") if file.suffix in _PATCHES)
        if not files or not all(file.is_file() for file in files):
            raise ConfigError(
                f"{prog}: --patch {text}: no such patch, or no .patch in a folder",
                code="no-such-patch",
            )
        for file in files:
            # "given/" keeps the names apart from those of the patches in build_configs/.
            resolved = str(file.resolve())
            if patches.setdefault(f"given/{file.name}", resolved) != resolved:
                raise ConfigError(
                    f"{prog}: --patch {text}: two patches are called {file.name}",
                    code="no-such-patch",
                )
    return patches


def _locate_parts(text: str | None, prog: str) -> str | None:
    """Return the absolute path of `--parts`, which is a folder or can become one."""
    if text is None:
        return None
    path = Path(text).absolute()
    if not text or (exists(path) and not path.is_dir()):
        raise ConfigError(
            f"{prog}: --parts '{text}' is not a folder, and cannot be one", code="invalid-parts"
        )
    return str(path)

"""Write the commands of a cure in the words of the machine's installer and shell.

Cures are written for pip and a POSIX shell. `pip install` is `uv pip install` for users of uv, and
`NAME=VALUE command` is no command on Windows. The options of a session (`-- --set NAME=VALUE`) are
variables for builds of other tools: torch's own build reads them from the environment.
"""

import re
from collections.abc import Callable, Mapping

_COMMAND = re.compile(r"`([^`]+)`")
# Subcommands that uv has as well: https://docs.astral.sh/uv/pip/compatibility/
_PIP = re.compile(
    r"(?<![\w-])(?<!uv )(?:python3? -m )?pip (?=(?:install|uninstall|list|show|check)\b)"
)
# Options that uv does not know.
_ONLY_PIP = re.compile(r"--(?:ignore-installed|timeout|resume-retries)|'?\bpip\b'?(?:[<>=]| *$)")
_INSTALLERS = {"uv": "uv pip ", "poetry": "poetry run pip "}
_ASSIGNMENTS = re.compile(
    r"^(?P<variables>(?:[A-Z][A-Za-z0-9_]*=(?:'[^']*'|\S*) +)+)(?P<rest>\S.*)$"
)
_EXPORT = re.compile(r"^export (?P<variables>(?:[A-Z]\w*=(?:'[^']*'|\S*) *)+)$")
_UNSET = re.compile(r"^unset (?P<names>(?:[A-Za-z_]\w* *)+)$")
_REMOVE = re.compile(r"^rm -rf? (?P<names>.+)$")
# Folders and variables that Windows does not have: commands that name them are for other systems.
_POSIX_ONLY = re.compile(r"[$]|/(?:usr|opt|etc|tmp)/")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Z]\w*)=(?P<value>'[^']*'|\S*)")
# Options of a session of torchmill, for which a build by another tool reads variables.
_SUBMODULES = "git submodule sync --recursive && git submodule update --init --recursive"
_SET_OPTION = re.compile(r"^-- --set (?P<assignment>[A-Z]\w*=(?:'[^']*'|\S*))$")
_ARCH_OPTION = re.compile(r"^-- --arch-list (?P<value>'[^']*'|\S+)$")
_SESSION = re.compile(r"^(?P<variables>(?:[A-Z]\w*=(?:'[^']*'|\S*) +)+)nox -s SESSION$")


def adapt_commands(text: str, values: Mapping[str, str]) -> str:
    """Return a text whose commands in backticks are those of this machine.

    `values` are the values of facts by their names. Without "installer", commands of pip stay as
    they are; without "system", those of a POSIX shell. "shell" chooses PowerShell on Windows, else
    it is cmd. Without "suite", the build is not one of torchmill: options of its sessions become
    variables.
    """

    def adapt(match: re.Match[str]) -> str:
        # An empty fact leaves two blanks.
        command = re.sub(r" {2,}", " ", match[1]).strip()
        if values.get("suite") is None:
            command = _without_session(command)
        command = _for_installer(command, values.get("installer", ""))
        if values.get("system") == "windows":
            command = _for_windows(command, values.get("shell", ""))
        return f"`{command}`"

    return _COMMAND.sub(adapt, text)


def _for_installer(command: str, installer: str) -> str:
    """Return a command of pip as one of the installer that is used."""
    words = _INSTALLERS.get(installer)
    if words is None or command.startswith(("uv ", "poetry ")) or _ONLY_PIP.search(command):
        return command
    return _PIP.sub(words, command)


def _without_session(command: str) -> str:
    """Return a cure for a session of torchmill as one for a build by other tools.

    Options of the session become variables. Other commands stay as they are.
    """
    if command == "invoke fetch --tag TAG":
        return _SUBMODULES
    option = _SET_OPTION.match(command)
    if option:
        return f"export {option['assignment']}"
    arch_list = _ARCH_OPTION.match(command)
    if arch_list:
        return f"export TORCH_CUDA_ARCH_LIST={arch_list['value']}"
    session = _SESSION.match(command)
    if session:
        return f"export {session['variables'].strip()}"
    return command


def _for_windows(command: str, shell: str) -> str:
    """Return a command of a POSIX shell as one of cmd, or of PowerShell.

    A command with variables or folders that Windows does not have stays as it is.
    """
    if _POSIX_ONLY.search(command):
        return command
    is_powershell = shell == "PowerShell"
    write = _powershell_step if is_powershell else _cmd_step
    steps = [write(step) for step in command.split(" && ")]
    # Windows PowerShell, which every Windows has, does not know "&&".
    return ("; " if is_powershell else " && ").join(steps)


def _cmd_step(step: str) -> str:
    """Return a step of a POSIX shell in the words of cmd, whose quotes are double ones."""

    def assign(name: str, value: str) -> str:
        return f'set "{name}={value}"'

    def remove(names: str) -> str:
        return f"rmdir /s /q {names}"

    rewritten = _rewrite_step(step, assign, remove, " && ")
    if rewritten.startswith(("python -c", "python3 -c")):
        return _double_quotes(rewritten)
    return rewritten.replace("'", '"')


def _double_quotes(step: str) -> str:
    """Return `python -c '…'` with double quotes around the program, and single ones in it."""
    head, _, rest = step.partition("'")
    program, _, tail = rest.rpartition("'")
    inner = program.replace('"', "'")
    return f'{head}"{inner}"{tail}' if program else step


def _powershell_step(step: str) -> str:
    """Return a step of a POSIX shell in the words of PowerShell."""

    def assign(name: str, value: str) -> str:
        return f"$env:{name}='{value}'"

    def remove(names: str) -> str:
        return f"Remove-Item -Recurse -Force {', '.join(names.split())}"

    return _rewrite_step(step, assign, remove, "; ")


def _rewrite_step(
    step: str,
    assign: Callable[[str, str], str],
    remove: Callable[[str], str],
    separator: str,
) -> str:
    """Return a step in the words of another shell, if it sets or unsets variables or removes folders.

    Any other step stays as it is. `assign` is given "" for a variable that is unset.
    """
    unset = _UNSET.match(step)
    if unset:
        return separator.join(assign(name, "") for name in unset["names"].split())
    removed = _REMOVE.match(step)
    if removed:
        return remove(removed["names"])
    export = _EXPORT.match(step)
    prefixed = _ASSIGNMENTS.match(step)
    assignments = export or prefixed
    if not assignments:
        return step
    parts = [
        assign(match["name"], match["value"].strip("'"))
        for match in _ASSIGNMENT.finditer(assignments["variables"])
    ]
    if prefixed and not export:
        parts.append(prefixed["rest"])
    return separator.join(parts)

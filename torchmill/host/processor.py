"""The processor that a build is for (--cpu): its flags, and the features that a machine needs."""

import os
import re
from collections.abc import Collection, Mapping, Sequence

from torchmill.config.build import Processor
from torchmill.config.facts import Facts
from torchmill.core.errors import ConfigError, HostError, did_you_mean
from torchmill.core.package_data import read_table_beside
from torchmill.core.process import CommandError, ask, why_failed
from torchmill.host.compilers import command_words
from torchmill.host.host import Compiler, Host

NATIVE = "native"
# Output of gcc and of clang for a name that they do not know.
_VALID = re.compile(r"valid (?:arguments to .*|target CPU values) are: (.+)")
_SWITCH = re.compile(r"^\s*-m(\S+)\s+\[(enabled|disabled)\]$", re.MULTILINE)
_TABLE = read_table_beside(__file__, "processors.toml")
_EMPTY_SOURCE = ("-x", "c++", os.devnull)
_SUGGESTIONS = 3  # names that a message suggests


def resolve_processor(
    facts: Facts, arch: str, host: Host, cpu: str | None, settings: Mapping[str, str]
) -> Processor | None:
    """Return the processor that the compiler of this machine understands by a name, `cpu`.

    None if `cpu` is None; for an arch whose compilers take no such name, which the plan refuses;
    and for another arch than this machine's, because its build asks the compiler in its container.
    Raises ConfigError for a name that the compiler does not know, with the nearest names, and for a
    compiler other than gcc and clang.
    """
    option = facts.arches[arch].cpu_option
    flag = facts.arches[arch].processor_flag(cpu or "")
    if cpu is None or not flag or arch != host.arch:
        return None
    cxx = settings.get("CXX", "")
    compiler = host.compilers.of_command(cxx)
    if compiler is None or compiler.family not in {"gcc", "clang"}:
        raise ConfigError(
            f"--cpu {cpu}: it works only with gcc and clang on Linux, and the compiler is "
            f"{compiler or 'none that is known'}: omit --cpu, or set CXX",
            code="processor-not-told",
        )
    command = cxx or host.programs.paths.get("c++", "c++")
    words = command_words({"CXX": command}, "CXX")
    variables = {**os.environ, "LC_ALL": "C"}
    try:
        # With -dM, the preprocessor prints the predefined macros, which tell the features.
        macros = ask([*words, flag, "-dM", "-E", *_EMPTY_SOURCE], variables)
    except (CommandError, HostError) as error:
        output = str(getattr(error, "output", error))
        raise _unknown_processor(cpu, compiler, output) from None
    name = cpu
    flags = [flag]
    if cpu == NATIVE:
        name, flags = _resolve_native(words, option, variables)
    spellings = facts.arches[arch].cpu_wants.get(name.removeprefix(f"{NATIVE}."), ())
    flags.extend(_first_accepted(words, spellings, variables))
    needs = set()
    for macro, feature in facts.arches[arch].features.items():
        if f"#define {macro} " in macros:
            needs.add(feature)
    return Processor(name, tuple(flags), tuple(sorted(needs)))


def _first_accepted(
    words: Sequence[str], spellings: Sequence[str], variables: Mapping[str, str]
) -> list[str]:
    """Return the first of some flags that a compiler and its assembler accept, or []."""
    for flag in spellings:
        trial = [*words, flag, "-c", *_EMPTY_SOURCE, "-o", os.devnull]
        if why_failed(trial, variables) is None:
            return [flag]
    return []


def _resolve_native(
    words: Sequence[str], option: str, variables: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return the name of this machine's processor, and flags that mean it on any machine.

    -march=native would mean the machine that compiles. gcc prints the name behind it, and the
    switches by which this processor differs from others of that name. clang does not: then the
    result is "native", with the flag for it.
    """

    def describe(name: str) -> str:
        return ask([*words, f"{option}={name}", "-Q", "--help=target"], variables)

    try:
        native = describe(NATIVE)
        name = re.findall(rf"^\s*{option}=\s+(\S+)$", native, re.MULTILINE)[0]
        usual = set(_SWITCH.findall(describe(name)))
    except (CommandError, HostError, IndexError):
        return NATIVE, [f"{option}={NATIVE}"]
    flags = [f"{option}={name}"]
    for switch, state in _SWITCH.findall(native):
        if (switch, state) not in usual:
            flags.append(f"-m{switch}" if state == "enabled" else f"-mno-{switch}")
    return f"{NATIVE}.{name}", flags


def _unknown_processor(name: str, compiler: Compiler, output: str) -> ConfigError:
    """Return the error for a name that a compiler refused with some output."""
    names: list[str] = []
    for listed in _VALID.findall(output):
        # clang ends its list with another sentence.
        names.extend(re.split(r"[,\s]+", listed.partition(";")[0]))
    hint = did_you_mean(name, [*names, NATIVE], _SUGGESTIONS)
    if not hint and names:
        hint = f"; it knows {', '.join(names)}"
    return ConfigError(
        f"--cpu {name}: {compiler} knows no such processor{hint}", code="unknown-processor"
    )


def known_processors(arch: str) -> dict[str, tuple[str, ...]]:
    """Return the features that compilers assume each processor to have, by its name.

    () for a processor of which they were not recorded.
    """
    processors: dict[str, tuple[str, ...]] = {NATIVE: ()}
    for name in _TABLE["unread"].get(arch, "").split():
        processors[name] = ()
    for names, features in _TABLE["needs"].get(arch, {}).items():
        for name in names.split():
            processors[name] = tuple(features.split())
    return processors


def processor_needs(arch: str, name: str) -> tuple[str, ...]:
    """Return the features that compilers assume a processor to have.

    () for a name with changes, "neoverse-v1+nosve".
    """
    return known_processors(arch).get(name, ())


def unknown_name_hint(arch: str, name: str) -> str | None:
    """Return a hint with near names for an unknown name of a processor; "" if there are none.

    None for a known name, and for an arch of which no names are recorded.
    """
    known = known_processors(arch)
    is_known = name.startswith(f"{NATIVE}.") or name.partition("+")[0] in known
    if is_known or arch not in _TABLE["needs"]:
        return None
    return did_you_mean(name, known, _SUGGESTIONS)


def processor_problems(needs: Collection[str], flags: Collection[str]) -> tuple[str, ...]:
    """Return why a processor with some features (`flags`) cannot run a build; () if it can.

    () also without `flags`, as the features are unknown then.
    """
    missing = sorted(set(needs) - set(flags)) if flags else []
    if not missing:
        return ()
    return (f"this machine's processor has no {', '.join(missing)}",)

"""The processor that a build is for: what its name means to the compiler, and what it demands of a machine."""

import os
import re
from collections.abc import Collection, Mapping, Sequence

from torchmill.config.build import Processor
from torchmill.config.facts import Facts
from torchmill.core.errors import ConfigError, HostError, did_you_mean
from torchmill.core.package_data import read_table_beside
from torchmill.core.process import CommandError, ask, why_failed
from torchmill.host.host import Compiler, Host
from torchmill.host.programs import command_words

NATIVE = "native"
_VALID = re.compile(r"valid (?:arguments to .*|target CPU values) are: (.+)")
_SWITCH = re.compile(r"^\s*-m(\S+)\s+\[(enabled|disabled)\]$", re.MULTILINE)
_TABLE = read_table_beside(__file__, "processors.toml")
_QUIET = ("-E", "-x", "c++", os.devnull)


def resolve_processor(
    facts: Facts, arch: str, host: Host, cpu: str | None, settings: Mapping[str, str]
) -> Processor | None:
    """Return the processor that the compiler of this machine makes of a name; None without one.

    Raises ConfigError for a name that the compiler does not know, with the nearest that it does.
    """
    option = facts.arches[arch].cpu_option  # without one the plan refuses the name
    if cpu is None or not option or arch != host.arch:  # in a container its own session asks
        return None
    named = settings.get("CXX", "")
    compiler, command = (
        host.compilers.of_command(named),
        named or host.programs.paths.get("c++", "c++"),
    )
    if compiler is None or compiler.family not in {"gcc", "clang"}:
        raise ConfigError(
            f"--cpu {cpu}: it works only with gcc and clang on Linux, and the compiler is "
            f"{compiler or 'none that is known'}: omit --cpu, or set CXX",
            code="processor-not-told",
        )
    words, variables = command_words({"CXX": command}, "CXX"), {**os.environ, "LC_ALL": "C"}
    try:
        macros = ask([*words, f"{option}={cpu}", "-dM", *_QUIET], variables)
    except (CommandError, HostError) as error:
        raise _unknown_processor(cpu, compiler, str(getattr(error, "output", error))) from None
    name, flags = cpu, [f"{option}={cpu}"]
    if cpu == NATIVE:
        name, flags = _resolve_native(words, option, variables)
    spellings = facts.arches[arch].cpu_wants.get(name.removeprefix(f"{NATIVE}."), ())
    trial = (
        "-c",
        "-x",
        "c++",
        os.devnull,
        "-o",
        os.devnull,
    )  # fails where the compiler or its assembler is older
    flags += [each for each in spellings if why_failed([*words, each, *trial], variables) is None][
        :1
    ]
    features = facts.arches[arch].features
    needs = sorted({flag for macro, flag in features.items() if f"#define {macro} " in macros})
    return Processor(name, tuple(flags), tuple(needs))


def _resolve_native(
    words: Sequence[str], option: str, variables: Mapping[str, str]
) -> tuple[str, list[str]]:
    """Return what this machine's processor is called, and flags that mean it elsewhere; clang does not tell."""

    def settings(name: str) -> str:
        return ask([*words, f"{option}={name}", "-Q", "--help=target"], variables)

    try:
        here = settings(NATIVE)
        name = re.findall(rf"^\s*{option}=\s+(\S+)$", here, re.MULTILINE)[0]
        usual = set(_SWITCH.findall(settings(name)))
    except (CommandError, HostError, IndexError):
        return NATIVE, [f"{option}={NATIVE}"]
    unusual = [each for each in _SWITCH.findall(here) if each not in usual]
    return f"{NATIVE}.{name}", [
        f"{option}={name}",
        *(f"-m{'no-' * (on != 'enabled')}{each}" for each, on in unusual),
    ]


def _unknown_processor(name: str, compiler: Compiler, said: str) -> ConfigError:
    names = [
        name
        for valid in _VALID.findall(said)
        for name in re.split(r"[,\s]+", valid.partition(";")[0])
    ]
    hint = did_you_mean(name, [*names, NATIVE], 3) or (
        f"; it knows {', '.join(names)}" if names else ""
    )
    return ConfigError(
        f"--cpu {name}: {compiler} knows no such processor{hint}", code="unknown-processor"
    )


def known_processors(arch: str) -> dict[str, tuple[str, ...]]:
    """Return by its name what compilers take for granted of a processor; nothing of one whose macros were not read."""
    unread = _TABLE["unread"].get(arch, "").split()
    groups = _TABLE["needs"].get(arch, {}).items()
    return {
        **dict.fromkeys((NATIVE, *unread), ()),
        **{name: tuple(flags.split()) for names, flags in groups for name in names.split()},
    }


def processor_needs(arch: str, name: str) -> tuple[str, ...]:
    """Return what compilers are known to take for granted of a processor; "neoverse-v1+nosve" is not read."""
    return known_processors(arch).get(name, ())


def unknown_name_hint(arch: str, name: str) -> str | None:
    """Return "" or near names for a name that no processor is known to have; None for a known one, or another arch."""
    known = known_processors(arch)
    is_known = name.startswith(f"{NATIVE}.") or name.partition("+")[0] in known
    return None if is_known or arch not in _TABLE["needs"] else did_you_mean(name, known, 3)


def processor_problems(needs: Collection[str], flags: Collection[str]) -> tuple[str, ...]:
    """Return why a processor that has `flags` cannot run what needs others; nothing where it can, or does not tell."""
    lacks = sorted(set(needs) - set(flags)) if flags else []
    return (f"this machine's processor has no {', '.join(lacks)}",) if lacks else ()

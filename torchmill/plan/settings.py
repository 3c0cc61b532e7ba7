"""Weigh what a user gives a build by --set: what is refused, what is heavier, and what it needs of the machine."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchmill.config.model import SWITCHED_OFF
from torchmill.core.errors import ConfigError
from torchmill.core.files import read_table_beside

SYSTEM_LIBRARIES = (
    "USE_SYSTEM_LIBS"  # takes all third-party libraries from the system: CMakeLists.txt of torch
)
_TABLE = read_table_beside(__file__, "settings.toml")
# Options by which gcc and clang make code that other processors may not run; -mtune changes none of that:
# https://gcc.gnu.org/onlinedocs/gcc/x86-Options.html, https://gcc.gnu.org/onlinedocs/gcc/AArch64-Options.html
_PROCESSOR_OPTION = re.compile(
    r"(?:^|[\s,=])(-march=\S+|-mcpu=\S+|-m(?:avx|sse|fma|f16c|bmi|amx|sve)[\w.-]*|-xHost|/arch:\S+)",
    re.IGNORECASE,
)
_LINKER_OPTION = re.compile(r"(?:^|[\s,=])-fuse-ld=(\S+)")
_FLAGS = re.compile(r".*FLAGS(?:_\w+)?")  # CFLAGS, CMAKE_CXX_FLAGS_RELEASE, TORCH_NVCC_FLAGS


@dataclass(frozen=True, slots=True)
class HeavierSetting:
    """A setting with which a build takes more than the builds that were measured."""

    name: str
    what: str  # that it adds
    label: str  # for the wheel's version; "": none


def refuse_settings(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for a setting that contradicts every variant, or that hides where the wheel runs."""
    for name, value in settings.items():
        for entry in _TABLE["refused"] if _is_on(value) else ():
            if name in entry["names"]:
                raise ConfigError(
                    f"--set {name}={value}: {entry['reason']}; {entry['way_out']}",
                    code="setting-of-another-device",
                )
        option = _PROCESSOR_OPTION.search(value) if _FLAGS.fullmatch(name) else None
        if option:
            raise ConfigError(
                f"--set {name}={value}: with {option[1]} the wheel may not run on other processors, and its name would "
                "not say so; give the processor by `--cpu`, which compiles for it and names it "
                "(`--cpu native`, `--cpu x86-64-v3`)",
                code="processor-by-flag",
            )


def heavier_settings(settings: Mapping[str, str]) -> list[HeavierSetting]:
    """Return the settings with which a build takes more time, memory and disk than an estimate says."""
    return [
        HeavierSetting(name, entry["what"], entry.get("label", ""))
        for name, value in settings.items()
        for entry in _TABLE["heavier"]
        if name in entry["names"] and _is_on(value)
    ]


def version_labels(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return what the local version of a wheel says of its settings: ("debug",)."""
    return tuple(
        dict.fromkeys(setting.label for setting in heavier_settings(settings) if setting.label)
    )


def required_linkers(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the linkers that settings name by -fuse-ld, each with the setting's name: ("mold", "LDFLAGS")."""
    for name, value in settings.items():
        for linker in _LINKER_OPTION.findall(value):
            yield linker, name


def takes_system_libraries(settings: Mapping[str, str]) -> bool:
    """Tell whether settings make a build take its third-party libraries from the system."""
    return SYSTEM_LIBRARIES in settings and _is_on(settings[SYSTEM_LIBRARIES])


def _is_on(value: str) -> bool:
    return bool(value) and value.upper() not in SWITCHED_OFF

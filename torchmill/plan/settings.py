"""Weigh the settings that a user gives a build by --set.

Some are refused, some make the build heavier, and some need programs or libraries of the machine.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchmill.core.errors import ConfigError
from torchmill.core.package_data import read_table_beside
from torchmill.plan.build_options import SWITCHED_OFF

# CMakeLists.txt of torch: with it, all third-party libraries are those of the system.
SYSTEM_LIBRARIES = "USE_SYSTEM_LIBS"
_TABLE = read_table_beside(__file__, "settings.toml")
# Options by which gcc and clang make code that other processors may not run. -mtune is none of
# them: it only chooses between instructions that all processors have.
# https://gcc.gnu.org/onlinedocs/gcc/x86-Options.html
# https://gcc.gnu.org/onlinedocs/gcc/AArch64-Options.html
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
    addition: str  # to the build: "debug information"
    label: str  # in the local version of the wheel: "debug"; "": none


def refuse_settings(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for a setting that no wheel can have.

    Refused are settings for GPUs of other makers, which contradict every variant, and compiler
    options for a processor, because the wheel's name would not tell which processors run it.
    """
    for name, value in settings.items():
        if _is_on(value):
            _refuse_other_device(name, value)
        if _FLAGS.fullmatch(name):
            _refuse_processor_option(name, value)


def _refuse_other_device(name: str, value: str) -> None:
    """Raise ConfigError for a setting that is for other devices than CPUs and NVIDIA's GPUs."""
    for entry in _TABLE["refused"]:
        if name in entry["names"]:
            raise ConfigError(
                f"--set {name}={value}: {entry['reason']}; {entry['way_out']}",
                code="setting-of-another-device",
            )


def _refuse_processor_option(name: str, value: str) -> None:
    """Raise ConfigError for compiler flags that choose the instructions of one processor."""
    option = _PROCESSOR_OPTION.search(value)
    if option:
        raise ConfigError(
            f"--set {name}={value}: with {option[1]} the wheel may not run on other processors, "
            "and its name would not say so; give the processor by `--cpu`, which compiles for it "
            "and names it (`--cpu native`, `--cpu x86-64-v3`)",
            code="processor-by-flag",
        )


def heavier_settings(settings: Mapping[str, str]) -> list[HeavierSetting]:
    """Return the settings with which a build takes more time, memory and disk than estimated."""
    heavier: list[HeavierSetting] = []
    for name, value in settings.items():
        if not _is_on(value):
            continue
        heavier.extend(
            HeavierSetting(name, entry["addition"], entry.get("label", ""))
            for entry in _TABLE["heavier"]
            if name in entry["names"]
        )
    return heavier


def version_labels(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the labels that settings give the local version of a wheel: ("debug",)."""
    labels = [setting.label for setting in heavier_settings(settings) if setting.label]
    return tuple(dict.fromkeys(labels))


def required_linkers(settings: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each linker that -fuse-ld asks for, and the setting with it: ("mold", "LDFLAGS")."""
    for name, value in settings.items():
        for linker in _LINKER_OPTION.findall(value):
            yield linker, name


def takes_system_libraries(settings: Mapping[str, str]) -> bool:
    """Tell whether settings make a build take its third-party libraries from the system."""
    return _is_on(settings.get(SYSTEM_LIBRARIES, ""))


def _is_on(value: str) -> bool:
    """Tell whether a setting switches something on: CMake takes any value but "" and OFF so."""
    return bool(value) and value.upper() not in SWITCHED_OFF

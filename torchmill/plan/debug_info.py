"""Plan a build with debug information: the flags, and the builds that cannot have it."""

from collections.abc import Collection, Mapping

from torchmill.config.package import Package
from torchmill.config.rule import Rule, When
from torchmill.core.errors import ConfigError, ImpossibleBuildError
from torchmill.plan.build_options import SWITCHED_ON, Options

FULL = "full"
# Value of `--debug-info` -> flag of gcc and clang. Neither changes the code that they make
# (https://gcc.gnu.org/onlinedocs/gcc/Debugging-Options.html).
DEBUG_LEVELS = {
    FULL: "-g",  # functions, lines, types and variables
    "lines": "-g1",  # functions and lines
}
_CMAKE_PREFIX = "CMAKE_"
_USUAL_VARIABLES = ("CFLAGS", "CXXFLAGS")
# No archive names a folder of the user, and files are named as they are in the source, also those
# that a compiler in a build folder finds two or three folders above. Of two maps that fit,
# compilers follow the last. These are for debug information alone: messages of checks keep the file
# names that other maps give them.
_MAPS = tuple(
    f"-fdebug-prefix-map={folder}"
    for folder in (
        "${home}=~",
        "${python_home}=python",
        "${tree}=.",
        "${source}=.",
        "..=.",
        "../..=.",
        "../../..=.",
    )
)

# Variables by which torch's setup.py makes a build with debug information (tools/setup_helpers/env.py).
_DEBUG_SWITCHES = ("DEBUG", "REL_WITH_DEB_INFO")
_NO_DEBUG_INFO = "-g0"


def asks_for_debug_info(settings: Mapping[str, str]) -> str:
    """Return the setting of the user by which the wheel itself has debug information; "" if none.

    Such a wheel is not stripped: somebody wants to debug it as it is.
    """
    for name, value in settings.items():
        words = value.split()
        has_flag = any(word.startswith("-g") and word != _NO_DEBUG_INFO for word in words)
        if has_flag or (name in _DEBUG_SWITCHES and value.upper() in SWITCHED_ON):
            return f"{name}={value}"
    return ""


def debug_rule(
    package: Package, session: str, system: str, options: Options, variables: Collection[str]
) -> Rule:
    """Return the rule by which everything is compiled with debug information.

    `session` is the name for messages, `system` the one that the build runs on, and `variables` are
    those that other rules set or append to. Raises ImpossibleBuildError if the wheel could not stay the same,
    ConfigError if the user has it put into the wheel itself.
    """
    setting = asks_for_debug_info(options.settings)
    if setting:
        raise ConfigError(
            f"--debug-info leaves the wheel without debug information, and `--set {setting}` puts "
            "it there: omit one of them",
            code="contradictory-options",
        )
    if system != "linux":
        raise ImpossibleBuildError(
            f"{session}: --debug-info separates debug information from ELF files, and {system} has "
            "others: omit it",
            code="debug-info-impossible",
        )
    names = package.setup.debug_variables or _USUAL_VARIABLES
    # CFLAGS takes the place of Python's own flags, with their -O3 (setuptools' customize_compiler),
    # and CMAKE_CXX_FLAGS_RELEASE that of CMake's: alone, -g would be all. A package that names its
    # variables knows of the former.
    for name in names:
        is_known = name in package.setup.debug_variables and not name.startswith(_CMAKE_PREFIX)
        if name not in variables and not is_known:
            raise ImpossibleBuildError(
                f"{session}: no rule sets {name} for this release and compiler, so that "
                "--debug-info would take the optimization away: omit it, or build with gcc 8 or "
                "newer",
                code="debug-info-impossible",
            )
    flags = " ".join((DEBUG_LEVELS[options.debug_info or FULL], *_MAPS))
    return Rule(
        name="--debug-info",
        when=When(),
        reason="debug information is compiled, and put into an archive beside the wheel",
        append=dict.fromkeys(names, flags),
    )

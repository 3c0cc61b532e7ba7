"""The variables that a build sets, and who decides on each: facts, rules, options, or the user."""

from collections.abc import Iterable, Iterator, Mapping

from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.rule import Rule
from torchmill.config.versions import is_within
from torchmill.core.errors import ConfigError
from torchmill.plan.build_options import SWITCHED_OFF, Options
from torchmill.plan.cuda_toolkit import CudaSelection
from torchmill.plan.settings import refuse_settings


def refuse_idle_options(package: Package, build: Build, session: str, options: Options) -> None:
    """Raise ConfigError for an option that a session has no use for.

    So it does for a setting (`--set`) of a variable on which an option or the session's name
    decides: one of the two would be ignored in silence.
    """
    refuse_settings(options.settings)
    if options.torch and not package.after:
        raise ConfigError(
            f"--torch {options.torch}: {session} builds {package.name} itself, against no other: "
            "omit the option",
            code="torch-for-itself",
        )
    deciders = _deciders(package, build, options)
    for name in deciders.keys() & options.settings:
        raise ConfigError(
            f"--set {name}: {deciders[name]} decides on this variable: omit the setting",
            code="two-settings",
        )


def _deciders(package: Package, build: Build, options: Options) -> dict[str, str]:
    """Return the variables that `--set` may not name, each with the option that decides on it."""
    deciders: dict[str, str] = {}
    for name, template in package.version_variables.items():
        # A fixed text is a part of the version too: PYTORCH_BUILD_NUMBER=2 would append .post2.
        if "{version" in template or "{" not in template:
            deciders[name] = f"`--label {options.label}`"
    for name in ("USE_CUDA", "FORCE_CUDA"):
        deciders[name] = "the name of the session (`nox -l` has them all)"
    for name in ("CUDA_HOME", "CUDA_PATH"):
        deciders[name] = "`--toolkit`, or CUDA_HOME in the shell,"
    jobs = options.jobs or options.settings.get("MAX_JOBS")
    deciders["MAX_JOBS"] = f"`--jobs {jobs}`, which changes no wheel,"
    if options.arch_list:
        deciders["TORCH_CUDA_ARCH_LIST"] = f"`--arch-list {options.arch_list}`"
    elif build.cuda is None:
        deciders["TORCH_CUDA_ARCH_LIST"] = "a session with CUDA"
    return deciders


def build_variables(
    facts: Facts,
    selection: CudaSelection,
    rules: Iterable[Rule],
    options: Options,
    values: Mapping[str, str | None],
) -> dict[str, str]:
    """Return the variables that a build sets, sorted by name.

    The later decides: facts, then rules in the order of their file, then the user. `values` fill
    the templates of version variables, and give the number of compilers as "jobs".
    """
    package = facts.packages[selection.cell.build.package]
    variables = {
        "PATH": "${kit}/bin:${venv}/bin:${PATH}" if package.kit else "${venv}/bin:${PATH}",
        # A build in a tree below another checkout must not read the HEAD of that checkout.
        "GIT_CEILING_DIRECTORIES": "${tree}",
        "MAX_JOBS": str(values["jobs"]),
        **selection.variables,
    }
    for name, template in package.version_variables.items():
        text = template.format(**values)
        if text:
            variables[name] = text
    for rule in rules:
        variables.update(rule.set)
    if options.arch_list:
        variables["TORCH_CUDA_ARCH_LIST"] = options.arch_list
    # Values are templates with ${…}, in which "$$" stands for a plain "$".
    settings = {name: value.replace("$", "$$") for name, value in options.settings.items()}
    variables.update(_with_appended_flags(variables, rules, settings))
    if is_within(package.off_spelling_releases, selection.cell.release.version):
        # These releases know no USE_CUDA=0: a variable of its own, NO_CUDA=1, switches it off.
        for switch, off_switch in package.off_spelling.items():
            if variables.get(switch, "").upper() in SWITCHED_OFF:
                variables[off_switch] = "1"
    return dict(sorted(variables.items()))


def _with_appended_flags(
    variables: Mapping[str, str], rules: Iterable[Rule], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the user's settings, and the variables to which rules append flags.

    The user's flags come last, because the last of two flags that contradict each other counts.
    """
    flags: dict[str, list[str]] = {}
    for rule in rules:
        for name, flag in rule.append.items():
            if name not in flags:
                flags[name] = [variables[name]] if name in variables else []
            flags[name].append(flag)
    result = dict(settings)
    for name, parts in flags.items():
        if settings.get(name):
            parts.append(settings[name])
        result[name] = " ".join(parts)
    return result


def partner_requirements(rules: Iterable[Rule], release: Release) -> Iterator[str]:
    """Yield the packages that pip is to install with a wheel: "triton==3.2.0".

    Raises ConfigError if a rule names a partner whose version the release does not tell.
    """
    for rule in rules:
        for template in rule.installs:
            try:
                yield template.format(**release.partners)
            except (LookupError, ValueError, AttributeError):
                raise ConfigError(
                    f"{rule.name}: '{template}' names a package for which {release} has no version "
                    f"in [{release.package}.partners]",
                    code="facts-invalid",
                ) from None

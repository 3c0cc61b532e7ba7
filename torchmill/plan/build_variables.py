"""The variables that a build sets, and who decides on each: facts, rules, options, or the user.

A setting is a variable that the user gives with `--set NAME=VALUE`. A version variable is one by
which a package's build files learn the version to build, such as PYTORCH_BUILD_VERSION.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.rule import Rule
from torchmill.config.versions import is_within
from torchmill.core.errors import ConfigError
from torchmill.plan import crossing
from torchmill.plan.build_options import SWITCHED_OFF, Options
from torchmill.plan.cuda_toolkit import CudaSelection
from torchmill.plan.settings import refuse_settings


def refuse_idle_options(package: Package, build: Build, session: str, options: Options) -> None:
    """Raise ConfigError for an option that would be ignored in silence, or is refused anyway.

    Ignored would be `--torch` for a package that is built against no other, and a setting of a
    variable on which another option or the name of the session decides. `refuse_settings` refuses
    others.
    """
    refuse_settings(options.settings)
    if options.torch and not package.after:
        raise ConfigError(
            f"--torch {options.torch}: {session} builds {package.name} itself, against no other: "
            "omit the option",
            code="torch-for-itself",
        )
    deciders = _options_by_variable(package, build, options)
    for name in options.settings:
        if name in deciders:
            raise ConfigError(
                f"--set {name}: {deciders[name]} decides on this variable: omit the setting",
                code="two-settings",
            )


def _options_by_variable(package: Package, build: Build, options: Options) -> dict[str, str]:
    """Return the variables that `--set` may not name, each with the option that decides on it.

    The text of an option is the subject of a sentence: "`--jobs 4`, which changes no wheel, decides
    on this variable".
    """
    deciders: dict[str, str] = {}
    for name, template in package.setup.version_variables.items():
        # Templates with other fields, "{torch}" or "{requires}", do not decide on the version. A
        # text without a field does: PYTORCH_BUILD_NUMBER=2 would append ".post2" to it.
        if "{version" in template or "{" not in template:
            deciders[name] = f"`--label {options.label}`"
    for name in ("USE_CUDA", "FORCE_CUDA"):
        deciders[name] = "the name of the session (`nox -l` has them all)"
    for name in ("CUDA_HOME", "CUDA_PATH"):
        deciders[name] = "`--toolkit`, or CUDA_HOME in the shell,"
    # The option to use instead, with the number that the setting has.
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
    rules: Sequence[Rule],
    options: Options,
    values: Mapping[str, str | None],
    *,
    crosses: bool = False,
) -> dict[str, str]:
    """Return the variables that a build sets, sorted by name; `crosses` if it is crossed.

    Rules, in the order of their file, override facts, and the user overrides rules; the user's
    flags of compilers follow those that rules append. A switch that is off thereby is also set in
    the spelling of older releases (`off_spelling`). The result has placeholders for folders,
    "${venv}", which are filled when the plan is carried out, and "$$" for a plain "$". The values
    of version variables are templates: `values` has their fields "version", "torch" and "requires",
    and also "jobs", the number of compilers at a time.
    """
    package = facts.packages[selection.cell.build.package]
    variables = {
        # ${…} are placeholders for folders, which are known only when the plan is carried out.
        "PATH": "${kit}/bin:${venv}/bin:${PATH}" if package.setup.kit else "${venv}/bin:${PATH}",
        # A build in a tree below another checkout must not read the HEAD of that checkout.
        "GIT_CEILING_DIRECTORIES": "${tree}",
        "MAX_JOBS": str(values["jobs"]),
        **selection.variables,
    }
    if crosses:
        variables |= crossing.crossing_variables(selection.cell.build)
    for name, template in package.setup.version_variables.items():
        text = template.format(**values)
        if text:  # "" without requirements
            variables[name] = text
    for rule in rules:
        variables.update(rule.set)
    if options.arch_list:
        variables["TORCH_CUDA_ARCH_LIST"] = options.arch_list
    # "$$" stands for a plain "$", which would otherwise begin a placeholder.
    settings = {name: value.replace("$", "$$") for name, value in options.settings.items()}
    variables.update(_with_appended_flags(variables, rules, settings))
    if is_within(package.setup.off_spelling.releases, selection.cell.release.version):
        # In these releases NO_CUDA=1 has the meaning of USE_CUDA=0 in later ones.
        for switch, off_switch in package.setup.off_spelling.switches.items():
            if variables.get(switch, "").upper() in SWITCHED_OFF:
                variables[off_switch] = "1"
    return dict(sorted(variables.items()))


def _with_appended_flags(
    variables: Mapping[str, str], rules: Iterable[Rule], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the user's settings, and the variables to which rules append flags.

    Each of these has its value from `variables`, then the rules' flags, then the user's flags: of
    two flags that contradict each other, compilers follow the last.
    """
    flags_by_variable: dict[str, list[str]] = {}
    for rule in rules:
        for name, flag in rule.append.items():
            if name not in flags_by_variable:
                flags_by_variable[name] = [variables[name]] if name in variables else []
            flags_by_variable[name].append(flag)
    result = dict(settings)
    for name, flags in flags_by_variable.items():
        if settings.get(name):
            flags.append(settings[name])
        result[name] = " ".join(flags)
    return result


def partner_requirements(rules: Iterable[Rule], release: Release) -> Iterator[str]:
    """Yield a wheel's requirements of partners: "triton==3.2.0".

    A partner is a package of its own that torchmill does not build; the facts of a release have the
    versions that belong to it. Raises ConfigError if a rule names a partner for which the release
    has no version.
    """
    for rule in rules:
        for template in rule.installs:
            try:
                yield template.format(**release.wheel.partners)
            except (LookupError, ValueError, AttributeError):
                raise ConfigError(
                    f"{rule.name}: '{template}' names a package for which {release} has no version "
                    f"in [{release.package}.partners]",
                    code="facts-invalid",
                ) from None

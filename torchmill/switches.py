"""The variables of a build: what facts, rules, the machine and the user say, in that order."""

from collections.abc import Iterable, Mapping

from torchmill.cuda.means import Means
from torchmill.model import Facts, Options, Package, Rule
from torchmill.rules import within


def environment(
    facts: Facts,
    using: Means,
    rules: Iterable[Rule],
    options: Options,
    stated: Mapping[str, str | None],
) -> Mapping[str, str]:
    """Return the variables to set: facts first, rules in file order, the user's last.

    `stated` is what version variables are made of, and the number of compilers as "jobs".
    """
    package = facts.packages[using.cell.build.package]
    variables = {
        "PATH": "${kit}/bin:${venv}/bin:${PATH}" if package.kit else "${venv}/bin:${PATH}",
        "GIT_CEILING_DIRECTORIES": "${tree}",  # a build tree below another checkout must not read its HEAD
        "MAX_JOBS": str(stated["jobs"]),
        **using.variables,
    }
    for name, value in package.version_variables.items():
        if text := value.format(**stated):
            variables[name] = text
    for rule in rules:
        variables |= rule.set
    if options.arch_list:
        variables["TORCH_CUDA_ARCH_LIST"] = options.arch_list
    user = {name: value.replace("$", "$$") for name, value in options.settings.items()}
    variables |= _appended(variables, rules, user)
    return dict(sorted((variables | _spelt_off(package, using, variables)).items()))


def _appended(variables: Mapping[str, str], rules: Iterable[Rule], user: Mapping[str, str]) -> dict[str, str]:
    """Return what rules append to variables, and the user's own settings, whose flags come last."""
    flags: dict[str, list[str]] = {}
    for name, more in ((name, more) for rule in rules for name, more in rule.append.items()):
        flags.setdefault(name, [variables[name]] if name in variables else []).append(more)
    joined = {name: " ".join([*said, *filter(None, [user.get(name)])]) for name, said in flags.items()}
    return {**user, **joined}


def _spelt_off(package: Package, using: Means, variables: Mapping[str, str]) -> dict[str, str]:
    """Return how an old release reads that a switch is off."""
    if not within(package.off_spelling_releases, using.cell.release.version):
        return {}
    return {old: "1" for new, old in package.off_spelling.items() if variables.get(new) in {"0", "OFF"}}

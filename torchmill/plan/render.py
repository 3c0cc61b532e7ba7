"""A plan as text, as JSON-ready data, and as a shell script that needs no torchmill."""

import base64
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.core.console import fold_text
from torchmill.host.host import Host
from torchmill.plan import cuda_toolkit, wheel_name
from torchmill.plan.plan import Command, Plan

SCRIPTS = Path(__file__).with_name("build_script")
_END_OF_PATCH = "END_OF_PATCH"  # ends the here-document that holds a patch
SYSTEM_LIBRARIES = (
    r"$(/sbin/ldconfig -p | sed -n 's/^\t\([^ ]*\) .*/\1/p' | sed 's/[.+]/\\&/g' | paste -sd '|')"
)


def plan_as_data(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON-ready data."""
    return {
        "identifier": plan.identifier,
        "package": plan.build.package,
        "tag": plan.release.tag,
        "commit": plan.source.commit,
        "source": plan.source.title,
        "version": plan.wheel.version,
        "environment": {"set": dict(plan.variables), "passed": list(plan.shell_patterns)},
        "toolkit": plan.cuda.toolkit,
        "libraries": dict(plan.cuda.libraries),
        "torch": plan.wheel.torch,
        "requirements": list(plan.requirements),
        "kit": list(plan.tree.kit),
        "patches": list(plan.tree.patches),
        "lacks": [
            {"what": lack.part, "cost": lack.cost, "cure": lack.cure}
            for lack in plan.official.shortfalls
        ],
        "differs": {one.part: one.cost for one in plan.official.differences},
        "published": plan.official.published and plan.official.published.as_data(),
        "commands": [list(command.argv) for command in (*plan.tree.preparation, *plan.commands)],
        "jobs": plan.jobs,
        "wheel": plan.wheel.file_name,
        "platform": {
            "at_most" if plan.wheel.tag_is_upper_bound else "exactly": plan.wheel.platform_tag
        },
    }


def plan_summary(
    plan: Plan, host: Host, cost: Mapping[str, str], tag: str, said: Sequence[str]
) -> str:
    """Return what matters most of a plan, and its cost, in a few lines; `tag` selects it, `said` are its options."""
    cell = shlex.join(
        [plan.identifier, f"--tag={tag}", *said]
    )  # for a command to be of this very plan
    python = plan.build.python
    own = (
        {
            f"Python {python}": host.interpreters.paths.get(python),
            "a C++ compiler": host.compilers.default,
        }
        if host.complete
        else {}
    )
    missing = ", ".join(
        what for what, place in {**own, **_cuda_places(plan, host)}.items() if not place
    )
    toolkit = f", CUDA {plan.cuda.toolkit}" if plan.cuda.toolkit else ""
    rows = {
        "builds": f"{plan.release}, Python {python}{toolkit}, {plan.build.arch}",
        "source": "" if plan.source.commit else plan.source.title,
        "makes": f"dist/{plan.wheel.file_name}{', or an older platform tag' * plan.wheel.tag_is_upper_bound}",
        "for GPUs": plan.arch_list,
        **cost,
        "missing": missing and f"{missing}: `invoke build {cell}` brings what is missing",
        "lacks": ", ".join(one.part for one in plan.official.shortfalls),
        "published": plan.official.published.summary if plan.official.published else "",
        "more": f"`invoke plan {cell} --all`",
    }
    return fold_text("\n".join(f"{name:11}{text}" for name, text in rows.items() if text))


def plan_as_text(plan: Plan, host: Host) -> str:
    """Return the whole plan for a person to read."""
    fixed = f"{plan.jobs} {'compiler' if plan.jobs == 1 else 'compilers'} at a time"
    guarded = (
        f"each compiler when there is memory for it; {fixed} where no guard watches it, as in --sh"
    )
    lines = [
        f"{plan.identifier}: {plan.build.package} {plan.release.tag} ({plan.source.commit or plan.source.title})",
        f"on {host.system} {host.arch}, {fixed if host.system == 'windows' else guarded}",
        *(
            f"with {what} in {place}" if place else f"with {what}, which is not there yet"
            for what, place in _cuda_places(plan, host).items()
        ),
        *([str(plan.official.published)] if plan.official.published else []),
        "",
        "environment",
        *(f"  {name}={value}" for name, value in plan.variables.items()),
        f"  from your shell only: {' '.join(plan.shell_patterns)}",
        "",
        "requirements",
        *(f"  {one}{', a wheel in dist/' * (one == _own_base(plan))}" for one in plan.requirements),
        *(f"  {requirement}, for every Python" for requirement in plan.tree.kit),
        *(
            [f"  {plan.wheel.torch}, as it is installed in {plan.wheel.torch_folder}"]
            if plan.wheel.torch_folder
            else []
        ),
        f"  if no index can be reached, download them first: {_download_command(plan)}",
        "  and build with PIP_NO_INDEX=1 PIP_FIND_LINKS=wheels",
    ]
    if plan.official.shortfalls:
        lines += [
            "",
            "lacks, compared with the official wheel",
            *(f"  {one}" for one in plan.official.shortfalls),
        ]
    if plan.reasons:
        lines += ["", "because", *(f"  {reason}" for reason in plan.reasons)]
    commands = (*plan.tree.preparation, *plan.commands)
    lines += [
        "",
        "commands, in ${source}",
        *(f"  {shlex.join(command.argv)}" for command in commands),
    ]
    older = (
        ", with an older platform tag where its symbols allow that"
        if plan.wheel.tag_is_upper_bound
        else ""
    )
    lines += ["", f"makes dist/{plan.wheel.file_name}{older}"]
    return "\n".join(lines)


def _own_base(plan: Plan) -> str | None:
    """Return the requirement of a local version, "torch==1.8.0+cu102": pip looks for it in dist/ too; None if none is.

    PyPI takes no such versions: https://packaging.python.org/en/latest/specifications/version-specifiers/.
    """
    return (
        plan.wheel.torch
        if plan.wheel.torch and plan.wheel.torch in plan.requirements and "+" in plan.wheel.torch
        else None
    )


def _download_command(plan: Plan) -> str:
    """Return the command that brings what a build takes from an index, and what its wheel requires when it is tried."""
    from_index = [one for one in plan.requirements if one != _own_base(plan)]
    words = shlex.join(
        [
            f"python{plan.build.python}",
            "-m",
            "pip",
            "wheel",
            "-w",
            "wheels",
            *from_index,
            *plan.tree.kit,
        ]
    )
    wheel = plan.official.published
    return (
        words
        if wheel is None or wheel.verdict.fit == "does not fit"
        else f"{words} {wheel.requirement}"
    )


def _cuda_places(plan: Plan, host: Host) -> dict[str, str]:
    """Return where the toolkit and the libraries that the suite keeps are; "" for what is not there yet."""
    if plan.cuda.toolkit is None:
        return {}
    instead = "" if plan.cuda.toolkit == plan.build.cuda else f" in place of {plan.build.cuda}"
    said = {"cuda_home": f"CUDA {plan.cuda.toolkit}{instead}"}
    said |= {f"{name}_home": f"{name} {version}" for name, version in plan.cuda.libraries.items()}
    there = cuda_toolkit.cuda_placeholders(plan, host)
    if plan.cuda.toolkit in host.toolkits.completed and "cuda_home" in there:
        there["cuda_home"] += f" ({host.toolkits.completed[plan.cuda.toolkit]})"
    return {what: there.get(place, "") for place, what in said.items()}


def plan_as_script(plan: Plan, facts: Facts, host: Host) -> str:
    """Return a bash script that builds the same wheel with nothing of the suite installed."""
    package = facts.packages[plan.build.package]
    return _script(
        "build",
        identifier=plan.identifier,
        obtain=_source_lines(plan, package),
        interpreter=f"python{plan.build.python}",
        homes=_home_exports(plan, host),
        passed="|".join(pattern.replace("*", ".*") for pattern in plan.shell_patterns),
        exports="\n".join(
            f"export {name}={_double_quote(value)}" for name, value in plan.variables.items()
        ),
        requirements=" ".join(
            shlex.quote(requirement) for requirement in (*plan.tree.kit, *plan.requirements)
        ),
        lend=_lending_line(plan),
        patches="\n".join(_patch_lines(plan, facts)),
        prepare="\n".join(_command_line(command) for command in plan.tree.preparation) or ":",
        commands="\n".join(_command_line(command) for command in plan.commands),
        repair=_repair_lines(plan, facts, host),
        wheel=_wheel_word(plan),
    )


def _script(part: str, **values: str) -> str:
    """Return a part of the script, with the values for what it writes as @name@."""
    text = (SCRIPTS / f"{part}.sh").read_text(encoding="utf-8").rstrip("\n")
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)


def _lending_line(plan: Plan) -> str:
    """Return the line that lets the environment import what is installed elsewhere, after its own packages."""
    if plan.wheel.torch_folder is None:
        return ""
    loads = shlex.quote(f"import site; site.addsitedir({str(plan.wheel.torch_folder)!r})")
    return f'echo {loads} > "$("$python" -c \'import site; print(site.getsitepackages()[0])\')/lent.pth"\n'


def _wheel_word(plan: Plan) -> str:
    """Return the shell word for the wheel that is made; where its tag is computed, whichever it is."""
    if not plan.wheel.tag_is_upper_bound:
        return shlex.quote(plan.wheel.file_name)
    return (
        shlex.quote(plan.wheel.file_name.removesuffix(f"{plan.wheel.platform_tag}.whl")) + "*.whl"
    )


def _home_exports(plan: Plan, host: Host) -> str:
    """Return the exports of the folders that only a machine knows, where they are not exported already."""
    usual = {f"{name}_home": "/usr" for name in plan.cuda.libraries}
    usual |= {"cuda_home": "/usr/local/cuda"} if plan.cuda.toolkit else {}
    found = usual | cuda_toolkit.cuda_placeholders(plan, host)
    return "\n".join(
        f"export {name}=${{{name}:-{_double_quote(folder)}}}" for name, folder in found.items()
    )


def _double_quote(value: str) -> str:
    """Quote for bash, keeping ${name} alive; $$ is a plan's word for a dollar."""
    return (
        '"'
        + value.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`").replace("$$", "\\$")
        + '"'
    )


def _command_line(command: Command) -> str:
    return " ".join(_double_quote(word) for word in command.argv)


def _source_lines(plan: Plan, package: Package) -> str:
    """Return the lines that get the source: of the tag, or of the archive on PyPI."""
    if package.repository:
        commit = plan.source.commit or plan.release.commit or ""
        named = {"tag": plan.release.tag, "repository": package.repository, "commit": commit}
        return _script("clone", **{name: shlex.quote(value) for name, value in named.items()})
    archive = shlex.quote(f"{package.pypi}=={plan.release.version}")
    return _script("archive", archive=archive, sha256=plan.release.sha256 or "")


def _script_git_version(plan: Plan) -> str:
    """Return what the version module says: the script clones the release, and stops where that is another commit."""
    commit = plan.source.commit or plan.release.commit
    return (
        wheel_name.mark_commit(commit, wheel_name.MODIFIED if plan.tree.user_patches else "")
        if commit
        else "Unknown"
    )


def _metadata_lines(plan: Plan, package: Package) -> str:
    """Return the lines that say version and base in a wheel whose build can be told neither."""
    if package.version_variables:
        return ":"
    said = f"Version: {plan.wheel.version}" + (
        f"\\\nRequires-Dist: {plan.wheel.torch_requirement}" if plan.wheel.torch else ""
    )
    info = shlex.quote("-".join(plan.wheel.file_name.split("-")[:2]) + ".dist-info")
    drop = f"/^Requires-Dist: *{package.after}([^[:alnum:]._-]|$)/Id; " if plan.wheel.torch else ""
    return (
        f"sed -E -i '0,/^$/{{{drop}s/^Version: .*/{said}/}}' ./*.dist-info/METADATA\n"
        f"[ -e {info} ] || mv ./*.dist-info {info}"
    )


def _patch_lines(plan: Plan, facts: Facts) -> Iterator[str]:
    for patch in plan.tree.patches:
        content = (facts.patches / plan.tree.user_patches.get(patch, patch)).read_bytes()
        folder, target = (
            f'"$patches"/{shlex.quote(path)}' for path in (patch.rpartition("/")[0], patch)
        )
        yield f"mkdir -p {folder}"
        yield f"{_write_command(content)} > {target} <<'{_END_OF_PATCH}'\n{_as_lines(content)}\n{_END_OF_PATCH}"


def _write_command(content: bytes) -> str:
    return "cat" if _is_plain(content) else "base64 -d"


def _as_lines(content: bytes) -> str:
    """Return a patch as the lines of a here-document: as it is if it is plain text, else in base64."""
    if _is_plain(content):
        return content.decode("utf-8").removesuffix("\n")
    return base64.encodebytes(content).decode("ascii").rstrip("\n")


def _is_plain(content: bytes) -> bool:
    """Tell whether a here-document can hold a text as it is: a line like its end would make commands of the rest."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return (
        text.endswith("\n") and not {"\0", "\r"} & {*text} and _END_OF_PATCH not in text.split("\n")
    )


def _repair_lines(plan: Plan, facts: Facts, host: Host) -> str:
    """Return the lines that carry libraries along, set run paths and write the platform tag."""
    if host.system != "linux" or host.platform.glibc is None:
        return 'cp "$raw"/*.whl "$dist/"'
    package = facts.packages[plan.build.package]
    base = facts.packages[package.after].import_name if package.after else "nothing"
    return _script(
        "repair",
        package=package.import_name,
        stamp=_metadata_lines(plan, package),
        commit=_script_git_version(plan),
        base=base,
        packages=shlex.quote(str(plan.wheel.torch_folder))
        if plan.wheel.torch_folder
        else '"$venv"/lib/python*/site-packages',
        folder=f"{package.import_name}.libs" if package.after else f"{package.import_name}/lib",
        promised=_platform_libraries(plan.wheel.platform_tag),
        tag=plan.wheel.platform_tag,
        lowest=_script("oldest_tag") if plan.wheel.tag_is_upper_bound else ":",
    )


def _platform_libraries(tag: str) -> str:
    """Return the shell word for the libraries that stay outside: the platform's, or all of this system's."""
    from millpress import bundling

    if tag.startswith(bundling.PLAIN_LINUX_PREFIX):
        return SYSTEM_LIBRARIES
    return shlex.quote(
        "|".join(sorted(re.escape(name) for name in bundling.platform_target(tag).policy.whitelist))
    )

"""A plan as a shell script that builds the same wheel without torchmill (`invoke plan --sh`).

The parts of the script are the files in build_script/. A part has @name@ where a value of the plan
is filled in.
"""

import base64
import re
import shlex
from collections.abc import Mapping

from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.core.errors import ImpossibleBuildError
from torchmill.core.package_data import read_text_beside
from torchmill.host.host import Host
from torchmill.plan import cuda_toolkit, wheel_name
from torchmill.plan.plan import Command, Plan

_SCRIPTS = "build_script"  # the folder of the parts
_END_OF_PATCH = "END_OF_PATCH"  # ends the here-document that holds a patch
# The shell word for the names of all libraries that the loader of this system finds, as an extended
# regular expression: "libc\.so\.6|libm\.so\.6|…".
SYSTEM_LIBRARIES = (
    r"$(/sbin/ldconfig -p | sed -n 's/^\t\([^ ]*\) .*/\1/p' | sed 's/[.+]/\\&/g' | paste -sd '|')"
)


def refuse_crossed(plan: Plan) -> None:
    """Raise ImpossibleBuildError for a crossed build: its files of Python are in no script."""
    if plan.is_crossed:
        raise ImpossibleBuildError(
            f"--sh: {plan.identifier} is crossed, and needs files of torchmill's as it compiles: "
            f"run `nox -s {plan.identifier}`, or print the script on a machine that is "
            f"{plan.build.arch}",
            code="crossed-in-script",
        )


def plan_as_script(plan: Plan, facts: Facts, host: Host, patches: Mapping[str, bytes]) -> str:
    """Return a bash script that builds the wheel of a plan, which is not crossed.

    `patches` has the content of each patch of the plan, by its name there.
    """
    package = facts.packages[plan.build.package]
    exports = [f"export {name}={_double_quote(value)}" for name, value in plan.variables.items()]
    shell_patterns = [pattern.replace("*", ".*") for pattern in plan.shell_patterns]
    requirements = [*plan.tree.kit, *plan.requirements]
    preparation = [_command_line(command) for command in plan.tree.preparation]
    return _fill_part(
        "build",
        identifier=plan.identifier,
        obtain=_source_lines(plan, package),
        interpreter=f"python{plan.build.python}",
        homes=_home_exports(plan, host),
        passed="|".join(shell_patterns),
        exports="\n".join(exports),
        requirements=" ".join(shlex.quote(requirement) for requirement in requirements),
        torch=_torch_lines(plan, package),
        patches=_patch_lines(plan, patches),
        prepare="\n".join(preparation) or ":",
        commands="\n".join(_command_line(command) for command in plan.commands),
        repair=_repair_lines(plan, facts, host),
        wheel=_wheel_word(plan),
    )


def _fill_part(part: str, **values: str) -> str:
    """Return a part of the script with the values for each @name@ in it."""
    text = read_text_beside(__file__, f"{_SCRIPTS}/{part}.sh").rstrip("\n")
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)


def _torch_lines(plan: Plan, package: Package) -> str:
    """Return the lines that let the environment import the torch that the package needs.

    They export the folder of packages which has it: the environment's own, or that of --torch,
    whose packages come after the environment's in the search path. "" for torch itself.
    """
    if package.after is None:
        return ""
    site_packages = "$(\"$python\" -c 'import site; print(site.getsitepackages()[0])')"
    if plan.wheel.torch_folder is None:
        return f"export torch_packages={site_packages}\n"
    torch_packages = str(plan.wheel.torch_folder)
    line = shlex.quote(f"import site; site.addsitedir({torch_packages!r})")
    return (
        f"export torch_packages={shlex.quote(torch_packages)}\n"
        f'echo {line} > "{site_packages}/lent.pth"\n'
    )


def _wheel_word(plan: Plan) -> str:
    """Return the shell word for the wheel, whichever platform tag it gets."""
    if plan.wheel.tag_is_upper_bound:
        return f"{shlex.quote(plan.wheel.stem)}*.whl"
    return shlex.quote(plan.wheel.file_name)


def _home_exports(plan: Plan, host: Host) -> str:
    """Return the lines that export the folders of the toolkit, the libraries and the interpreter.

    A folder that the user of the script has set in a variable stays.
    """
    # The usual folders, for what this host does not have.
    folders = {f"{name}_home": "/usr" for name in plan.cuda.libraries}
    if plan.cuda.toolkit:
        folders["cuda_home"] = "/usr/local/cuda"
    folders.update(cuda_toolkit.cuda_placeholders(plan, host))
    exports: list[str] = []
    for name, folder in folders.items():
        exports.append(f"export {name}=${{{name}:-{_double_quote(folder)}}}")
    if any("${python_home}" in value for value in plan.variables.values()):
        exports.append('export home="$HOME"')
        interpreter = f'$(command -v "${{PYTHON:-python{plan.build.python}}}")'
        exports.append(f'export python_home="$(readlink -f "{interpreter}")"')
        exports.append('python_home="${python_home%/*/*}"')
    return "\n".join(exports)


def _double_quote(value: str) -> str:
    """Quote a plan's text for bash, in which ${name} is filled in and $$ stands for a dollar."""
    # Backslashes first: the other replacements add some.
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
    escaped = escaped.replace("$$", "\\$")
    return f'"{escaped}"'


def _command_line(command: Command) -> str:
    """Return a command as a line of a shell script, in which variables are expanded."""
    return " ".join(_double_quote(word) for word in command.argv)


def _source_lines(plan: Plan, package: Package) -> str:
    """Return the lines that fetch the source: the tag, or the archive on PyPI."""
    if package.source.repository:
        return _fill_part(
            "clone",
            tag=shlex.quote(plan.release.tag),
            repository=shlex.quote(package.source.repository),
            commit=shlex.quote(plan.source.commit or plan.release.proof.commit or ""),
        )
    archive = shlex.quote(f"{package.source.pypi}=={plan.release.version}")
    return _fill_part("archive", archive=archive, sha256=plan.release.proof.sha256 or "")


def _git_version(plan: Plan) -> str:
    """Return the commit for the wheel's version module; "Unknown" if no commit is known.

    It needs no mark "unverified": the script clones the release, and stops at another commit.
    """
    commit = plan.source.commit or plan.release.proof.commit
    if not commit:
        return "Unknown"
    return wheel_name.mark_commit(commit, wheel_name.MODIFIED if plan.tree.user_patches else "")


def _metadata_lines(plan: Plan, package: Package) -> str:
    """Return the lines that write the version, and the pin of torch, into a wheel's METADATA.

    A build that takes its version from variables needs neither.
    """
    if package.setup.version_variables:
        return ":"
    delete_requirement = ""  # a command of sed; any requirement on torch gives way to the pin
    fields = f"Version: {plan.wheel.version}"
    if plan.wheel.torch:
        delete_requirement = f"/^Requires-Dist: *{package.after}([^[:alnum:]._-]|$)/Id; "
        fields += f"\\\nRequires-Dist: {plan.wheel.torch_requirement}"
    write_fields = f"s/^Version: .*/{fields}/"
    # A build that ignores the version names the folder by another version.
    project, version = plan.wheel.file_name.split("-")[:2]
    info = shlex.quote(f"{project}-{version}.dist-info")
    # "0,/^$/" ends at the first empty line: the description after it may have such lines too.
    return (
        f"sed -E -i '0,/^$/{{{delete_requirement}{write_fields}}}' ./*.dist-info/METADATA\n"
        f"[ -e {info} ] || mv ./*.dist-info {info}"
    )


def _patch_lines(plan: Plan, patches: Mapping[str, bytes]) -> str:
    """Return the lines that write the patches into $patches, each as a here-document."""
    lines: list[str] = []
    for patch in plan.tree.patches:
        content = patches[patch]
        if _is_plain(content):
            command = "cat"
            text = content.decode("utf-8").removesuffix("\n")
        else:
            command = "base64 -d"
            text = base64.encodebytes(content).decode("ascii").rstrip("\n")
        folder = shlex.quote(patch.rpartition("/")[0])
        lines.append(f'mkdir -p "$patches"/{folder}')
        lines.append(f"{command} > \"$patches\"/{shlex.quote(patch)} <<'{_END_OF_PATCH}'")
        lines.append(f"{text}\n{_END_OF_PATCH}")
    return "\n".join(lines)


def _is_plain(content: bytes) -> bool:
    """Tell whether a here-document can hold the bytes of a patch as they are.

    It holds UTF-8 without carriage returns. After a line like its end, bash would run the rest of
    the patch as commands.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    if not text.endswith("\n") or "\0" in text or "\r" in text:
        return False
    return _END_OF_PATCH not in text.split("\n")


def _repair_lines(plan: Plan, facts: Facts, host: Host) -> str:
    """Return the lines that bundle libraries, set run paths and write the platform tag.

    The script can do so on Linux with glibc only; elsewhere they copy the wheel as it was built.
    """
    if host.system != "linux" or host.platform.glibc is None:
        return 'cp "$raw"/*.whl "$dist/"'
    package = facts.packages[plan.build.package]
    base = "nothing"
    library_folder = f"{package.import_name}/lib"
    if package.after:
        base = facts.packages[package.after].import_name
        library_folder = f"{package.import_name}.libs"
    site_packages = '"$venv"/lib/python*/site-packages'
    if plan.wheel.torch_folder:
        site_packages = shlex.quote(str(plan.wheel.torch_folder))
    return _fill_part(
        "repair",
        package=package.import_name,
        stamp=_metadata_lines(plan, package),
        commit=_git_version(plan),
        base=base,
        packages=site_packages,
        folder=library_folder,
        promised=_platform_libraries(plan.wheel.platform_tag),
        tag=plan.wheel.platform_tag,
        lowest=_fill_part("oldest_tag") if plan.wheel.tag_is_upper_bound else ":",
    )


def _platform_libraries(tag: str) -> str:
    """Return the shell word for the libraries that stay outside of the wheel, as a pattern.

    They are the libraries that every system of the platform tag has. The tag linux_* promises
    nothing to other systems: all libraries of this system stay outside.
    """
    from millpress import bundling  # slow to load

    if tag.startswith(bundling.PLAIN_LINUX_PREFIX):
        return SYSTEM_LIBRARIES
    names = bundling.platform_target(tag).policy.whitelist
    return shlex.quote("|".join(sorted(re.escape(name) for name in names)))

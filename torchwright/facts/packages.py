"""Read packages/<name>.toml: a package and its rules."""

from pathlib import Path

from packaging.specifiers import SpecifierSet

from torchwright.model import Package, Rule, When
from torchwright.tables import Table, read


def package(path: Path, problems: list[str]) -> Package:
    """Read what is known of a package in all its releases."""
    file = read(path, problems)
    off = file.table("off_spelling")
    debian = file.table("debian")
    found = Package(
        name=file.text("name"),
        session=file.text("session"),
        repository=file.text("repository"),
        import_name=file.text("import_name"),
        checks=file.text("checks"),
        after=file.optional("after"),
        tag=file.text("tag"),
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
    )
    debian.done()
    file.done()
    return found


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
    )
    table.done()
    return when

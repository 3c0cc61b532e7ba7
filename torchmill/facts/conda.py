"""Read conda.toml."""

from pathlib import Path

from packaging.utils import canonicalize_name

from torchmill.model.conda import BOUNDS, Conda, CondaName
from torchmill.tables import Table, read


def conda(path: Path, problems: list[str]) -> Conda | None:
    """Read what is known of conda; None without the file, and then no packages can be made for it."""
    if not path.exists():
        return None
    file = read(path, problems)
    compiled = file.table("compiled_with")
    found = Conda(
        subdirs=file.mapping("subdirs"),
        cuda=file.mapping("cuda"),
        licenses=file.mapping("licenses"),
        compiled_with={name: compiled.texts(name) for name in list(compiled.data)},
        libstdcxx=file.mapping("libstdcxx"),
        names=_names(file),
    )
    file.done()
    return found


def _names(file: Table) -> dict[str, CondaName]:
    found: dict[str, CondaName] = {}
    for table in file.tables("name"):
        name = CondaName(table.text("conda"), table.choice("bounds", BOUNDS, "same"))
        for project in table.texts("pypi"):
            if project != canonicalize_name(project):
                table.problem(f"'{project}' is written '{canonicalize_name(project)}' here")
            if project in found:
                table.problem(f"'{project}' has a name already, {found[project].name}")
            found[project] = name
        table.done()
    return found

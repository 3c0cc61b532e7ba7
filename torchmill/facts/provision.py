"""Read toolkit_sources.toml and toolkit_parts.toml."""

from pathlib import Path

from torchmill.model import Part, ToolkitSource
from torchmill.tables import each, read

PROVIDERS = ("conda", "debian", "pypi")  # in the order in which they are asked
KINDS = ("toolkit", "compiler", "parts", "cudnn", "nccl", "cusparselt", "magma")


def sources(path: Path, problems: list[str]) -> tuple[ToolkitSource, ...]:
    """Read what each provider has, in the order in which they are asked; nobody has anything without it."""
    if not path.exists():
        return ()
    file = read(path, problems)
    found = []
    for provider in PROVIDERS:
        for table in file.tables(provider):
            found.append(
                ToolkitSource(
                    provider=provider,
                    kind=table.choice("kind", KINDS),
                    versions=table.texts("versions", ()),
                    packages=table.texts("packages"),
                    arches=table.texts("arches"),
                    where=table.texts("where", ()),
                    cuda=table.optional("cuda"),
                    source=table.text("source"),
                    capabilities=table.texts("capabilities", ()),
                )
            )
            table.done()
    file.done()
    return tuple(found)


def parts(path: Path, problems: list[str]) -> tuple[Part, ...]:
    """Read the parts of toolkits; without the file no toolkit is known to lack any."""
    if not path.exists():
        return ()
    return tuple(
        Part(
            name=name,
            called=table.text("called"),
            package=table.text("package"),
            headers=table.texts("headers"),
            libraries=table.texts("libraries"),
            cuda=table.specifier("cuda"),
            without=table.text("without", ""),
            source=table.text("source"),
        )
        for name, table in each(path, problems)
    )

"""MAGMA: what its packages are installed as, and what code its library holds."""

from collections.abc import Mapping
from pathlib import Path

from torchmill.core.errors import SourceError
from torchmill.fetch.toolkit.request import MAGMA, ToolkitRequest, Unserved
from torchmill.host import libraries, provisioned
from torchmill.host.provisioned import ProvisionedFolder


def serving_magma(
    there: Mapping[str, ProvisionedFolder], request: ToolkitRequest, unserved: Unserved
) -> ProvisionedFolder | None:
    """Return the installed MAGMA that is requested and serves the capabilities, or None."""
    every = provisioned.provisioned_magma(there, request.cuda or "")
    fitting = (one for one in every if one.version == request.version)
    return next((there[one.name] for one in fitting if not unserved(one.code, request.capabilities)), None)


def name_magma(request: ToolkitRequest, folder: Path, unserved: Unserved, whose: str) -> str:
    """Return the name to install the content of a folder under; `whose` says where it is from: "debian has".

    Raises SourceError where it is of another version, or has no code for the capabilities asked for.
    """
    version = libraries.header_version(MAGMA, [folder / "include"])
    if version != request.version:
        raise SourceError(
            f"what {whose} as {request} is version {version or 'unknown'}: request that version",
            code="wrong-magma-version",
        )
    code = library_code(folder)
    if not code:
        raise SourceError(
            f"what {whose} as {request} has no GPU code that all of its objects share: {_OTHER}",
            code="magma-without-gpu-code",
        )
    if missed := unserved(code, request.capabilities):
        raise SourceError(
            f"what {whose} as {request} has GPU code for {code}, but none for {', '.join(missed)}: {_OTHER}",
            code="magma-lacks-capability",
        )
    return provisioned.magma_name(request.name, code)


_OTHER = "use another provider (`--from`)"


def library_code(folder: Path) -> str:
    """Return what the library in a folder has code for: "7.0;8.6+PTX". Raises BuildError for a broken one."""
    from torchmill.wheel.verify import device_code

    library = next(one for one in (folder / "lib/libmagma.a", folder / "lib/libmagma.so") if one.exists())
    return device_code.common_arch_list(device_code.read_device_code(library))

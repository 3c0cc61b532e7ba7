"""Ask uv which wheel variant a machine gets: the real resolver on the metadata of an index.

It chooses among stand-ins, wheels of a few bytes with the labels of the real ones, so that nothing
large is fetched or installed. uv's provider for NVIDIA can be told a GPU and a driver; the one for
processors always tells this machine's.
"""

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from millpress import file_names, record_file
from millpress.file_names import VARIANT_FILE
from packaging.version import InvalidVersion, Version

from torchmill.config.wheel_variants import WheelVariant
from torchmill.core import uv_program
from torchmill.core.errors import DeliveryError, HostError
from torchmill.core.process import CommandError, ask, program_output
from torchmill.deliver.index.variant_files import SUFFIX
from torchmill.wheel import variant_metadata

OLDEST_UV = Version("0.13.8")  # with the preview
PREVIEW = "wheel-variants"
FORCED_GPU = "NV_VARIANT_PROVIDER_FORCE_SM_ARCH"
FORCED_DRIVER = "NV_VARIANT_PROVIDER_FORCE_CUDA_DRIVER_VERSION"
_STANDIN = "standin"
_PLAIN = f"{_STANDIN}-1.0-py3-none-any.whl"
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ForcedGpu:
    """What uv's provider is told of a machine."""

    capability: str  # "8.6"
    cuda: str  # of the driver: "13.0"


@dataclass(frozen=True, slots=True)
class ResolverAnswer:
    """The answer of a resolver."""

    client: str  # "uv 0.13.9"; "" without an answer
    label: str = ""  # "" of the plain wheel
    problem: str = ""  # why there is no answer, as a clause


def ask_uv(variants: Sequence[WheelVariant], gpu: ForcedGpu | None = None) -> ResolverAnswer:
    """Return the variant that uv takes for a machine with a GPU; by default for this machine.

    Without uv, and if it is too old or fails, the answer has a problem instead.
    """
    uv = uv_program.uv_command()
    client = program_output(*uv, "--version").partition("(")[0].strip()
    try:
        version = Version(client.removeprefix("uv "))
    except InvalidVersion:
        return ResolverAnswer("", problem="uv is not installed")
    if version < OLDEST_UV:
        return ResolverAnswer("", problem=f"{client} does not know variants ({OLDEST_UV} does)")
    with tempfile.TemporaryDirectory() as folder:
        wheels = Path(folder, "wheels")
        target = Path(folder, "target")
        wheels.mkdir()
        _write_standins(wheels, variants)
        command = [*uv, "pip", "install", "--no-config", "--no-cache", "--no-index"]
        command += ["--preview-features", PREVIEW, "--python", sys.executable]
        command += ["--find-links", str(wheels), "--target", str(target), f"{_STANDIN}==1.0"]
        try:
            ask(command, _environment(os.environ, gpu), _SECONDS)
        except (CommandError, HostError) as error:
            return ResolverAnswer("", problem=f"{client} failed ({error})")
        return _read_answer(client, target, [variant.label for variant in variants])


def _environment(environ: Mapping[str, str], gpu: ForcedGpu | None) -> dict[str, str]:
    """Return the environment for uv, without the settings of a user."""
    variables = {name: value for name, value in environ.items() if not name.startswith("UV_")}
    if gpu is not None:
        variables |= {FORCED_GPU: gpu.capability, FORCED_DRIVER: gpu.cuda}
    return variables


def _write_standins(folder: Path, variants: Iterable[WheelVariant]) -> None:
    """Write a stand-in of each variant and of the plain wheel, and the metadata of an index."""
    variants = list(variants)
    _write_standin(folder / _PLAIN, None)
    for variant in variants:
        path = folder / file_names.with_label(_PLAIN, variant.label)
        _write_standin(path, variant_metadata.compose_metadata([variant]))
    metadata = variant_metadata.compose_metadata(variants)
    (folder / f"{_STANDIN}-1.0{SUFFIX}").write_bytes(metadata)


def _write_standin(path: Path, metadata: bytes | None) -> None:
    """Write a wheel without modules; `metadata` are those of a variant."""
    dist_info = f"{_STANDIN}-1.0.dist-info"
    files = {
        "METADATA": f"Metadata-Version: 2.1\nName: {_STANDIN}\nVersion: 1.0\n".encode(),
        "WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if metadata is not None:
        files[VARIANT_FILE] = metadata
    rows: list[Sequence[object]] = [(f"{dist_info}/{name}", "", "") for name in files]
    rows.append((f"{dist_info}/RECORD", "", ""))
    files["RECORD"] = record_file.format_record(rows).encode()
    with ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{dist_info}/{name}", content)


def _read_answer(client: str, target: Path, labels: Sequence[str]) -> ResolverAnswer:
    """Return which stand-in was installed; an answer that is none of them has a problem."""
    file = target / f"{_STANDIN}-1.0.dist-info" / VARIANT_FILE
    if not file.exists():
        return ResolverAnswer(client)
    try:
        described = list(variant_metadata.parse_metadata(file.read_bytes(), client))
    except DeliveryError as error:
        return ResolverAnswer("", problem=str(error))
    if len(described) != 1 or described[0] not in labels:
        return ResolverAnswer("", problem=f"{client} installed {', '.join(described)}")
    return ResolverAnswer(client, described[0])

"""The archive for C++ users, made of the verified wheel: libraries, headers and CMake's files, no Python."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchwright import artifact, host
from torchwright.cuda import means
from torchwright.deliver.libtorch import consumer, contents, zipped
from torchwright.deliver.libtorch.consumer import Trial
from torchwright.deliver.verified import Verified
from torchwright.errors import DeliveryError
from torchwright.locks import locked
from torchwright.pack import stage
from torchwright.recall import Recall


def make(found: Verified) -> Path:
    """Return the archive of a wheel, made beside it in dist/, and tried by a C++ program that CMake builds.

    One that is there and was made of this very wheel is kept. Raises DeliveryError where the wheel is not
    what its manifest tells of, VerifyError where no program can be built or run with the archive.
    """
    recall = Recall(found.layout.cache / "recall.json")
    sha256 = recall.digest(found.wheel)
    if sha256 != found.manifest.get("sha256"):
        raise DeliveryError(
            f"{found.wheel}: is not the file that its manifest tells of: delete it and build it again"
        )
    origin = {"wheel": found.wheel.name, "wheel_sha256": sha256, "code": _code()}
    there = _there(found.layout.dist, origin, recall)
    recall.save()
    return there or _made(found, origin)


def _there(dist: Path, origin: dict[str, Any], recall: Recall) -> Path | None:
    """Return the archive that was made of this wheel by this code, and not changed since."""
    for archive in sorted(dist.glob("lib*.zip")):
        told = artifact.record(archive)
        if origin.items() <= told.items() and recall.digest(archive) == told.get("sha256"):
            return archive
    return None


def _made(found: Verified, origin: dict[str, Any]) -> Path:
    plan, layout = found.plan, found.layout
    identifier = replace(plan.build, session="libtorch").identifier(host.native_arch())
    scratch = layout.tree(plan.release.tag, identifier)
    scratch.mkdir(parents=True, exist_ok=True)
    layout.logs.mkdir(parents=True, exist_ok=True)
    log = layout.logs / f"{plan.release.tag}-{identifier}.log"
    with locked(scratch, identifier), log.open("w", encoding="utf-8") as said:
        for folder in ("wheel", "consumer"):
            shutil.rmtree(scratch / folder, ignore_errors=True)
        (scratch / "wheel").mkdir()
        package = found.facts.packages[plan.build.package]
        root = stage.unpack(found.wheel, scratch / "wheel").root / package.import_name
        archive = scratch / _title(found, root)
        members = layout.cache / "members"
        top = f"lib{package.import_name}"
        made = zipped.write(archive, top, contents.chosen(root), _texts(found), members)
        printed = consumer.run(archive, _trial(found, scratch / "consumer"), said)
        told = {**origin, "sha256": made, "size": archive.stat().st_size, "consumer": printed}
        place = layout.dist / archive.name
        artifact.manifest_of(place).unlink(missing_ok=True)
        shutil.move(archive, place)
        artifact.manifest_of(place).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        for folder in ("wheel", "consumer"):
            shutil.rmtree(scratch / folder, ignore_errors=True)
    return place


def _title(found: Verified, root: Path) -> str:
    build = found.plan.build
    arch = found.facts.arches[build.arch]
    name = found.facts.packages[build.package].import_name
    abi = "cxx11-abi-" if contents.is_cxx11(root) else ""
    return contents.title(name, found.plan.version, arch.system, build.arch, abi)


def _texts(found: Verified) -> dict[str, str]:
    """Return the two files by which an official archive says what it is."""
    texts = {"build-version": f"{found.plan.version}\n"}
    commit = found.manifest.get("commit")
    return texts | ({"build-hash": f"{commit}\n"} if commit else {})


def _trial(found: Verified, scratch: Path) -> Trial:
    project = found.facts.packages[found.plan.build.package].checks
    if found.plan.toolkit is None:
        return Trial(project, scratch)
    home = means.places(found.plan, host.measure(found.layout.root)).get("cuda_home", "/usr/local/cuda")
    variables = {"CUDA_HOME": home, "CUDACXX": f"{home}/bin/nvcc"}
    return Trial(project, scratch, (f"CUDA_TOOLKIT_ROOT_DIR={home}",), variables)


def _code() -> str:
    """Return a digest of the code that makes archives."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.rglob("*.*")):
        if file.suffix in {".py", ".cpp", ".txt"}:
            digest.update(file.read_bytes())
    return digest.hexdigest()

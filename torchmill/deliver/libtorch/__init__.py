"""The archive for C++ users, made of the verified wheel: libraries, headers and CMake's files, no Python."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from torchmill import host
from torchmill.cuda import means
from torchmill.deliver import made
from torchmill.deliver.libtorch import consumer, contents, zipped
from torchmill.deliver.libtorch.consumer import Trial
from torchmill.deliver.made import Parts, Product
from torchmill.deliver.verified import Verified
from torchmill.errors import DeliveryError
from torchmill.ledger import digest
from torchmill.locks import locked
from torchmill.pack import deflate, stage
from torchmill.recall import Recall


def make(found: Verified) -> Product:
    """Return the archive of a wheel, made beside it in dist/, and tried by a C++ program that CMake builds.

    One that is there and would be the same is kept. Raises DeliveryError where the wheel is not
    what its manifest tells of, VerifyError where no program can be built or run with the archive.
    """
    recall = Recall(found.layout.cache / "recall.json")
    sha256 = recall.digest(found.wheel)
    if sha256 != found.manifest.get("sha256"):
        raise DeliveryError(
            f"{found.wheel}: is not the file that its manifest tells of: delete it and build it again"
        )
    parts = _parts(found, recall)
    there = made.kept(sorted(found.layout.dist.glob("lib*.zip")), parts, recall)
    recall.save()
    return Product(there, kept=True) if there else Product(_made(found, parts), kept=False)


def _parts(found: Verified, recall: Recall) -> dict[str, str]:
    """Return all that can change an archive; what a program is compiled with that tries it does not."""
    build = found.plan.build
    package = found.facts.packages[build.package]
    said = [package.import_name, package.checks, found.plan.version, _texts(found)]
    return {
        **made.of_wheel(found.wheel, recall),
        "facts": digest([*said, found.facts.arches[build.arch].system, build.arch, found.plan.toolkit]),
        "code": made.code(recall, "deliver/libtorch", "pack"),
        "tools": str(deflate.best()),
    }


def _made(found: Verified, parts: Parts) -> Path:
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
        sha256 = zipped.write(archive, top, contents.chosen(root), _texts(found), members)
        printed = consumer.run(archive, _trial(found, scratch / "consumer"), said)
        place = layout.dist / archive.name
        shutil.move(archive, place)
        made.note(place, parts, sha256, {"consumer": printed})
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

"""What goes into an image: its Pythons and system packages; and the folder that its files are written to."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from torchmill.cell.containers.image import python_image
from torchmill.config.build import CPU
from torchmill.config.facts import Facts
from torchmill.config.images import BaseImage, ImageFacts
from torchmill.config.versions import format_bounds, is_within, python_key
from torchmill.core.atomic_writes import fresh_path
from torchmill.core.digests import hash_file
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.core.lenient_paths import link_file
from torchmill.core.paths import CHECKOUT
from torchmill.core.strict_json import read_json_object
from torchmill.core.system_errors import report_unwritable
from torchmill.deliver.image.request import ImageRequest
from torchmill.plan import system_packages
from torchmill.plan.matrix import buildable_cells

OLDEST_SUITE_PYTHON = Version("3.11")  # the oldest Python that the suite runs on
OLDEST_UV_PYTHON = Version("3.8")  # the oldest whose pip installs uv
SYSTEM_PYTHONS = "3.12"  # that uv brings for the suite where the distribution's own is older
IMAGE_RECORD = "torchmill-image.json"  # says that a folder is ours, and what we wrote into it
# What of a checkout is the suite; the rest is for those who work on it.
_FILES = ("noxfile.py", "tasks.py", "pyproject.toml", "requirements.txt", "LICENSE")
SUITE = (*_FILES, "torchmill", "packages", "tools", "checks", "sample")
FACTS = "build_configs"
UNWANTED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """An image as files: what is written, what is copied, and what the user should know."""

    texts: dict[str, str]  # path in the folder -> content
    copied: dict[
        str, str
    ]  # path in the folder -> "suite", a name in the checkout, or a wheel's name in dist/
    notes: tuple[str, ...]  # warnings
    programs: frozenset[str] = frozenset()  # those of `texts` that are executable
    run: str = ""  # how a container of it is started; {image} stands for its name


def digest_notes(*bases: BaseImage | None) -> tuple[str, ...]:
    """Return the warnings about base images without a digest."""
    advice = "its name can stand for another image tomorrow; give the one that you tried with --base NAME@sha256:DIGEST"
    return tuple(
        f"{base.named} is not pinned: {advice}" for base in bases if base and not base.digest
    )


@dataclass(frozen=True, slots=True)
class ImagePythons:
    """Where each Python of an image comes from."""

    suite: str  # the one that the suite runs on: "3.11"
    own: tuple[str, ...]  # that the base has, or its package manager brings
    brought: tuple[str, ...]  # that uv brings
    compiled: tuple[str, ...]  # that are compiled from their sources
    missing: tuple[str, ...]  # that are not available


def plan_pythons(facts: Facts, base: BaseImage, wanted: Sequence[str]) -> ImagePythons:
    """Return where the Pythons of an image come from, that of the suite included."""
    able = [
        one for one in base.pythons if not one.endswith("t") and Version(one) >= OLDEST_SUITE_PYTHON
    ]
    suite = min(able, key=python_key, default=SYSTEM_PYTHONS)
    every = sorted({*wanted, suite}, key=python_key)
    own = tuple(one for one in every if one in base.pythons)
    brought = tuple(one for one in every if one not in own and one in facts.images.uv_pythons)
    sources = (
        base.compiled if base.distribution else ()
    )  # a user's own image has those that it is for
    compiled = tuple(one for one in every if one in sources and one not in own + brought)
    missing = tuple(one for one in every if one not in own + brought + compiled)
    return ImagePythons(suite, own, brought, compiled, missing)


def uv_image(images: ImageFacts, arch: str, base: BaseImage) -> BaseImage | None:
    """Return the image that uv is copied from, where the base's own Python is too old to install it; or None."""
    old = Version(base.pythons[0].rstrip("t")) < OLDEST_UV_PYTHON
    return python_image(images, arch, SYSTEM_PYTHONS) if old else None


def image_system_packages(
    facts: Facts, request: ImageRequest, base: BaseImage, found: ImagePythons
) -> tuple[str, ...]:
    """Return the system packages: the suite's, those of `invoke deps`, the Pythons', the host compiler's."""
    manager = "dnf" if base.manager == "yum" else base.manager
    every = buildable_cells(facts, request.release, request.arch)
    cells = [one for one in every if one.build.variant in {CPU, request.variant}]
    names = [
        *facts.images.tools.get(base.manager, ()),
        *system_packages.required_packages(
            facts, cells, manager, "debian" if request.purpose == "debian" else None
        ),
        *(facts.images.compiling.get(base.manager, ()) if found.compiled else ()),
    ]
    if base.manager == "apt" and base.role == "python":
        names += _beside(base, found)
    elif base.manager == "apt":
        names += [f"python{one}-{part}" for one in found.own for part in ("dev", "venv")]
        if found.suite in found.brought and uv_image(facts.images, request.arch, base) is None:
            names.append("python3-venv")
    return tuple(
        one
        for one in dict.fromkeys((*names, *_compiler(facts, request, base)))
        if one not in base.lacks
    )


def _beside(base: BaseImage, found: ImagePythons) -> tuple[str, ...]:
    """Return what brings the distribution's own Python into an image that was made for another one."""
    if (
        not base.distribution
    ):  # a user's own image may have just that one, and builds want its headers
        return (f"python{found.suite}-dev", f"python{found.suite}-venv")
    return (f"python{found.suite}-venv",) if found.suite != base.pythons[0] else ()


def _compiler(facts: Facts, request: ImageRequest, base: BaseImage) -> tuple[str, ...]:
    """Return the package of a compiler that the toolkit takes, where the base's own is too new for it.

    Raises ConfigError where the base can have none.
    """
    toolkit = facts.toolkit(request.toolkit)
    if toolkit is None or base.gcc is None or is_within(toolkit.gcc, base.gcc):
        return ()
    fitting = [major for major in base.compilers if is_within(toolkit.gcc, major)]
    if not fitting and base.distribution:
        raise ConfigError(
            f"CUDA {toolkit.version} takes gcc {format_bounds(toolkit.gcc)}, and {base.named} has no such gcc: "
            "take --purpose development, or give an image that has one with --base",
            code="image-without-compiler",
        )
    return (base.compiler.format(major=max(fitting, key=Version)),) if fitting else ()


def write_image_folder(
    folder: Path, recipe: ImageRecipe, sources: Mapping[str, Path], facts: Path
) -> None:
    """Write the files of an image; what we wrote there before is replaced, in one move.

    `sources` are the wheels by name, `facts` is the folder of build_configs that goes into it with the suite.
    Raises DeliveryError where the folder holds what is not ours, or cannot be written.
    """
    require_our_folder(folder)
    before = folder.with_name(f"{folder.name}.old")
    with report_unwritable(folder), fresh_path(folder) as fresh, fresh_path(before) as old:
        fresh.mkdir()
        _fill(fresh, recipe, sources, facts)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)


def require_our_folder(folder: Path) -> None:
    """Raise DeliveryError where a folder holds files that are not ours, or ours changed by hand."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_symlink() or not folder.is_dir():
        raise DeliveryError(
            f"{folder} is not from `invoke image`: name another with --into", code="foreign-folder"
        )
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    ours, written = _read_record(folder)
    strange = [name for name in names if name not in {IMAGE_RECORD, *ours}]
    if strange:
        raise DeliveryError(
            f"{folder} holds {', '.join(strange[:3])}, which `invoke image` did not write: "
            "move that away, or name another folder with --into",
            code="foreign-folder",
        )
    for name, digest in written.items():
        path = folder / name
        if path.is_file() and hash_file(path) != digest:
            raise DeliveryError(
                f"{path} was changed by hand: move the folder away, or name another with --into",
                code="changed-by-hand",
            )


def _read_record(folder: Path) -> tuple[set[str], dict[str, str]]:
    """Return what lies in a folder of ours, and the digest of each file that we wrote; nothing where it is not ours."""
    file = folder / IMAGE_RECORD
    try:
        record = read_json_object(file)
        return set(record["all"]), dict(record["written"])
    except FileNotFoundError:
        return set(), {}
    except (OSError, ValueError, TypeError, KeyError):
        raise DeliveryError(
            f"{file} is damaged: move the folder away", code="record-damaged"
        ) from None


def _fill(folder: Path, recipe: ImageRecipe, sources: Mapping[str, Path], facts: Path) -> None:
    for name, text in recipe.texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8", newline="\n")
        path.chmod(0o755 if name in recipe.programs else 0o644)
    for name, what in recipe.copied.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if what == "suite":
            _copy_suite(path, facts)
        elif (CHECKOUT / what).is_dir():
            shutil.copytree(CHECKOUT / what, path, ignore=UNWANTED)
        elif what not in sources or not link_file(
            sources[what], path
        ):  # a wheel may have gigabytes
            shutil.copyfile(sources.get(what, CHECKOUT / what), path)
    every = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    own = (  # but wheels
        name for name in every if name not in recipe.copied and (folder / name).is_file()
    )
    record = {"all": every, "written": {name: hash_file(folder / name) for name in own}}
    (folder / IMAGE_RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _copy_suite(target: Path, facts: Path) -> None:
    for name in SUITE:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=UNWANTED)
        elif source.exists():
            target.mkdir(exist_ok=True)
            shutil.copyfile(source, target / name)
    shutil.copytree(facts, target / FACTS, ignore=UNWANTED)

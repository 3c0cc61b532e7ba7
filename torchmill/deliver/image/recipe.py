"""The recipe of an image: the files that its folder will have, and the notes for the user."""

from dataclasses import dataclass

from torchmill.config.images import BaseImage


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """The files of an image's folder, by their paths in it, and notes for the user."""

    texts: dict[str, str]  # path -> content
    # path -> source: "suite", the name of a file or folder in the checkout, or of a wheel in dist/
    copied: dict[str, str]
    notes: tuple[str, ...]  # warnings
    programs: frozenset[str] = frozenset()  # those of `texts` that are executable
    run: str = ""  # the command that starts a container; {image} stands for the image's name


def digest_notes(*bases: BaseImage | None) -> tuple[str, ...]:
    """Return a warning for each base image without a digest."""
    advice = (
        "its name can stand for another image tomorrow; give the image that you tried with --base "
        "NAME@sha256:DIGEST"
    )
    notes = [f"{base.name} is not pinned: {advice}" for base in bases if base and not base.digest]
    return tuple(notes)

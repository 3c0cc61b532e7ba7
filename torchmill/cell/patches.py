"""The patches of a plan: torchmill's own from `build_configs/patches/`, and the user's."""

from pathlib import Path

from torchmill.plan.plan import Plan


def patch_files(plan: Plan, folder: Path) -> dict[str, Path]:
    """Return the files of a plan's patches by their names in the plan, in their order.

    `folder` is that of torchmill's patches.
    """
    files: dict[str, Path] = {}
    for name in plan.tree.patches:
        # The path of a user's patch is absolute, and so replaces the folder.
        files[name] = folder / plan.tree.user_patches.get(name, name)
    return files


def read_patches(plan: Plan, folder: Path) -> dict[str, bytes]:
    """Return the content of a plan's patches as `patch_files` names them.

    Raises OSError if a patch cannot be read.
    """
    return {name: file.read_bytes() for name, file in patch_files(plan, folder).items()}

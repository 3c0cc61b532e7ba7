"""The recipe of a dev container: an image for work on a checkout."""

from torchmill.cell.containers import image
from torchmill.config.facts import Facts
from torchmill.core.errors import ConfigError
from torchmill.deliver.image.contents import (
    OLDEST_SUITE_PYTHON,
    image_system_packages,
    plan_pythons,
)
from torchmill.deliver.image.recipe import ImageRecipe, digest_notes
from torchmill.deliver.image.request import ImageRequest
from torchmill.deliver.templates import fill_template

# The files that the Dockerfile copies; requirements.txt names folders of packages/.
COPIED = {"requirements.txt": "requirements.txt", "packages": "packages"}


def devcontainer_recipe(facts: Facts, request: ImageRequest) -> ImageRecipe:
    """Return the recipe of a dev container. It has no side effects.

    Raises ConfigError if the base image, the user's own or one of the facts, has no Python on which
    the suite runs.
    """
    images = facts.images
    python = request.pythons[0]
    if request.base:
        expected_base = image.expected_python_image(images, request.arch, python)
        base = image.user_image(images, request.base, expected_base)
    else:
        expected_base = image.python_image(images, request.arch, python)
        base = expected_base
    pythons = plan_pythons(facts, base, (python,))
    if pythons.suite not in base.pythons:
        raise ConfigError(
            f"{base.name} has no Python {OLDEST_SUITE_PYTHON} or newer, on which the suite runs: "
            "take a newer --python, or give an image that has both with --base",
            code="image-without-python",
        )
    dockerfile = fill_template(
        "devcontainer.Dockerfile.jinja",
        request=request,
        base=base,
        expected_base=expected_base,
        packages=image_system_packages(facts, request, base, pythons),
        pythons=pythons,
    )
    texts = {
        "Dockerfile": dockerfile,
        "devcontainer.json": fill_template("devcontainer.json.jinja", request=request),
    }
    command = "devcontainer up --workspace-folder . --config {place}/devcontainer.json"
    run = f"open the checkout in an editor that knows dev containers, or `{command}`"
    return ImageRecipe(texts, COPIED, digest_notes(base), run=run)

"""A snippet for pip: a requirements file.

pip asks all of its indexes for everything and takes the best version, wherever it is: who has an index in the
list trusts it with every name. The pins with a label are safe: PyPI takes no such version.
https://pip.pypa.io/en/stable/cli/pip_install/#finding-packages
"""

from __future__ import annotations

from collections.abc import Sequence

from torchmill.deliver.snippet.lines import Direct, flat, header, places, requirements
from torchmill.deliver.snippet.words import Decision

SEVERAL = False


def render(decisions: Sequence[Decision], direct: Direct) -> str:
    """Return requirements.txt."""
    decision, *_ = decisions
    named = places(decisions, direct)
    words = ["requirements.txt; then `pip install -r requirements.txt`"]
    if any(not flat(place) for place in named):
        words.append(
            "pip asks every index for every name: name none that you do not trust (dependency confusion); "
            "PyPI takes no version with a label, so that those pins are safe"
        )
    options = [f"{'--find-links' if flat(place) else '--extra-index-url'} {place.url}" for place in named]
    return "\n".join([*header(decisions, words), *options, *requirements(decision, direct)])

"""Fill facts into the sentences and commands of a cause.

A text has places such as `{torch_cuda|X.Y}`: the name of a fact, and what stands there if the fact
is not known; a fact whose value is "" leaves nothing there. Other braces, such as those of a Python dictionary, stay.
"""

import re
from collections.abc import Mapping

_PLACE = re.compile(r"\{(?P<fact>[a-z_]+)\|(?P<fallback>[^{}|]*)\}")


def fill_facts(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of facts, or their fallbacks, in its places."""
    return _PLACE.sub(lambda place: values.get(place["fact"], place["fallback"]), text)


def facts_in(text: str) -> tuple[str, ...]:
    """Return the names of the facts for which a text has places."""
    return tuple(place["fact"] for place in _PLACE.finditer(text))

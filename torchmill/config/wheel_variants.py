"""Wheel variants: wheels of one version for different hardware, of which a client chooses one.

A variant has a label, which ends its file name, and properties, all of which a machine must have:
"nvidia :: sm_arch :: 86_real". Of several values of one feature, one is enough. The null variant
has no properties, and runs everywhere. Not to be confused with `Build.variant`, the local label of
a version ("cu118").

The format is a draft: https://peps.python.org/pep-0825/ and https://peps.python.org/pep-0850/.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from millpress.file_names import NULL_LABEL

from torchmill.core.package_data import read_table_beside

_SEPARATOR = " :: "


class VariantProperty(NamedTuple):
    """A property that a machine must have."""

    namespace: str  # "nvidia"
    feature: str  # "sm_arch"
    value: str  # "86_real"

    def __str__(self) -> str:
        """Return "nvidia :: sm_arch :: 86_real", as the drafts write it."""
        return _SEPARATOR.join(self)


@dataclass(frozen=True, slots=True)
class WheelVariant:
    """One of the wheels of a version, for machines with some properties."""

    label: str  # "cu132_sm86", "x86_64_v3", "null"
    properties: tuple[VariantProperty, ...] = ()  # sorted; () of the null variant

    @property
    def features(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Return the values by namespace and feature; a machine must have one of each."""
        features: dict[tuple[str, str], tuple[str, ...]] = {}
        for namespace, feature, value in self.properties:
            values = features.get((namespace, feature), ())
            features[namespace, feature] = (*values, value)
        return features

    def __str__(self) -> str:
        """Return the label with the properties, for people."""
        properties = ", ".join(map(str, self.properties)) or "any machine"
        return f"{self.label} ({properties})"


def parse_property(text: str) -> VariantProperty:
    """Return the property that a text such as "nvidia :: sm_arch :: 86_real" names.

    Raises ValueError if it names none.
    """
    namespace, feature, value = text.split(_SEPARATOR)
    return VariantProperty(namespace, feature, value)


def describe_properties(properties: Iterable[VariantProperty]) -> str:
    """Return properties for people: "nvidia :: sm_arch :: 80_real or 90_real", by feature."""
    texts: dict[str, str] = {}
    for namespace, feature, value in properties:
        name = f"{namespace}{_SEPARATOR}{feature}"
        texts[name] = f"{texts[name]} or {value}" if name in texts else f"{name}{_SEPARATOR}{value}"
    return ", ".join(texts.values())


NULL_VARIANT = WheelVariant(NULL_LABEL)


@dataclass(frozen=True, slots=True)
class VariantProvider:
    """A program that tells the properties of a machine."""

    namespace: str
    requires: str  # the package that has it
    plugin_api: str | None  # where in the package; None: by its name
    features: Mapping[str, str]  # in decreasing priority -> regular expression of the values


@cache
def list_providers() -> tuple[VariantProvider, ...]:
    """Return all providers, in decreasing priority of their namespaces."""
    providers = []
    for table in _table()["providers"]:
        provider = VariantProvider(
            table["namespace"], table["requires"], table.get("plugin-api"), table["features"]
        )
        providers.append(provider)
    return tuple(providers)


def known_schemas() -> tuple[str, ...]:
    """Return the addresses of the drafts' schemas that are read; the first is written."""
    return tuple(_table()["schemas"])


def processor_variant(processor: str) -> WheelVariant | None:
    """Return the variant that a processor's name (`--cpu`) stands for; None if no provider has it."""
    text = _table()["processors"].get(processor)
    if text is None:
        return None
    return WheelVariant(re.sub(r"[^0-9a-z]+", "_", processor), (parse_property(text),))


def named_processors() -> tuple[str, ...]:
    """Return the processors (`--cpu`) that providers can name."""
    return tuple(_table()["processors"])


def arm_versions() -> Mapping[str, Sequence[str]]:
    """Return what a client asks of an Arm processor for each version, "8.2a", oldest first.

    The features are those of Linux, without those of the versions before.
    """
    versions: Mapping[str, Sequence[str]] = _table()["arm_versions"]
    return versions


def unknown_properties(properties: Sequence[VariantProperty]) -> list[VariantProperty]:
    """Return the properties that no provider can name."""
    patterns = {}
    for provider in list_providers():
        for feature, pattern in provider.features.items():
            patterns[provider.namespace, feature] = pattern
    unknown = []
    for required in properties:
        # a pattern that matches nothing stands for a feature that is not known
        values = patterns.get((required.namespace, required.feature), "(?!)")
        if not re.fullmatch(values, required.value, re.ASCII):
            unknown.append(required)
    return unknown


@cache
def _table() -> dict[str, Any]:
    """Return the tables of wheel_variants.toml."""
    return read_table_beside(__file__, "wheel_variants.toml")

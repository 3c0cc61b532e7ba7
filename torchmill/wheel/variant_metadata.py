"""Write and read the metadata of wheel variants: variant.json in a wheel, and that of an index.

Only this module imports variantlib, which has the format; drafts change, and it with them. What
variantlib does not ask is asked here: that nothing is said twice, that the draft is a known one,
and that no unknown provider is named. The last is a matter of safety: a client without a provider
of its own may install and run the package that the metadata names.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millpress import record_file, wheel_file
from millpress.file_names import NULL_LABEL, VARIANT_FILE

from torchmill.config import wheel_variants
from torchmill.config.wheel_variants import VariantProperty, WheelVariant
from torchmill.core.errors import DeliveryError
from torchmill.core.optional_libraries import installed_version, require_library
from torchmill.core.strict_json import parse_json_object

LIBRARY = "variantlib"
# The metadata of an index has a few hundred bytes for each variant; megabytes are an attack.
LARGEST_METADATA_BYTES = 1 << 20
MOST_VARIANTS = 1000  # of a version
_SCHEMA = "$schema"
_KEYS = {_SCHEMA, "default-priorities", "providers", "variants"}


class DraftVersion(NamedTuple):
    """What wrote the metadata of a variant, for its manifest."""

    schema: str
    library: str  # "variantlib 0.2.2"


def draft_version() -> DraftVersion:
    """Return the draft that is written, and the version of the library that writes it.

    If the library is not installed, its version is missing: "variantlib ".
    """
    schema = wheel_variants.known_schemas()[0]
    return DraftVersion(schema, f"{LIBRARY} {installed_version(LIBRARY)}")


def compose_metadata(variants: Sequence[WheelVariant], title: str = "variant.json") -> bytes:
    """Return the metadata of variants: of one for its wheel, or of all of a version for an index.

    All wheels name the same providers, in the same order, so that their metadata always agree.
    `title` names the file in messages. Raises DeliveryError if two different variants have one
    label or the same properties (the same variant twice counts once), and for a variant that no
    provider can name; HostError without variantlib.
    """
    _require_distinct(variants, title)
    for variant in variants:
        _require_known(variant, title)
    with require_library(LIBRARY):
        from variantlib.models.variant import VariantDescription
        from variantlib.models.variant import VariantProperty as LibraryProperty
        from variantlib.models.variant_info import ProviderInfo, VariantInfo
        from variantlib.variants_json import VariantsJson

    providers = {}
    for provider in wheel_variants.list_providers():
        providers[provider.namespace] = ProviderInfo(
            requires=[provider.requires], plugin_api=provider.plugin_api
        )
    document = VariantsJson(VariantInfo(namespace_priorities=list(providers), providers=providers))
    for variant in sorted(variants, key=lambda variant: variant.label):
        properties = [LibraryProperty(*required) for required in variant.properties]
        document.variants[variant.label] = VariantDescription(properties, label=variant.label)
    data = json.loads(document.to_str())
    # variantlib writes the address of its own copy of the schema, which uv does not know.
    data[_SCHEMA] = wheel_variants.known_schemas()[0]
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()


def read_variant(wheel: Path) -> WheelVariant | None:
    """Return what a wheel is a variant for; None of a plain wheel, whose name has no label.

    A plain wheel is not opened. Raises DeliveryError if a variant's metadata cannot be trusted, or
    is of another label than its name; WheelError for what is no wheel; HostError without
    variantlib.
    """
    label = wheel_file.parse_file_name(wheel).variant
    if not label:
        return None
    with wheel_file.open_wheel(wheel):  # raises an error for what is not a wheel
        content = record_file.read_dist_info_file(wheel, VARIANT_FILE)
    if content is None:
        raise _invalid(wheel.name, f"it has no {VARIANT_FILE}")
    variants = parse_metadata(content, wheel.name)
    if list(variants) != [label]:
        labels = ", ".join(variants)
        raise _invalid(wheel.name, f"its {VARIANT_FILE} describes {labels}, its name {label}")
    return variants[label]


def parse_metadata(content: bytes, title: str) -> dict[str, WheelVariant]:
    """Return the variants that metadata describe, by label.

    `title` names the file in messages. Raises DeliveryError for anything doubtful, for another
    draft, and for properties and providers that are not known; HostError without variantlib.
    """
    if len(content) > LARGEST_METADATA_BYTES:
        raise _invalid(title, f"its metadata has more than {LARGEST_METADATA_BYTES} bytes")
    try:
        data = parse_json_object(content)
    except ValueError as error:
        raise _invalid(title, f"its metadata cannot be read ({error})") from None
    schema = data.get(_SCHEMA)
    if schema not in wheel_variants.known_schemas():
        raise DeliveryError(
            f"{title}: its variants are described by another draft ({schema!r}), and this "
            f"torchmill knows {', '.join(wheel_variants.known_schemas())}: install the torchmill "
            "that made it, or make it again",
            code="unknown-variant-draft",
        )
    unknown_keys = sorted(data.keys() - _KEYS)
    if unknown_keys:
        raise _invalid(title, f"its metadata has {unknown_keys[0]!r}, which the draft has not")
    _require_known_providers(data, title)
    _require_usual_order(data, title)
    variants = _parse_variants(data, title)
    _require_distinct(list(variants.values()), title)
    for variant in variants.values():
        _require_known(variant, title)
    return variants


def _parse_variants(data: Mapping[str, Any], title: str) -> dict[str, WheelVariant]:
    """Return the variants as variantlib reads them. Raises DeliveryError if it refuses them."""
    described = data.get("variants")
    if not isinstance(described, dict) or not 1 <= len(described) <= MOST_VARIANTS:
        raise _invalid(title, f"its metadata does not describe 1 to {MOST_VARIANTS} variants")
    with require_library(LIBRARY):
        from variantlib.variants_json import VariantsJson
    # PEP 825 leaves the providers to PEP 850: a file of its draft is read with ours.
    providers = data.get("providers")
    if providers is None:
        providers = _provider_tables()
        data = {**data, "providers": providers, "default-priorities": {"namespace": [*providers]}}
    try:
        document = VariantsJson(data)
    # It raises whatever its parts raise: of its own, of `packaging`, KeyError, TypeError, …
    except Exception as error:  # noqa: BLE001
        problem = " ".join(str(error).split()) or type(error).__name__
        raise _invalid(title, f"its metadata is refused by {LIBRARY} ({problem})") from None
    variants = {}
    for label, description in document.variants.items():
        properties = [
            VariantProperty(item.namespace, item.feature, item.value)
            for item in description.properties
        ]
        variants[label] = WheelVariant(label, tuple(sorted(properties)))
    return variants


def _provider_tables() -> dict[str, dict[str, Any]]:
    """Return the providers as the drafts write them."""
    tables = {}
    for provider in wheel_variants.list_providers():
        table: dict[str, Any] = {"requires": [provider.requires]}
        if provider.plugin_api is not None:
            table["plugin-api"] = provider.plugin_api
        tables[provider.namespace] = table
    return tables


def _require_known_providers(data: Mapping[str, Any], title: str) -> None:
    """Raise DeliveryError for a provider that would be another program than the known one."""
    providers = data.get("providers", {})
    if not isinstance(providers, dict):
        raise _invalid(title, "its providers are no table")
    known = _provider_tables()
    for namespace, table in providers.items():
        if known.get(namespace) != table:
            names = ", ".join(known)
            raise DeliveryError(
                f"{title}: its metadata names a provider of {namespace!r} that is not known, and "
                f"clients may install and run it (known providers: {names}): do not use it",
                code="unknown-variant-provider",
            )


def _require_usual_order(data: Mapping[str, Any], title: str) -> None:
    """Raise DeliveryError for namespaces in another order than ours: it decides what clients take."""
    priorities = data.get("default-priorities")
    namespaces = priorities.get("namespace") if isinstance(priorities, dict) else None
    if not isinstance(namespaces, list) or not all(isinstance(name, str) for name in namespaces):
        raise _invalid(title, "its metadata does not say in which order namespaces count")
    usual = [provider.namespace for provider in wheel_variants.list_providers()]
    if namespaces != [name for name in usual if name in namespaces]:
        raise _invalid(title, f"its namespaces count in the order {', '.join(namespaces)}")


def _require_known(variant: WheelVariant, title: str) -> None:
    """Raise DeliveryError for a property that no known provider can name.

    Also if the variant "null" has properties, or another one has none.
    """
    unknown = wheel_variants.unknown_properties(variant.properties)
    if unknown:
        raise DeliveryError(
            f"{title}: the variant {variant.label} is for machines with {unknown[0]}, which no "
            "known provider can name, so that no client would choose it: leave it out",
            code="unknown-variant-property",
        )
    if bool(variant.properties) == (variant.label == NULL_LABEL):
        raise _invalid(title, f"{variant.label!r}: {NULL_LABEL!r} alone has no properties")


def _require_distinct(variants: Iterable[WheelVariant], title: str) -> None:
    """Raise DeliveryError if two different variants have one label, or the same properties."""
    labels: dict[str, WheelVariant] = {}
    described: dict[tuple[VariantProperty, ...], WheelVariant] = {}
    for variant in variants:
        first = labels.setdefault(variant.label, variant)
        if first != variant:
            raise DeliveryError(
                f"{title}: two variants have the label {variant.label}: {first}, and {variant}: "
                "give one of them another label",
                code="variant-label-twice",
            )
        first = described.setdefault(variant.properties, variant)
        if first != variant:
            raise DeliveryError(
                f"{title}: {first.label} and {variant.label} are for the same machines, so that "
                "nothing tells which a client gets: leave one of them out",
                code="variant-twice",
            )


def _invalid(title: str, problem: str) -> DeliveryError:
    """Return the error for metadata of variants that cannot be trusted."""
    return DeliveryError(
        f"{title}: {problem}: make it again, or leave it out", code="invalid-variant"
    )

"""Official wheels: which release they serve, by the facts that ship."""

from torchmill.config.matrix import find_release
from torchmill.config.model import Facts
from torchmill.deliver.snippet import stock


def test_each_table_names_what_there_is_and_serves_a_release(shipped: Facts) -> None:
    for one in shipped.elsewhere:
        assert set(one.packages) <= shipped.packages.keys()
        assert set(one.arches) <= shipped.arches.keys()
        assert set(one.variants) <= {"cpu", "cuda"}
        variants = {"cpu": "cpu", "cuda": "cu118"}
        base = [release for release in shipped.releases["torch"] if one.release.contains(release.version)]
        for kind in one.variants:
            found = [
                stock.find_official(shipped, release, release, variants[kind], shipped.arches[arch])
                for release in base
                for arch in one.arches
            ]
            urls = {each.place.url for each in found if each}
            assert one.url.format(variant=variants[kind]) in urls


def test_a_toolkit_counts_where_the_release_was_officially_built_with_it(shipped: Facts) -> None:
    torch, here = find_release(shipped, "torch", "2.4.0"), shipped.arches["x86_64"]
    found = stock.find_official(shipped, torch, torch, "cu121", here)
    assert found is not None
    assert (found.version, found.place.url) == ("2.4.0+cu121", "https://download.pytorch.org/whl/cu121")
    assert stock.find_official(shipped, torch, torch, "cu122", here) is None

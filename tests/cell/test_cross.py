"""Builds for other architectures: which a command line names, and the containers of these."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import commands
from tests.support.refusals import refused
from torchmill.cell.containers import cross, engine
from torchmill.cell.containers.cross import ContainerPlace, CrossBuild, PassedSettings
from torchmill.cell.containers.engine import Engine, EngineHost, Mount, container_commands
from torchmill.cell.option_files import parse_options
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release
from torchmill.core.paths import Layout
from torchmill.host import native
from torchmill.plan import cell_lookup, shell_seal
from torchmill.plan.session_names import asked_sessions

OTHER = "aarch64" if native.native_arch() != "aarch64" else "x86_64"


def requested(
    small_facts: Facts, *words: str, further: tuple[str, ...] = ()
) -> list[tuple[str, str, str]]:
    cells = cell_lookup.requested_cells(
        small_facts,
        None,
        asked_sessions(words),
        lambda cell: further if cell.build.package == "base" else (),
    )
    return [(name, cell.release.version, cell.build.arch) for name, cell in cells]


def test_a_name_with_an_arch_is_a_cell_of_it(small_facts: Facts) -> None:
    assert requested(small_facts, "nox", "-s", "wheel-3.10-cpu-x86_64") == [
        ("wheel-3.10-cpu", "2.0.0", "x86_64")
    ]
    assert requested(small_facts, "nox", "-s", "wheel-3.10-cpu-aarch64") == [
        ("wheel-3.10-cpu", "2.0.0", "aarch64")
    ]
    assert requested(small_facts, "-s", "vision-3.10-cpu-aarch64,wheel-3.9-cpu-arm64") == [
        ("vision-3.10-cpu", "0.1.0", "aarch64"),
        ("wheel-3.9-cpu", "1.0.0", "arm64"),
    ]


@pytest.mark.parametrize(
    "words", [["-s", "wheel-3.10-cpu"], ["-l"], ["-s", "wheel-2.7-cpu-aarch64"], []]
)
def test_nothing_else_is(small_facts: Facts, words: list[str]) -> None:
    assert requested(small_facts, *words) == []


def test_what_conflicts_forbid_is_none(small_facts: Facts) -> None:
    release = find_release(small_facts, "base", "1.0.0")
    sessions = asked_sessions(["-s", "wheel-3.10-cu118-aarch64"])
    assert list(cell_lookup.requested_cells(small_facts, release, sessions)) == []


def test_what_is_made_of_the_base_wheel_can_be_made_there(small_facts: Facts) -> None:
    name = "libtorch-3.10-cpu-aarch64"
    assert requested(small_facts, "-rs", name) == []
    assert requested(small_facts, "-rs", name, further=("libtorch",)) == [
        ("libtorch-3.10-cpu", "2.0.0", "aarch64")
    ]


def test_they_are_sessions_only_where_they_are_named(tmp_path: Path) -> None:
    name = f"wheel-3.10-cpu-{OTHER}"
    env = {"TORCHMILL_TAG": "v1.13.1"}
    assert name not in commands.run("nox", "--list", home=tmp_path, env=env).stdout
    listing = commands.run("nox", "--list", "--json", "-s", name, home=tmp_path, env=env)
    assert [session["session"] for session in json.loads(listing.stdout)] == [name], listing.stderr
    env |= {"NOXSESSION": name}
    assert name in commands.run("nox", "--list", home=tmp_path, env=env).stdout


HERE = {
    "/etc/ssl/certs/ca-certificates.crt",
    "/opt/wheels",
    "/srv/index/simple",
    "/home/me/proxy.pem",
}


def test_the_way_to_the_network_is_passed_on_and_nothing_that_changes_the_wheel() -> None:
    environ = {
        "HTTPS_PROXY": "http://proxy:3128",
        "no_proxy": "localhost",
        "REQUESTS_CA_BUNDLE": "/home/me/proxy.pem",
        "TORCHMILL_CACHE": "redis://:secret@cache",
        "CXXFLAGS": "-march=native",
        "USE_CUDA": "1",
        "CC": "gcc-13",
        "PIP_TARGET": "/home/me/lib",
        "HOME": "/home/me",
        "SCCACHE_DIR": "/home/me/sccache",
        "SSL_CERT_FILE": "",
    }
    settings = cross.select_settings(environ, {}, HERE.__contains__)
    names = ["HTTPS_PROXY", "REQUESTS_CA_BUNDLE", "TORCHMILL_CACHE", "no_proxy"]
    assert sorted(settings.variables) == names
    assert settings.mounts == (Mount("/home/me/proxy.pem", "/home/me/proxy.pem"),)


def test_where_pip_finds_packages_is_passed_on_with_the_folders() -> None:
    listing = (
        ":env:.disable-pip-version-check='1'\n"
        ":env:.find-links='/opt/wheels'\n"
        "global.cert='/etc/ssl/certs/ca-certificates.crt'\n"
        "global.extra-index-url='\\nfile:///srv/index/simple\\nhttps://me:secret@index.example/simple'\n"
        "global.find-links='/gone'\n"
        "global.target='/home/me/lib'\n"
        "global.timeout='10'\n"
        "install.timeout='20'\n"
        "list.timeout='30'\n"
    )
    settings = cross.select_settings({}, cross.parse_pip_settings(listing), HERE.__contains__)
    assert settings.variables == {
        "PIP_CERT": "/etc/ssl/certs/ca-certificates.crt",
        "PIP_EXTRA_INDEX_URL": "file:///srv/index/simple https://me:secret@index.example/simple",
        "PIP_FIND_LINKS": "/opt/wheels",
        "PIP_TIMEOUT": "20",
    }
    # pages of an index lead to files that lie beside them
    places = ["/etc/ssl/certs/ca-certificates.crt", "/opt/wheels", "/srv/index"]
    assert settings.mounts == tuple(Mount(path, path) for path in places)


def test_whom_the_user_trusts_is_passed_on_with_the_keys() -> None:
    environ = {
        "TORCHMILL_WHEELS": "/opt/wheels",
        "TORCHMILL_KEYS": "/home/me/proxy.pem",
        "TORCHMILL_SIGN_PASSPHRASE": "x",
    }
    settings = cross.select_settings(environ, {}, HERE.__contains__)
    assert sorted(settings.variables) == ["TORCHMILL_KEYS", "TORCHMILL_WHEELS"]
    assert settings.mounts == (
        Mount("/opt/wheels", "/opt/wheels"),
        Mount("/home/me/proxy.pem", "/home/me/proxy.pem"),
    )
    nobody = cross.select_settings(environ | {"TORCHMILL_KEYS": ""}, {}, HERE.__contains__)
    assert nobody.variables["TORCHMILL_KEYS"] == "", "without it, anybody would be trusted"


def test_what_is_not_here_is_not_mounted() -> None:
    settings = cross.select_settings(
        {}, {"find-links": "/gone https://example.org/wheels ./near"}, HERE.__contains__
    )
    assert settings.mounts == ()


def test_a_compiler_cache_of_the_users_own_is_written_to() -> None:
    environ = {"CCACHE_DIR": "/var/ccache", "TORCHMILL_CACHE": "file:///srv/cache%20all#read-only"}
    settings = cross.select_settings(environ, {}, HERE.__contains__)
    assert settings.mounts == (
        Mount("/var/ccache", "/var/ccache", writable=True),
        Mount("/srv/cache all", "/srv/cache all", writable=True),
    )


GOLDEN = Path(__file__).parents[1] / "golden" / "foreign"
LINUX = EngineHost("x86_64", is_rootless=False, is_remote=False)
ENGINES = {
    "docker": (Engine("docker", "docker", (), "27.5"), LINUX),
    "podman": (
        Engine("podman", "podman", (), "4.3.1"),
        EngineHost("x86_64", is_rootless=True, is_remote=False),
    ),
    "buildah": (Engine("buildah", "buildah", ("--storage-driver", "vfs"), "1.28.2"), LINUX),
}
PASSED = PassedSettings(
    {
        "HTTPS_PROXY": "http://me:secret@proxy",
        "PIP_FIND_LINKS": "/opt/wheels",
        "CCACHE_DIR": "/var/ccache",
    },
    (Mount("/opt/wheels", "/opt/wheels"), Mount("/var/ccache", "/var/ccache", writable=True)),
)


def place(**changed: object) -> ContainerPlace:
    values = {
        "suite": {"": Path("/home/me/torchmill")},
        "layout": Layout(Path("/home/me/torchmill"), Path("/home/me/.cache/torchmill")),
        "configs": None,
        "passed": PASSED,
        "requirements": "nox\n",
        "process": 4711,
        "user": (1000, 1000),
    }
    return ContainerPlace(**{**values, **changed})  # type: ignore[arg-type]


def order(
    small_facts: Facts, *arguments: str, name: str = "wheel-3.10-cpu-aarch64", tag: str = "v1.13.1"
) -> CrossBuild:
    cell = cell_lookup.find_cell(
        small_facts, name, "x86_64", find_release(small_facts, "torch", tag)
    )
    image, options = (
        "localhost/torch-builder:1.13.1-cpu-aarch64-distribution",
        parse_options(arguments, "test"),
    )
    session = cell.build.identifier(cell.build.arch)
    return CrossBuild(cell, session, tag=tag, image=image, options=options)


@pytest.mark.parametrize("name", ENGINES)
def test_the_run_of_a_build(name: str, shipped: Facts, request: pytest.FixtureRequest) -> None:
    engine, ground = ENGINES[name]
    build = order(shipped, "--jobs=2", "--memory=12 GiB", "--set=CFLAGS=-O2 -g")
    steps = container_commands(engine, ground, cross.plan_container(build, place(), ground))
    plan = {
        "before": steps.creation,
        "trial": steps.trial,
        "main": steps.main,
        "after": steps.removal,
    }
    text = json.dumps(plan, indent=1) + "\n"
    assert "secret" not in text
    file = GOLDEN / f"{name}.json"
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_facts_and_a_wheel_that_lie_elsewhere_are_brought_along(
    shipped: Facts, tmp_path: Path
) -> None:
    wheel = tmp_path / "torch-1.13.1+cpu-cp310-cp310-linux_aarch64.whl"
    wheel.touch()
    build = order(shipped, f"--torch={wheel}", name="vision-3.10-cpu-aarch64")
    container = cross.plan_container(build, place(configs=Path("/srv/facts")), LINUX)
    assert container.argv[-3:] == ("vision-3.10-cpu", "--", f"--torch=/given/{wheel.name}")
    assert {Mount("/srv/facts", "/configs"), Mount(str(wheel), f"/given/{wheel.name}")} <= set(
        container.mounts
    )
    assert container.variables["TORCHMILL_CONFIGS"] == "/configs"
    assert "COMPILER_PATH" not in container.variables
    crossed = cross.plan_container(replace(build, is_crossed=True), place(), LINUX)
    assert crossed.variables["COMPILER_PATH"] == "/opt/cross-compilers/bin"
    assert "TORCHMILL_CONFIGS" not in cross.plan_container(order(shipped), place(), LINUX).variables


def test_what_is_installed_here_is_in_no_container(shipped: Facts, tmp_path: Path) -> None:
    info = tmp_path / "torch-1.13.1.dist-info"
    info.mkdir()
    (tmp_path / "torch").mkdir()
    (info / "WHEEL").write_text("Tag: cp310-cp310-linux_aarch64\n")
    with refused("torch-not-in-container"):
        cross.refuse_impossible(
            shipped, order(shipped, f"--torch={tmp_path}", name="vision-3.10-cpu-aarch64")
        )


def test_what_is_kept_of_another_machine_lies_apart(shipped: Facts) -> None:
    """One machine's folders never meet the other's; sources and wheels are everybody's."""
    home = Layout(Path("/home/me/elsewhere"), Path("/home/me/.cache/torchmill"))
    inner = cross.container_layout(home, "aarch64")
    assert inner.trees == Path("/home/me/elsewhere/.torchmill/aarch64/trees")
    assert inner.logs == Path("/home/me/elsewhere/.torchmill/aarch64/logs")
    assert (inner.sources, inner.dist) == (home.sources, home.dist)
    required = cross.required_folders(order(shipped), place(layout=home))
    assert inner.cache == Path("/home/me/.cache/torchmill-aarch64")
    assert {inner.cache, home.dist, home.sources, Path("/var/ccache")} <= set(required)
    container = cross.plan_container(order(shipped), place(layout=home), LINUX)
    writable = {mount.source for mount in container.mounts if mount.writable}
    assert writable == {str(home.state), str(home.dist), str(inner.cache), "/var/ccache"}


def test_the_container_sees_the_layout_that_was_planned(
    shipped: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by the suite itself, the variables lead to where the folders are mounted."""
    container = cross.plan_container(order(shipped), place(), LINUX)
    for name, value in container.variables.items():
        monkeypatch.setenv(name, value)
    inner = Layout.of_checkout(Path("/suite"))
    outer = cross.container_layout(place().layout, "aarch64")
    by_target = {mount.target: mount.source for mount in container.mounts}
    for inside, outside in (
        (inner.trees, outer.trees),
        (inner.dist, outer.dist),
        (inner.cache, outer.cache),
    ):
        target = next(folder for folder in (inside, *inside.parents) if str(folder) in by_target)
        assert Path(by_target[str(target)], inside.relative_to(target)) == outside


def test_other_requirements_of_the_suite_get_an_environment_of_their_own(shipped: Facts) -> None:
    command = cross.plan_container(order(shipped), place(), LINUX).argv[2]
    other = cross.plan_container(order(shipped), place(requirements="nox>=2027\n"), LINUX).argv[2]
    assert command.startswith("/torchmill/.torchmill/aarch64/suite-")
    assert command != other


def test_what_is_for_the_conda_package_reaches_the_container_too(shipped: Facts) -> None:
    build = order(shipped, "--jobs=2")
    conda = replace(build, session="conda-3.10-cpu", session_arguments=("--build-number=3",))
    argv = cross.plan_container(conda, place(), LINUX).argv
    assert argv[3:] == ("conda-3.10-cpu", "--", "--build-number=3", "--jobs=2")


def test_an_engine_on_another_machine_is_refused(shipped: Facts) -> None:
    remote = EngineHost("aarch64", is_rootless=False, is_remote=True)
    with refused("remote-container-engine"):
        cross.plan_container(order(shipped), place(), remote)


def test_a_path_that_no_engine_takes_is_refused(shipped: Facts) -> None:
    with refused("unmountable-path"):
        cross.plan_container(order(shipped), place(suite={"": Path("/home/me/a,b")}), LINUX)
    with refused("unmountable-path"):
        cross.plan_container(order(shipped), place(suite={"": Path('/home/me/"')}), LINUX)
    cross.plan_container(order(shipped), place(suite={"": Path("/home/me/a b/ü")}), LINUX)


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("wheel-3.10-cpu-arm64", "macOS does not run in a"),
        ("wheel-3.10-cpu-amd64", "Windows does not run"),
    ],
)
def test_other_systems_run_in_no_container(shipped: Facts, name: str, clause: str) -> None:
    with refused("not-in-a-container") as caught:
        cross.refuse_impossible(shipped, order(shipped, name=name))
    assert clause in str(caught.value)
    cross.refuse_impossible(shipped, order(shipped))


def test_builds_keep_the_mark_by_which_they_are_ended() -> None:
    """A build that clears its environment of it would outlive its container."""
    assert shell_seal.matches(engine.MARK, shell_seal.passing_patterns("linux"))


def test_another_image_has_an_environment_of_the_suite_of_its_own(shipped: Facts) -> None:
    """Its Python is another, so it would delete and make anew what a run in the first image works in."""
    command = cross.plan_container(order(shipped), place(), LINUX).argv[2]
    other = cross.plan_container(replace(order(shipped), image="debian-13"), place(), LINUX).argv[2]
    assert command != other


def test_no_build_is_for_the_processor_of_an_emulator(shipped: Facts) -> None:
    build = order(shipped, "--cpu=native")
    with refused("processor-emulated"):
        cross.plan_container(build, place(), LINUX)
    assert (
        "--cpu=native" in cross.plan_container(build, place(), replace(LINUX, arch="aarch64")).argv
    )
    cross.plan_container(order(shipped, "--cpu=neoverse-v1"), place(), LINUX)


def test_a_password_with_a_bracket_is_passed_on() -> None:
    """The standard library takes the bracket for that of an IPv6 address."""
    index = "https://me:pa[ss@index.example/simple"
    settings = cross.select_settings({}, {"extra-index-url": index}, HERE.__contains__)
    assert settings == PassedSettings({"PIP_EXTRA_INDEX_URL": index}, ())

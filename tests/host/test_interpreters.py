"""Find CPythons without running them, then run the chosen one, and report their faults."""

import json
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.machines import file, made_up_programs, program
from tests.support.refusals import refused
from torchmill.core.errors import HostError
from torchmill.host import interpreters, native

ROOT = Path(__file__).parents[2]

OWN = f"{sys.version_info.major}.{sys.version_info.minor}"

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="made-up interpreters are shell scripts"),
]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def python(
    path: Path, version: str = "", implementation: str = "cpython", *, headers: bool = True
) -> Path:
    """Make a script that answers the probe as a CPython does."""
    version = version or path.name.removeprefix("python")
    include = path.parents[1] / "include" / path.name
    if headers:
        include.mkdir(parents=True, exist_ok=True)
        (include / "Python.h").touch()
    answer = json.dumps([implementation, version, str(include), str(path)])
    return script(path, f"echo '{answer}'")


def broken_shim(home: Path, version: str) -> Path:
    return script(
        home / ".pyenv/shims" / f"python{version}",
        f"echo 'pyenv: python{version}: command not found'; exit 127",
    )


def environ(*folders: Path) -> dict[str, str]:
    return {"PATH": os.pathsep.join(map(str, folders))}


def below(interpreters_found: dict[str, Path], home: Path) -> dict[str, str]:
    """Return the interpreters that the test has made, without those of this machine."""
    return {
        version: str(path.relative_to(home))
        for version, path in interpreters_found.items()
        if path.is_relative_to(home)
    }


UV_FOLDER = ".local/share/uv/python/cpython-3.24.1+freethreaded-linux-x86_64-gnu"


def test_interpreters_are_found_in_all_usual_places(tmp_path: Path) -> None:
    python(tmp_path / "bin/python3.21")
    python(tmp_path / ".pyenv/versions/3.22.4/bin/python3.22")
    python(tmp_path / ".pyenv/versions/3.23.0t/bin/python3.23t")
    python(tmp_path / UV_FOLDER / "bin/python3.24t")
    python(tmp_path / "miniforge3/envs/work/bin/python3.25")
    python(tmp_path / "tools/Python/3.26.1/x64/bin/python3.26")
    paths = interpreters.installed_interpreters(
        environ(tmp_path / "bin") | {"RUNNER_TOOL_CACHE": str(tmp_path / "tools")}, tmp_path
    )
    assert below(paths, tmp_path) == {
        "3.21": "bin/python3.21",
        "3.22": ".pyenv/versions/3.22.4/bin/python3.22",
        "3.23t": ".pyenv/versions/3.23.0t/bin/python3.23t",
        "3.24t": f"{UV_FOLDER}/bin/python3.24t",
        "3.25": "miniforge3/envs/work/bin/python3.25",
        "3.26": "tools/Python/3.26.1/x64/bin/python3.26",
    }


def test_versions_are_sorted_as_numbers(tmp_path: Path) -> None:
    for name in ("python3.30", "python3.9", "python3.31t", "python3.31"):
        python(tmp_path / "bin" / name)
    paths = interpreters.installed_interpreters(environ(tmp_path / "bin"), tmp_path)
    assert list(below(paths, tmp_path)) == ["3.9", "3.30", "3.31", "3.31t"]


def test_the_newest_patch_release_is_chosen(tmp_path: Path) -> None:
    for patch in ("3.22.9", "3.22.10", "3.22.2"):
        python(tmp_path / f".pyenv/versions/{patch}/bin/python3.22")
    paths = interpreters.installed_interpreters({}, tmp_path)
    assert paths["3.22"].parts[-3] == "3.22.10"


def test_other_implementations_and_named_environments_are_no_cpython(tmp_path: Path) -> None:
    python(tmp_path / ".pyenv/versions/pypy3.22-7.3/bin/python3.22")
    python(tmp_path / ".pyenv/versions/work/bin/python3.22")
    assert "3.22" not in interpreters.installed_interpreters({}, tmp_path)


def test_a_free_threaded_python_is_not_the_usual_one_despite_its_name(tmp_path: Path) -> None:
    free = python(tmp_path / "bin/python3.22t")
    (tmp_path / "bin/python3.22").hardlink_to(free)
    (tmp_path / "bin/python3.21").symlink_to(python(tmp_path / "bin/python3.21t").name)
    paths = below(
        interpreters.installed_interpreters(environ(tmp_path / "bin"), tmp_path), tmp_path
    )
    assert paths == {"3.21t": "bin/python3.21t", "3.22t": "bin/python3.22t"}


def test_an_interpreter_with_headers_is_preferred(tmp_path: Path) -> None:
    python(tmp_path / "bin/python3.22", headers=False)
    complete = python(tmp_path / ".pyenv/versions/3.22.0/bin/python3.22")
    assert (
        interpreters.installed_interpreters(environ(tmp_path / "bin"), tmp_path)["3.22"] == complete
    )


def test_versions_without_headers_are_found_by_running_them(tmp_path: Path) -> None:
    bare = python(tmp_path / "bin/python3.22", headers=False)
    python(tmp_path / "bin/python3.23", headers=False)
    python(tmp_path / ".pyenv/versions/3.23.0/bin/python3.23")
    elsewhere = python(
        tmp_path / "bin/python3.24", headers=False
    )  # a distribution may have them elsewhere
    (tmp_path / "include/python3.24-debug").mkdir(parents=True)
    include = tmp_path / "include/python3.24-debug"
    (include / "Python.h").touch()
    script(elsewhere, f"echo '{json.dumps(['cpython', '3.24', str(include), str(elsewhere)])}'")
    script(tmp_path / "bin/python3.25", "exit 1")
    paths = interpreters.interpreters_without_headers(environ(tmp_path / "bin"), tmp_path)
    assert below(paths, tmp_path) == {"3.22": str(bare.relative_to(tmp_path))}


def test_an_interpreter_that_needs_a_library_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LD_LIBRARY_PATH is not set in the environment in which a wheel is tested."""
    answer = json.dumps(["cpython", "3.22", str(tmp_path), str(tmp_path / "bin/python3.22")])
    needy = script(tmp_path / "bin/python3.22", f"[ -n \"$LD_LIBRARY_PATH\" ] && echo '{answer}'")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/python/lib")
    with refused("no-interpreter") as caught:
        interpreters.resolve_interpreter("3.22", environ(tmp_path / "bin"), tmp_path)
    assert f"{needy} ends with exit code 1 without LD_LIBRARY_PATH, as a wheel is tried" in str(
        caught.value
    )


def test_listing_runs_nothing(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    script(tmp_path / "bin/python3.22", f"touch {ran}")
    broken_shim(tmp_path, "3.22")
    path = environ(tmp_path / ".pyenv/shims", tmp_path / "bin")
    assert (
        interpreters.installed_interpreters(path, tmp_path)["3.22"] == tmp_path / "bin/python3.22"
    )
    interpreters.search_path(path, tmp_path)
    assert not ran.exists()


def test_listing_starts_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nox reads its file for each command, and for each word that a shell completes."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a program was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(os, "posix_spawn", refuse)
    assert OWN in interpreters.installed_interpreters()


def test_a_version_behind_a_broken_shim_is_used_silently(tmp_path: Path) -> None:
    broken_shim(tmp_path, "3.22")
    real = python(tmp_path / ".pyenv/versions/3.22.1/bin/python3.22")
    path = environ(tmp_path / ".pyenv/shims")
    assert interpreters.resolve_interpreter("3.22", path, tmp_path) == real
    assert interpreters.broken_shims(path, tmp_path) == {}
    assert interpreters.search_path(path, tmp_path).split(os.pathsep)[:2] == [
        str(tmp_path / ".pyenv/shims"),
        str(real.parent),
    ]


def test_a_broken_shim_without_a_version_is_named(tmp_path: Path) -> None:
    shim = broken_shim(tmp_path, "3.22")
    path = environ(tmp_path / ".pyenv/shims")
    with refused("no-interpreter") as caught:
        interpreters.resolve_interpreter("3.22", path, tmp_path)
    assert str(shim) in str(caught.value)
    assert "`uv python install 3.22`" in str(caught.value)
    assert interpreters.broken_shims(path, tmp_path) == {"3.22": shim}


def test_a_working_shim_is_resolved(tmp_path: Path) -> None:
    real = python(tmp_path / "elsewhere/bin/python3.22")
    script(tmp_path / "shims/python3.22", f'exec {real} "$@"')
    path = environ(tmp_path / "shims")
    assert interpreters.resolve_interpreter("3.22", path, tmp_path) == real
    assert interpreters.broken_shims(path, tmp_path) == {}


def test_the_first_on_path_is_used_as_by_nox(tmp_path: Path) -> None:
    """So an environment that is made again has the same Python."""
    base = tmp_path / ".pyenv"
    selected = python(base / "versions/3.22.1/bin/python3.22")
    (base / "version").write_text("3.22.1\n")
    script(base / "shims/python3.22", f'exec {selected} "$@"')
    other = python(tmp_path / "bin/python3.22")
    first = environ(base / "shims", other.parent)
    assert interpreters.resolve_interpreter("3.22", first, tmp_path) == selected
    last = environ(other.parent, base / "shims")
    assert interpreters.resolve_interpreter("3.22", last, tmp_path) == other


def test_the_python_of_nox_is_preferred_to_path(tmp_path: Path) -> None:
    """So an interrupted environment is made again with the same Python, for the same wheel."""
    home = python(tmp_path / "base/bin" / f"python{OWN}").parents[1]
    other = environ(python(tmp_path / "bin" / f"python{OWN}").parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "base_prefix", str(home))
        assert (
            interpreters.resolve_interpreter(OWN, other, tmp_path) == home / "bin" / f"python{OWN}"
        )
        (home / "include" / f"python{OWN}" / "Python.h").unlink()
        assert (
            interpreters.resolve_interpreter(OWN, other, tmp_path)
            == tmp_path / "bin" / f"python{OWN}"
        )


def test_the_error_for_a_missing_version_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        interpreters.resolve_interpreter("3.22", {}, tmp_path)
    assert str(caught.value) == "no usable CPython 3.22 was found: run `uv python install 3.22`"
    pyenv = tmp_path / "bin" / "pyenv"
    pyenv.parent.mkdir()
    for path, cure in (
        (
            tmp_path / "none",
            "uv has none before 3.8; with https://github.com/pyenv/pyenv, `pyenv install 3.7`",
        ),
        (pyenv.parent, "run `pyenv install 3.7`"),
    ):
        pyenv.write_text("#!/bin/sh\n", encoding="utf-8")
        pyenv.chmod(0o755)
        with pytest.raises(HostError) as caught:
            interpreters.resolve_interpreter(
                "3.7", {"PYENV_ROOT": str(tmp_path), "PATH": str(path)}, tmp_path
            )
        assert str(caught.value) == f"no usable CPython 3.7 was found: {cure}"


def test_all_candidates_are_tried_and_their_faults_reported(tmp_path: Path) -> None:
    folders = [tmp_path / name / "bin" for name in "abcd"]
    python(folders[0] / "python3.22", version="3.22t")
    python(folders[1] / "python3.22", implementation="pypy")
    python(folders[2] / "python3.22", headers=False)
    (folders[3] / "python3.22").mkdir(parents=True)
    with pytest.raises(HostError) as caught:
        interpreters.resolve_interpreter("3.22", environ(*folders), tmp_path)
    for fault in ("is cpython 3.22t", "is pypy 3.22", "lacks its headers", "does not run"):
        assert fault in str(caught.value)
    good = python(tmp_path / "e/bin/python3.22")
    assert (
        interpreters.resolve_interpreter("3.22", environ(*folders, good.parent), tmp_path) == good
    )


def test_the_search_path_keeps_the_order_of_path(tmp_path: Path) -> None:
    python(tmp_path / "b/python3.22")
    new = python(tmp_path / ".pyenv/versions/3.24.0/bin/python3.24")
    old = python(tmp_path / ".pyenv/versions/3.23.0/bin/python3.23")
    path = environ(tmp_path / "b", tmp_path / "a")
    folders = interpreters.search_path(path, tmp_path).split(os.pathsep)
    assert folders[:4] == [
        str(tmp_path / "b"),
        str(tmp_path / "a"),
        str(new.parent),
        str(old.parent),
    ]


def test_the_python_of_this_machine_is_resolved() -> None:
    python_path = interpreters.resolve_interpreter(OWN)
    output = subprocess.run(
        [python_path, "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert output.startswith(f"Python {OWN}.")


@pytest.mark.skipif(
    platform.python_implementation() != "CPython", reason="only CPythons are looked for"
)
def test_nox_finds_every_python_that_is_installed(tmp_path: Path) -> None:
    versions = [
        version
        for version in interpreters.installed_interpreters()
        if version in ("3.10", "3.12", OWN)
    ]
    (tmp_path / "noxfile.py").write_text(
        dedent(f"""\
        import os, sys
        sys.path.insert(0, {str(ROOT)!r})
        import nox
        from torchmill.host.interpreters import search_path
        os.environ["PATH"] = search_path()
        nox.options.error_on_missing_interpreters = True

        for version in {versions!r}:
            @nox.session(name=f"x-{{version}}", python=version)
            def session(session):
                session.run("python", "-c", "import sys; print('ran %d.%d' % sys.version_info[:2])")
        """)
    )
    result = subprocess.run(
        [sys.executable, "-m", "nox"],
        cwd=tmp_path,
        env=os.environ | {"NOX_ENVDIR": str(tmp_path / "nox")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [word for version in versions for word in ("ran", version)]


ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HH", 2, 0xB7) + bytes(44)

MACH = {"x86_64": 0x01000007, "arm64": 0x0100000C}


def mach(machine: str) -> bytes:
    return struct.pack("<II", 0xFEEDFACF, MACH[machine]) + bytes(24)


def universal(*names: str) -> bytes:
    entries = b"".join(struct.pack(">IIIII", MACH[name], 0, 0, 0, 0) for name in names)
    return struct.pack(">II", 0xCAFEBABE, len(names)) + entries + bytes(16)


@pytest.mark.parametrize(
    ("content", "machines"),
    [
        (ELF, {"aarch64"}),
        (mach("x86_64"), {"x86_64"}),
        (mach("arm64"), {"arm64"}),
        (universal("x86_64", "arm64"), {"x86_64", "arm64"}),
        (struct.pack(">II", 0xCAFEBABE, 65) + bytes(64), set()),  # Java
        (b"#!/bin/sh\nexec python3\n" + bytes(20), set()),
        (b"MZ", set()),
    ],
)
def test_the_machine_of_an_executable_is_in_its_header(
    tmp_path: Path, content: bytes, machines: set[str]
) -> None:
    path = tmp_path / "python"
    path.write_bytes(content)
    assert native.machines_of_binary(path) == machines


def test_a_missing_file_is_for_no_machine(tmp_path: Path) -> None:
    assert native.machines_of_binary(tmp_path / "absent") == set()


@pytest.mark.skipif(sys.platform != "linux", reason="an ELF file is wanted")
def test_this_interpreter_is_for_this_machine() -> None:
    assert native.machines_of_binary(Path(sys.executable)) == {platform.machine()}


def test_interpreters_that_cannot_run_natively_are_translated(tmp_path: Path) -> None:
    places = {}
    for version, content in {
        "3.9": mach("x86_64"),
        "3.10": universal("x86_64", "arm64"),
        "3.11": mach("arm64"),
        "3.12": b"#!/bin/sh\n" + bytes(40),
    }.items():
        places[version] = tmp_path / version
        places[version].write_bytes(content)
    assert interpreters.translated_interpreters(places, "arm64") == {"3.9": places["3.9"]}


@made_up_programs
def test_shims_of_versions_not_selected_shadow_interpreters(tmp_path: Path) -> None:
    base = tmp_path / ".pyenv"
    places = {}
    for version, full in {"3.9": "3.9.18", "3.10": "3.10.13"}.items():
        program(base / "shims", f"python{version}")
        places[version] = program(base / f"versions/{full}/bin", f"python{version}")
    file(base / "version", "3.9.18\n")
    environ = {"PATH": os.pathsep.join([str(base / "shims"), "/usr/bin"])}
    shim = base / "shims/python3.10"
    assert interpreters.shadowing_shims(places, environ, tmp_path) == {"3.10": shim}
    chosen = environ | {"PYENV_VERSION": "3.10.13:3.9.18"}
    assert interpreters.shadowing_shims(places, chosen, tmp_path) == {}
    before = {"PATH": f"{base}/versions/3.10.13/bin:{environ['PATH']}"}
    assert interpreters.shadowing_shims(places, before, tmp_path) == {}
    moved = {"PATH": environ["PATH"], "PYENV_ROOT": str(base)}
    assert interpreters.shadowing_shims(places, moved, Path("/nowhere")) == {"3.10": shim}
    (base / "version").unlink()
    assert set(interpreters.shadowing_shims(places, environ, tmp_path)) == {"3.9", "3.10"}


def test_modules_that_a_python_was_compiled_without_are_found(tmp_path: Path) -> None:
    whole, poor, closed = (python(tmp_path / name / "bin/python3.8") for name in ("a", "b", "c"))
    for executable, modules in (
        (whole, ("_socket", "_ssl", "_ctypes", "zlib", "_bz2", "_lzma")),
        (poor, ("_socket", "_ctypes", "zlib", "_lzma")),
        (closed, ("_crypt",)),  # the others are parts of the program
    ):
        for module in modules:
            file(executable.parents[1] / f"lib/python3.8/lib-dynload/{module}.cpython-38.so", "")
    assert interpreters.lacking_modules({"3.8": whole}) == {}
    assert interpreters.lacking_modules({"3.8": poor}) == {"3.8": "_ssl, _bz2"}
    assert interpreters.lacking_modules({"3.8": closed}) == {}

"""The container engine of a machine, found among programs that answer as the real ones do."""

from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.build.containers import engine
from torchmill.core.errors import HostError

DEAD = 'echo "Cannot connect to the Docker daemon at unix:///var/run/docker.sock." >&2; exit 1'


def _program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_docker_is_taken_where_its_daemon_answers(tmp_path: Path) -> None:
    _program(tmp_path, "docker", '[ "$1" = version ] && echo 28.2.2')
    _program(tmp_path, "podman", "echo 5.4.0")
    found = engine.find_engine({"PATH": str(tmp_path)})
    assert found == engine.Engine("docker", str(tmp_path / "docker"), (), "28.2.2")
    assert found.command("build", "--tag", "a") == (str(tmp_path / "docker"), "build", "--tag", "a")


def test_a_client_without_a_daemon_is_passed_over(tmp_path: Path) -> None:
    _program(tmp_path, "docker", DEAD)
    _program(tmp_path, "buildah", '[ "$1" = info ] || echo "buildah version 1.28.2 (image-spec 1.0)"')
    found = engine.find_engine({"PATH": str(tmp_path)})
    assert (found.name, found.version, found.options) == ("buildah", "1.28.2", ())


def test_a_storage_of_copies_is_taken_where_the_kernel_has_no_other(tmp_path: Path) -> None:
    answers = '--version) echo "buildah version 1.28.2" ;; "--storage-driver vfs info"*) ;; *) exit 1 ;;'
    _program(tmp_path, "buildah", f'case "$*" in {answers} esac')
    assert engine.find_engine({"PATH": str(tmp_path)}).options == ("--storage-driver", "vfs")


def test_the_storage_that_a_user_names_is_passed_on(tmp_path: Path) -> None:
    _program(tmp_path, "podman", 'echo "$2"')
    found = engine.find_engine({"PATH": str(tmp_path), "STORAGE_DRIVER": "btrfs"})
    assert (found.options, found.version) == (("--storage-driver", "btrfs"), "btrfs")


def test_no_engine_names_the_three_and_how_to_install_one(tmp_path: Path) -> None:
    with pytest.raises(HostError) as error:
        engine.find_engine({"PATH": str(tmp_path)})
    for word in ("docker", "podman", "buildah", "apt-get install", "dnf install", "brew install"):
        assert word in str(error.value)


def test_an_engine_that_does_not_answer_is_told_with_its_words(tmp_path: Path) -> None:
    _program(tmp_path, "docker", DEAD)
    with refused("no-container-engine") as caught:
        engine.find_engine({"PATH": str(tmp_path)}, "docker")
    assert "docker is installed but does not answer (Cannot connect" in str(caught.value)
    assert str(caught.value).endswith("start its daemon")
    with refused("no-container-engine") as caught:
        engine.find_engine({"PATH": str(tmp_path)})
    assert "or install one that needs no daemon" in str(caught.value)


def test_an_engine_that_is_silent_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ANSWER_TIMEOUT_SECONDS", 0.2)
    _program(tmp_path, "docker", "exec /bin/sleep 60")
    with refused("no-container-engine") as caught:
        engine.find_engine({"PATH": str(tmp_path)}, "docker")
    assert "no answer in" in str(caught.value)


def test_the_engine_that_is_asked_for_is_not_replaced(tmp_path: Path) -> None:
    _program(tmp_path, "docker", "echo 28")
    with refused("no-container-engine") as caught:
        engine.find_engine({"PATH": str(tmp_path)}, "podman")
    assert str(caught.value).startswith("podman is not on PATH")
    with refused("unknown-container-engine"):
        engine.find_engine({"PATH": str(tmp_path)}, "nerdctl")

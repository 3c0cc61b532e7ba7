"""The folder of an index, where a run does not come to its end."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_index import Home
from paper_wheels import made

from torchwright.deliver.index import folder, gathering, state
from torchwright.deliver.index.folder import LINK, Wanted
from torchwright.deliver.index.state import State
from torchwright.errors import DeliveryError, HostError
from torchwright.model import Facts


def _silent(done: int, total: int, name: str) -> None:
    """Note nothing."""


def test_what_a_stopped_run_wrote_is_known_as_ours(tmp_path: Path, known: Facts) -> None:
    home = Home(tmp_path, known)
    made(home.dist)
    home.index()
    page = (home.out / "index.html").read_bytes()
    made(home.dist, version="1.1+cpu")
    made(home.dist, version="1.2+cpu")
    first, second, third = gathering.gathered([home.dist], {}, (), _silent)
    before = state.load(home.out)
    assert before is not None
    wheels = (first, second, replace(third, look="9 9 9"))  # as if it had changed after it was read
    with pytest.raises(DeliveryError, match="was changed while it was read: run the command again"):
        folder.write(home.out, Wanted({"index.html": "new"}, wheels, State()), before, LINK)
    assert (home.out / "index.html").read_bytes() == page, "a page does not name what is not there yet"
    assert (home.out / second.entry.place).exists()
    assert not (home.out / third.entry.place).exists()
    assert home.told()["foreign"] == []
    assert home.names("tinytorch") == [one.entry.file for one in (first, second, third)]


def test_a_copy_that_is_not_what_was_read_does_not_appear(tmp_path: Path, known: Facts) -> None:
    home = Home(tmp_path, known)
    made(home.dist)
    (found,) = gathering.gathered([home.dist], {}, (), _silent)
    with found.path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(DeliveryError, match="was changed while it was read"):
        folder.write(home.out, Wanted({}, (found,), State()), State(), folder.COPY)
    assert [path.name for path in home.out.rglob("*") if path.is_file()] == ["index.json"]


def test_what_cannot_be_written_is_told(tmp_path: Path, known: Facts) -> None:
    home = Home(tmp_path, known)
    made(home.dist)
    (home.out / "index.html").mkdir(parents=True)
    with pytest.raises(DeliveryError, match="which no index wrote"):
        home.index()
    (home.out / "index.html").rmdir()
    home.index()
    (home.out / "index.html").unlink()
    (home.out / "index.html").mkdir()
    with pytest.raises(HostError, match=r"index\.html.*: cannot be written \(.*irectory\): see whose it is"):
        home.index()

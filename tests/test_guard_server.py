"""The guard's loop, where it is not shown by the whole process (test_guard.py)."""

import os
from pathlib import Path

import pytest

from torchmill.guard import server
from torchmill.guard.admission import Admission
from torchmill.guard.clients import listen
from torchmill.guard.expected import Expectations
from torchmill.guard.gauge import Gauge
from torchmill.guard.history import History
from torchmill.guard.jobserver import Pool
from torchmill.guard.orders import Superior
from torchmill.guard.server import Server


def test_what_takes_a_moment_is_done_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RARELY", 0.0)
    reading, writing = os.pipe()
    expectations = Expectations(History(tmp_path / "units.sqlite"), ())
    pool = Pool(tmp_path)
    admission = Admission(expectations, pool, (), lambda: 0.0, lambda _: None)
    gauge = Gauge(lambda _: 2**30, None, lambda: 2)
    serving = Server(listen(tmp_path), Superior(reading), admission, gauge, 10)
    serving.serve(lambda: os.write(writing, b"end\n"))  # without it, it would never end
    serving.close()
    pool.close()
    os.close(reading)
    os.close(writing)

"""The guard's loop, where it is not shown by the whole process (test_guard.py)."""

import os
from pathlib import Path

import pytest

from torchmill.toolchain.guard import server
from torchmill.toolchain.guard.clients import listen
from torchmill.toolchain.guard.command import GuardStarter
from torchmill.toolchain.guard.expectations import NeedHistory, UnitExpectations
from torchmill.toolchain.guard.jobserver import TokenPool
from torchmill.toolchain.guard.scheduler import MemoryProbe, UnitScheduler
from torchmill.toolchain.guard.server import GuardServer


def test_what_takes_a_moment_is_done_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "RARELY", 0.0)
    reading, writing = os.pipe()
    expectations = UnitExpectations(NeedHistory(tmp_path / "units.sqlite"), ())
    pool = TokenPool(tmp_path)
    admission = UnitScheduler(expectations, pool, (), lambda: 0.0, lambda _: None)
    gauge = MemoryProbe(lambda _: 2**30, None, lambda: 2)
    serving = GuardServer(listen(tmp_path), GuardStarter(reading), admission, gauge, 10)
    serving.serve(lambda: os.write(writing, b"end\n"))  # without it, it would never end
    serving.close()
    pool.close()
    os.close(reading)
    os.close(writing)

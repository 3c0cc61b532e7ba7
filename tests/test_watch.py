"""What a build used, measured on real processes."""

import subprocess
import sys
import time

import psutil

from torchwright.guard.watch import Watch, tree_memory

MIB = 2**20


def hold(megabytes: int, seconds: float) -> subprocess.Popen[bytes]:
    code = f"import time; held = b'x' * ({megabytes} * 2**20); print(flush=True); time.sleep({seconds})"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    return child


def test_the_peak_includes_children_and_stays_when_they_are_gone() -> None:
    with Watch(period=0.02) as watch:
        before = watch.current
        child = hold(megabytes=60, seconds=0.2)
        child.wait()
        time.sleep(0.1)
        assert watch.peak - before > 55 * MIB
        assert watch.current - before < 30 * MIB
    peak = watch.peak
    assert peak >= watch.current > 0


def test_grandchildren_count() -> None:
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c',"
        "\"import time; held = b'x' * (60 * 2**20); time.sleep(0.3)\"])"
    )
    with Watch(period=0.02) as watch:
        before = watch.current
        subprocess.run([sys.executable, "-c", code], check=True)
    assert watch.peak - before > 55 * MIB


def test_processor_time_of_children_is_counted_once_they_end() -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass"
    with Watch() as watch:
        assert watch.cpu_seconds < 0.1
        subprocess.run([sys.executable, "-c", code], check=True)
    spent = watch.cpu_seconds
    assert 0.29 <= spent < 5  # a difference of floats
    subprocess.run([sys.executable, "-c", code], check=True)
    assert watch.cpu_seconds == spent  # what comes after is not ours


def test_a_process_that_ended_takes_nothing() -> None:
    child = hold(megabytes=1, seconds=30)
    process = psutil.Process(child.pid)
    assert tree_memory(process) > MIB
    child.kill()
    child.wait()
    assert tree_memory(process) == 0

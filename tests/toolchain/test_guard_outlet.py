"""A pipe whose reader sleeps, is late, or is gone."""

import os
import threading

from torchmill.toolchain.guard.server import BUFFERED_BYTES, NonblockingPipe


def read_all(descriptor: int) -> bytes:
    found = b""
    while block := os.read(descriptor, 65536):
        found += block
    return found


def test_a_late_reader_gets_everything_in_order() -> None:
    reading, writing = os.pipe()
    outlet = NonblockingPipe(writing)
    lines = [f"{number}\n" for number in range(30_000)]  # more than a pipe holds
    for line in lines:
        outlet.write(line)
        outlet.flush()
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(read_all(reading)))
    reader.start()
    outlet.close()
    os.close(writing)
    reader.join()
    os.close(reading)
    assert found[0].decode() == "".join(lines)


def test_a_reader_who_never_comes_costs_no_more_memory_than_that() -> None:
    reading, writing = os.pipe()
    outlet = NonblockingPipe(writing)
    for _ in range(100):
        outlet.write("x" * (BUFFERED_BYTES // 10))
        outlet.flush()
    assert len(outlet._kept) < 2 * BUFFERED_BYTES
    os.close(reading)
    os.close(writing)


def test_a_reader_who_left_is_told_nothing() -> None:
    reading, writing = os.pipe()
    outlet = NonblockingPipe(writing)
    os.close(reading)
    outlet.write("something\n")
    outlet.flush()
    outlet.close()
    os.close(writing)

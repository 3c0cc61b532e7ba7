"""The protocol of the gates, over real sockets."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from guard_support.guards import SOON
from millguard.gate_protocol import (
    LONGEST_COMMAND_BYTES,
    GateClient,
    GateGone,
    GateMessage,
    StartRequest,
    UnitEnded,
    UnitStarted,
    listen,
)

COMMAND = b"/src\0cc\0-c\0a b.cpp\0\0"
ASK = b"ask %d\n%b" % (len(COMMAND), COMMAND)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, GateClient]]:
    gate, ours = socket.socketpair()
    client = GateClient(ours, 1)
    yield gate, client
    gate.close()
    client.close()


def heard(client: GateClient) -> list[GateMessage]:
    return list(client.read_messages())


def test_messages_of_a_gate_are_parsed(pair: tuple[socket.socket, GateClient]) -> None:
    gate, client = pair
    assert heard(client) == []
    gate.sendall(ASK + b"pid 4711\nend 137 1048576 1\n")
    assert heard(client) == [
        StartRequest("/src", ("cc", "-c", "a b.cpp", "")),
        UnitStarted(4711),
        UnitEnded(137, 2**20, killed=True),
    ]
    gate.close()
    assert heard(client) == [GateGone()]


def test_messages_may_arrive_byte_by_byte(pair: tuple[socket.socket, GateClient]) -> None:
    gate, client = pair
    found = []
    for byte in ASK + b"end 0 1 0\n":
        gate.sendall(bytes([byte]))
        found += heard(client)
    assert found == [
        StartRequest("/src", ("cc", "-c", "a b.cpp", "")),
        UnitEnded(0, 1, killed=False),
    ]


def test_a_command_may_be_large_and_no_text(pair: tuple[socket.socket, GateClient]) -> None:
    gate, client = pair
    words = b"/\0cc\0\xff" + b"x" * 2**20 + b"\0"
    sender = threading.Thread(target=gate.sendall, args=(b"ask %d\n%b" % (len(words), words),))
    sender.start()
    found: list[GateMessage] = []
    while not found:
        found += heard(client)
    sender.join()
    (asks,) = found
    assert isinstance(asks, StartRequest)
    assert len(asks.argv[1]) == 2**20 + 1


@pytest.mark.parametrize(
    "said",
    [
        b"\n",
        b"hello\n",
        b"ask\n",
        b"ask x\n",
        b"ask -1\n",
        b"ask %d\n" % (LONGEST_COMMAND_BYTES + 1),
        b"ask 0\n",
        b"ask 2\n/\0",
        b"pid\n",
        b"pid 0\n",
        b"pid 1\n",
        b"pid -7\n",
        b"end 1 2\n",
        b"end a b c\n",
        b"\xff\xfe\n",
        b"z" * 500,
    ],
)
def test_an_invalid_message_ends_the_connection(
    pair: tuple[socket.socket, GateClient], said: bytes
) -> None:
    gate, client = pair
    gate.sendall(b"pid 99\n" + said)
    assert heard(client) == [UnitStarted(99), GateGone()]


def test_words_are_sent_to_the_gate(pair: tuple[socket.socket, GateClient]) -> None:
    gate, client = pair
    client.send("go")
    client.send("again")
    assert gate.recv(100) == b"go\nagain\n"
    gate.close()
    client.send("done")  # nobody hears it, and nothing happens


def test_a_gate_that_does_not_read_is_cut_off(pair: tuple[socket.socket, GateClient]) -> None:
    """It would wait for ever for the word that found no room."""
    gate, client = pair
    gate.settimeout(SOON)
    sent = 0
    while heard(client) == []:
        client.send("stop")
        sent += 1
    received = b""
    block = gate.recv(2**20)
    while block:
        received += block
        block = gate.recv(2**20)
    assert received == b"stop\n" * (sent - 1)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes have one number")
def test_a_process_of_another_namespace_is_not_the_gates(
    pair: tuple[socket.socket, GateClient],
) -> None:
    _, client = pair  # this process is its gate
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        grandchild = int(child.stdout.readline())
        assert client.started_group(child.pid) == child.pid
        assert client.started_group(grandchild) is None
        assert client.started_group(os.getpid()) is None
        os.kill(grandchild, signal.SIGKILL)
    assert client.started_group(child.pid) is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes have one number")
def test_the_compiler_of_a_gate_in_another_namespace_is_its_only_child(
    pair: tuple[socket.socket, GateClient],
) -> None:
    _, client = pair  # this process is its gate
    number_there = 2  # the kernel's own process here, or nobody
    with subprocess.Popen(["sleep", "60"], process_group=0) as child:
        assert client.started_group(number_there) == child.pid
        with subprocess.Popen(["sleep", "60"], process_group=0) as another:
            assert client.started_group(number_there) is None
            another.kill()
        child.kill()


def test_a_socket_is_where_it_was_asked_for(tmp_path: Path) -> None:
    here = Path.cwd()
    with listen(tmp_path):
        assert (tmp_path / "s").is_socket()
        assert Path.cwd() == here
        with pytest.raises(OSError, match="in use"):
            listen(tmp_path)
    with pytest.raises(FileNotFoundError):
        listen(tmp_path / "missing")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_is_not_served_even_in_an_open_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    serving = listen(tmp_path)
    (tmp_path / "s").chmod(0o777)
    script = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX);"
        "os.chdir(sys.argv[1]); os.setuid(65534); s.connect('s');"
        "sys.exit(s.recv(1) != b'')"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    serving.setblocking(True)
    connection, _ = serving.accept()
    client = GateClient(connection, 1)
    assert not client.is_trusted()
    client.close()
    assert process.wait(30) == 0
    serving.close()

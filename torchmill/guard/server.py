"""The guard's loop: it hears the gates and whoever started it, and looks at the memory in time."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable

from torchmill.guard.admission import Admission
from torchmill.guard.clients import Client
from torchmill.guard.gauge import Gauge
from torchmill.guard.orders import Superior

RARELY = 60.0  # seconds
CALM = 0.2  # seconds to the next look: there is time
UNITS_SHARE = 0.04  # of a processor that looking at every single unit may cost


class Server:
    """Serve the gates of one build until its superior says `end`, or is gone.

    Of gates that come all at once `most` are let in, and the others as those leave.
    """

    def __init__(
        self,
        listening: socket.socket,
        superior: Superior,
        admission: Admission,
        gauge: Gauge,
        most: int,
    ) -> None:
        self._most = most
        self._listening, self._superior = listening, superior
        self._admission, self._gauge = admission, gauge
        self._selector = selectors.DefaultSelector()
        self._selector.register(listening, selectors.EVENT_READ, listening)
        self._selector.register(superior, selectors.EVENT_READ, superior)
        self._count = 0  # of all gates that came
        self._there = 0  # of those that are there
        self._units_due = self._due = time.monotonic()  # when to look again

    def serve(self, rarely: Callable[[], object]) -> None:
        """Serve to the end; do `rarely` what takes a moment, now and then while the memory is not short."""
        done = time.monotonic()
        while not (self._superior.wants_the_end or self._superior.gone):
            changed = False
            for key, _ in self._selector.select(max(0.0, self._due - time.monotonic())):
                if key.data is self._superior:
                    self._superior.hear()
                elif key.data is self._listening:
                    self._accept()
                else:
                    changed |= self._attend(key.data)
            now = time.monotonic()
            if changed or now >= self._due:
                self._look(now)
                if now - done > RARELY and self._due - now >= CALM:
                    rarely()
                    done = now

    def close(self) -> None:
        """End the connections, and take no more."""
        self._selector.close()
        self._listening.close()
        self._admission.close()

    def _look(self, now: float) -> None:
        """Look at the memory, do what follows, and set when to look again."""
        if now >= self._units_due:
            worked = time.process_time()
            self._admission.look()
            self._units_due = now + (time.process_time() - worked) / UNITS_SHARE
        # after the units: what they take meanwhile is counted twice rather than not at all
        room = self._gauge.read(now, self._due, self._admission.used)
        self._due = now + self._admission.act(room)

    def _accept(self) -> None:
        while self._there < self._most:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # nobody else came, or left again
                return
            self._count += 1
            self._there += 1
            client = Client(connection, self._count)
            self._selector.register(connection, selectors.EVENT_READ, client)
            self._admission.welcome(client)
        self._selector.unregister(self._listening)

    def _attend(self, client: Client) -> bool:
        """Take what a gate says; return whether it said something."""
        heard = False
        for said in client.hear():
            heard = True
            if not self._admission.take(client, said):
                self._part(client)
                break
        return heard

    def _part(self, client: Client) -> None:
        self._selector.unregister(client.socket)
        client.close()
        if self._there == self._most:
            self._selector.register(self._listening, selectors.EVENT_READ, self._listening)
        self._there -= 1

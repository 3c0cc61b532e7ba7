"""Observers: programs of others that follow a guarded build, such as one that fills a dashboard.

A package offers an observer by an entry point of the group `millguard.observers`, which names a
class derived from BuildObserver, or any other callable without arguments that returns an observer.
The command `millguard` tells every installed observer of its build; a Python program chooses its
observers by `GuardOptions.observers`.
"""

import importlib.metadata
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self

from millguard.timeline import Record

if TYPE_CHECKING:
    from millguard.guarded_command import GuardedResult

GROUP = "millguard.observers"
END_SECONDS = 10.0  # that observers may take for what is left when the build has ended


class BuildObserver:
    """Follow one guarded build; a subclass overrides the methods that it needs.

    The methods are called one at a time, in the order of what happened, from one thread that is not
    the main thread. A slow observer does not hold up the build. An observer that raises an exception
    is told nothing more, and a message names it.
    """

    def on_begin(self, command: Sequence[str], folder: str) -> None:
        """Take the command that is about to be started, and the current folder."""

    def on_record(self, record: Record) -> None:
        """Take what the guard did or measured: a record of `timeline`, several a second."""

    def on_end(self, result: "GuardedResult") -> None:
        """Take how the command ended.

        Observers have END_SECONDS for all that they have not taken yet. Then they are left, and the
        process may end.
        """


def installed_observers() -> tuple[tuple[BuildObserver, ...], list[str]]:
    """Return an observer of each entry point, and a message for each one that cannot be made."""
    observers = []
    problems = []
    for entry_point in importlib.metadata.entry_points(group=GROUP):
        try:
            observer = entry_point.load()()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of a package that is not ours
            problems.append(f"the observer {entry_point.name} cannot be used: {error!r}")
            continue
        if isinstance(observer, BuildObserver):
            observers.append(observer)
        else:
            name = f"{entry_point.name} cannot be used: {entry_point.value}"
            problems.append(f"the observer {name} gives no millguard.BuildObserver")
    return tuple(observers), problems


class ObserverThread:
    """The thread that tells observers of a build, for as long as a context lasts.

    Without observers there is no thread. `problems` has a message for each observer that failed.
    To leave the context takes up to END_SECONDS; what is told outside of it is dropped.
    """

    def __init__(self, observers: Sequence[BuildObserver]) -> None:
        self.problems: list[str] = []
        self._observers = list(observers)
        self._calls: SimpleQueue[Callable[[BuildObserver], None] | None] = SimpleQueue()
        # A daemon: an observer that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="observers", daemon=True)

    def __enter__(self) -> Self:
        if self._observers:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._thread.is_alive():
            return
        self._calls.put(None)
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self.problems.append(f"observers took more than {END_SECONDS:.0f} s, and were left")

    def begin(self, command: Sequence[str], folder: str) -> None:
        """Tell the observers that a command is about to be started."""
        self._tell(lambda observer: observer.on_begin(command, folder))

    def record(self, record: Record) -> None:
        """Tell the observers of a record."""
        self._tell(lambda observer: observer.on_record(record))

    def end(self, result: "GuardedResult") -> None:
        """Tell the observers how the command ended."""
        self._tell(lambda observer: observer.on_end(result))

    def _tell(self, call: Callable[[BuildObserver], None]) -> None:
        if self._thread.is_alive():
            self._calls.put(call)

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            for observer in list(self._observers):
                try:
                    call(observer)
                # SystemExit would end this thread, and the other observers would be told nothing.
                except (Exception, SystemExit) as error:  # noqa: BLE001 - not our package
                    self._observers.remove(observer)
                    name = type(observer).__name__
                    self.problems.append(f"the observer {name} failed, and was left out: {error!r}")

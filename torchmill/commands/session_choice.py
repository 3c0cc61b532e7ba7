"""The choice of nox's sessions: those that a command line can mean; the help of `nox` alone.

`nox -l` loads this: modules that only a run needs are imported in functions.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torchmill.commands.session_matrix import (
    MatrixSession,
    list_sessions,
    matrix_session,
    newest_release_alone,
)
from torchmill.config import selection
from torchmill.core.errors import HostError
from torchmill.core.homes import mark_home
from torchmill.core.lenient_paths import read_text
from torchmill.core.paths import CHECKOUT, Layout, nox_environment_name, nox_environments_folder
from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import name_programs
from torchmill.host.native import native_arch
from torchmill.plan.session_names import MADE_FROM_WHEELS, asked_sessions, split_product

if TYPE_CHECKING:
    from torchmill.config.facts import Facts
    from torchmill.plan.cell import Cell

_LIST_OPTIONS = {"-l", "--list", "--list-sessions"}
_FILTER_OPTIONS = {"-t", "--tags", "-k", "--keywords", "-p", "--python", "--pythons"}
_IMAGE_OPTIONS = {"--image", "--engine"}
_CONTAINER_NAME = re.compile(r"\w[\w-]*-\d[.\w]*-\w+-\w+")  # "wheel-3.10-cpu-aarch64"
# A session's tags for `nox -t` contain the first word of its name and its standing (how well it is
# known to build). "wheel" is both, so that this standing gets another tag.
_TAG_OF_STANDING = {"wheel": "official"}
_HELP = (
    ("nox -s demo", "the main job on a small sample, in a minute"),
    ("invoke build wheel-3.10-cpu --tag v1.13.1", "all of the next three; asks before it begins"),
    ("invoke fetch --tag v1.13.1", "fetch a release and select it\n({selected})"),
    ("invoke doctor wheel-3.10-cpu", "what this machine lacks; --fix brings it"),
    ("nox -s wheel-3.10-cpu", "build that wheel"),
    ("nox -l", "wheels of what is fetched, or of torch"),
    ("invoke --list", "all tasks"),
)
_COMMAND_COLUMNS = 32  # of the help


class NoxCall(NamedTuple):
    """The part of nox's command line that decides which sessions are registered."""

    names: tuple[str, ...]  # of the sessions to run, from -s and NOXSESSION
    lists: bool  # sessions are listed, and none runs
    as_json: bool  # they are listed for a program, which gets the matrix and nothing else
    filtered: bool  # they are chosen by a tag, keyword or Python
    names_product: bool  # a word such as "conda" is somewhere in the line
    asks_for_help: bool  # help of a session's options: nox -s wheel-3.10-cpu -- --help
    names_image: bool  # an image or an engine for containers is named: nothing is crossed
    environments: Path  # the folder with the environments of all sessions

    def environment(self, session: str) -> Path:
        """Return the folder in which nox keeps the environment of a session.

        Nox uses a digest of the name instead if this path is too long: then nothing exists here.
        """
        return self.environments / nox_environment_name(session)


def read_call(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> NoxCall:
    """Return the call of a command line of nox; `words` are those of `sys.argv`."""
    names = asked_sessions(words, environ.get("NOXSESSION", ""))
    options = {word.partition("=")[0] for word in words}
    as_json = "--json" in words
    text = " ".join([*words, *names])
    session_options = words[words.index("--") :] if "--" in words else []
    return NoxCall(
        names=tuple(names),
        lists=as_json or not _LIST_OPTIONS.isdisjoint(words),
        as_json=as_json,
        filtered=not _FILTER_OPTIONS.isdisjoint(options),
        names_product=any(word in text for word in MADE_FROM_WHEELS),
        asks_for_help=not {"-h", "--help"}.isdisjoint(session_options),
        names_image=bool(environ.get("TORCHMILL_IMAGE")) or not _IMAGE_OPTIONS.isdisjoint(options),
        environments=_environments_folder(words),
    )


def _environments_folder(words: Sequence[str]) -> Path:
    """Return the folder of environments: from --envdir, else NOX_ENVDIR, else nox's default."""
    folder = nox_environments_folder()
    for number, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if word == "--":
            break
        if flag != "--envdir":
            continue
        if equals:
            folder = Path(value)
        elif number + 1 < len(words):
            folder = Path(words[number + 1])
    return CHECKOUT / folder


def list_wheel_sessions(call: NoxCall, layout: Layout) -> list[MatrixSession]:
    """Return the sessions that build a wheel on this machine.

    A list without a filter has only packages that are fetched, of the selected release; if none is
    selected, those of the newest torch. All others run as well. Warnings of the facts go to
    standard error.
    """
    tag = selection.selected_tag(layout)
    sessions, warnings = list_sessions(CHECKOUT, native_arch(), tag)
    for warning in warnings:
        sys.stderr.write(as_plain_text(f"warning: {warning}\n"))
    if not call.lists or call.as_json or call.filtered or call.names:
        return sessions
    if tag is None:
        return newest_release_alone(sessions)
    fetched_sessions = []
    for session in sessions:
        if not session.dependent or (layout.sources / session.package).is_dir():
            fetched_sessions.append(session)
    return fetched_sessions


def session_tags(session: MatrixSession) -> list[str]:
    """Return the tags by which `nox -t` finds a wheel's session."""
    standing = _TAG_OF_STANDING.get(session.standing, session.standing)
    return [session.word, session.package, session.variant, session.tag, standing]


def can_have_environment(
    session: MatrixSession, call: NoxCall, layout: Layout, installed: Collection[str]
) -> bool:
    """Tell whether nox is to make an environment for a session, with the Python of the wheel.

    Not if the Python or the source is missing: nox's message would name no cure, and an environment
    without a source is of no use. The session then begins without an environment, and its own
    message says what is missing.
    """
    if call.as_json:
        # Nothing is made, and the Python of an environment is in the JSON.
        return True
    if session.python not in installed:
        return False
    if session.name not in call.names or call.lists:
        # It does not run: the source, which takes time to look up, does not matter.
        return True
    if call.asks_for_help:
        return False
    if call.environment(session.name).exists():
        return True
    from torchmill.fetch.source.source_dir import load_source

    return load_source(layout, session.package, session.tag) is not None


def product_words(session: MatrixSession, call: NoxCall, tag: str | None) -> tuple[str, ...]:
    """Return the first words of the sessions of products that are registered beside a wheel's.

    A product is made of a wheel, as "conda-3.10-cpu" is of "wheel-3.10-cpu". These would be most of
    all sessions, and to register them takes time. So they are registered if the call names some
    product, or if it runs sessions of the selected release (`tag`; None if none is selected).
    """
    runs_selected_release = tag is not None and not call.lists
    if call.as_json or not (call.names_product or runs_selected_release):
        return ()
    return _words_of_products(session.word, dependent=session.dependent)


def _words_of_products(word: str, *, dependent: bool) -> tuple[str, ...]:
    """Return the first words of the sessions that make products of the wheel "WORD-3.10-cpu".

    For torch these are "conda", "libtorch" and others. A package that is built against torch
    (`dependent`) is packed for conda and checked: "conda-WORD", "check-WORD".
    """
    if dependent:
        return (f"conda-{word}", f"check-{word}")
    return MADE_FROM_WHEELS


class OtherSessions(NamedTuple):
    """The sessions of a call that build for another architecture."""

    # In a container: the facts, the cell, and the session's name without the architecture.
    contained: list[tuple[Facts, Cell, str]]
    crossed: list[MatrixSession]  # on this machine, by cross compilers


def list_other_sessions(call: NoxCall, layout: Layout) -> OtherSessions:
    """Return the sessions of a call that build for another architecture.

    Their names end in that architecture: "wheel-3.10-cpu-aarch64".
    """
    if not any(_CONTAINER_NAME.fullmatch(name) for name in call.names):
        return OtherSessions([], [])
    from torchmill.config import remembered_facts
    from torchmill.config.release_lookup import base_package
    from torchmill.plan import cell_lookup
    from torchmill.plan.crossing import is_crossed

    facts = remembered_facts.load_facts(CHECKOUT)
    base = base_package(facts).name
    selected = selection.selected_release(facts, layout)

    def words_of_cell(cell: Cell) -> tuple[str, ...]:
        return _words_of_products(cell.build.session, dependent=cell.build.package != base)

    native = native_arch()
    sessions = OtherSessions([], [])
    for name, cell in cell_lookup.requested_cells(facts, selected, call.names, words_of_cell):
        is_wheel = name == cell.build.identifier(cell.build.arch)
        if is_wheel and not call.names_image and is_crossed(facts, cell.build, native):
            sessions.crossed.append(matrix_session(facts, cell, native))
        else:
            sessions.contained.append((facts, cell, name))
    return sessions


def load_cell(name: str, layout: Layout) -> tuple[Facts, Cell]:
    """Return the facts, and the cell of the session "wheel-3.10-cpu".

    Raises UnknownReleaseError for a name that no session has; the message says which is near.
    """
    from torchmill.config import remembered_facts
    from torchmill.plan import cell_lookup

    facts = remembered_facts.load_facts(CHECKOUT)
    selected = selection.selected_release(facts, layout)
    return facts, cell_lookup.find_cell(facts, name, native_arch(), selected)


def refuse_unknown_names(call: NoxCall, registered: Collection[str], layout: Layout) -> None:
    """Raise UnknownReleaseError for a name like that of a wheel's session that does not exist.

    Nox's own message would not name the nearest session.
    """
    for name in call.names:
        if name not in registered and ("-" in name or "_" in name):
            _, wheel = split_product(name)
            load_cell(wheel, layout)  # raises it, with the nearest names


def prepare_environments(call: NoxCall, sessions: Collection[str], layout: Layout) -> None:
    """Prepare the folder of environments, in which nox will make those of some sessions.

    It is made, the state folder is marked as the user's, and a damaged pyvenv.cfg is deleted.
    Raises HostError for a folder that cannot be written and for a full disk: nox would show a
    traceback.
    """
    from torchmill.core.exits import as_torchmill_error
    from torchmill.core.system_errors import blame_disk

    # Before the environments: they count as the user's only if the state does.
    mark_home(layout)
    missing = [name for name in sessions if not call.environment(name).exists()]
    try:
        call.environments.mkdir(parents=True, exist_ok=True)
        if missing and not os.access(call.environments, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(call.environments))
        for name in sessions:
            settings = call.environment(name) / "pyvenv.cfg"
            # read_text has U+FFFD for bytes that are not UTF-8, as after a crash of the machine.
            # Nox would fail to read such a file; it replaces an environment that has none.
            if "\ufffd" in read_text(settings):
                settings.unlink()
    except OSError as error:
        refusal = as_torchmill_error(error)
        raise HostError(f"{refusal} (`export NOX_ENVDIR=FOLDER`)", code=refusal.code) from None
    # The module venv, which nox runs, does not name the disk that is full.
    full_disk = blame_disk("", call.environments) if missing else None
    if full_disk is not None:
        raise full_disk


def format_help(layout: Layout) -> str:
    """Return the help that `nox` alone prints: commands, each with its purpose beside or below."""
    tag = selection.selected_tag(layout)
    selected = f"selected: {tag}" if tag else "no release is selected"
    margin = " " * _COMMAND_COLUMNS
    lines = []
    for command, meaning in _HELP:
        shown_command = name_programs(command)
        first, *continuation = meaning.format(selected=selected).split("\n")
        if len(shown_command) + 2 <= _COMMAND_COLUMNS:
            lines.append(f"{shown_command:{_COMMAND_COLUMNS}}{first}")
        else:
            lines.append(shown_command)
            lines.append(f"{margin}{first}")
        lines += [f"{margin}{line}" for line in continuation]
    return "\n".join(lines)

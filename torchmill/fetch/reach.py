"""Find out within seconds which addresses do not answer: all are probed at the same time.

An address is probed in two steps: a connection to its host, and then, for a web page, a request.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from torchmill.core.silence import SilentError, silence_limit
from torchmill.core.urls import SCP_URL, hide_password, host_of
from torchmill.fetch.download import connection_complaint, describe_http_error, http_session

VARIABLE = "TORCHMILL_PROBE"  # "off": nothing is probed
ANSWER_SECONDS = 15.0  # for all answers together, unless the limit of silence is shorter
# Statuses by which a server asks for a login, or for fewer requests. They count as answers, because
# the program that downloads later may have the login.
_ANSWERS_OF_A_GUARD = {401, 403, 407, 429}
_LOWEST_ERROR = 400
_WEB = ("http://", "https://")
# Not ssh: its hosts may be aliases that only the user's ssh_config resolves.
_PROBED_SCHEMES = {"http", "https", "git"}


def probe_addresses(
    addresses: Iterable[str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return for each address why it does not answer, as a clause; "" if it answers.

    A path or a file: URL answers if the file exists. Addresses that cannot be probed (ssh, s3) are
    left out. Raises ConfigError for a wrong TORCHMILL_SILENCE.
    """
    if environ.get(VARIABLE, "").lower() == "off":
        return {}
    answers: dict[str, str] = {}
    hosts: dict[str, str] = {}  # address -> URL of its host, so that each host is probed once
    for address in dict.fromkeys(addresses):
        complaint = _local_complaint(address)
        host = _host_url(address)
        if complaint is not None:
            answers[address] = complaint
        elif host is not None:
            hosts[address] = host
    limit = min(ANSWER_SECONDS, silence_limit(environ))
    connections = _probe_all(set(hosts.values()), _connection_complaint, limit)
    # A page is requested only if its host takes connections; otherwise each page would be waited
    # for once more.
    pages = []
    for address, host in hosts.items():
        if not connections[host] and address.startswith(_WEB):
            pages.append(address)
    page_complaints = _probe_all(pages, _page_complaint, limit)
    for address, host in hosts.items():
        answers[address] = page_complaints.get(address, connections[host])
    return answers


def _host_url(address: str) -> str | None:
    """Return the URL of an address's host, with the path "/"; None if it cannot be probed."""
    try:
        parts = urlsplit(address)
    except ValueError:  # http://[bad/
        return None
    if parts.scheme not in _PROBED_SCHEMES:
        return None
    return parts._replace(path="/", query="", fragment="").geturl()


def _local_complaint(address: str) -> str | None:
    """Return why a local file or folder cannot be used, as a clause; "" if it can be.

    None if the address is not one of this machine.
    """
    is_file_url = address.startswith("file://")
    if "://" in address and not is_file_url:
        return None
    if SCP_URL.match(address):
        return None
    if is_file_url:
        path = Path(url2pathname(urlsplit(address).path))
    else:
        path = Path(address)
    try:
        exists = path.exists()
    except OSError as error:
        return f"{path} cannot be read ({(error.strerror or str(error)).lower()})"
    return "" if exists else f"there is no {path}"


def _connection_complaint(url: str) -> str:
    """Return why the host of a URL takes no connection, as a clause; "" if it takes one."""
    complaint = connection_complaint(url)
    if complaint is None:
        return ""
    return f"{host_of(url)} cannot be reached ({complaint})"


def _page_complaint(url: str) -> str:
    """Return why a server does not give a page, as a clause; "" if it does."""
    import requests

    shown_url = hide_password(url).partition("?")[0]
    limit = min(ANSWER_SECONDS, silence_limit())
    try:
        # `stream`: only the headers are read, because the page may be a large file.
        with http_session() as session, session.get(url, stream=True, timeout=limit) as response:
            status = response.status_code
            if status < _LOWEST_ERROR or status in _ANSWERS_OF_A_GUARD:
                return ""
            return f"{shown_url} answers {status} {response.reason}".rstrip()
    except (requests.RequestException, OSError, SilentError) as error:
        return f"{shown_url} cannot be read ({describe_http_error(error)})"
    except ValueError as error:  # a redirect to http://[bad/
        return f"{shown_url} cannot be read ({hide_password(str(error))})"


def _probe_all(
    addresses: Collection[str], probe: Callable[[str], str], limit: float
) -> dict[str, str]:
    """Return what `probe` returns for each address, or a complaint if that takes too long.

    All addresses together have `limit` seconds.

    The thread of a late probe is left to itself: a server that sends a byte now and then would keep
    it for ever, because each byte begins a new timeout.
    """
    complaints: dict[str, str] = {}

    def run_probe(address: str) -> None:
        complaints[address] = probe(address)

    threads = []
    for address in addresses:
        name = f"probe {address}"
        thread = threading.Thread(target=run_probe, args=(address,), daemon=True, name=name)
        thread.start()
        threads.append(thread)
    deadline = time.monotonic() + limit
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    answers = {}
    for address in addresses:
        silence = f"{host_of(address)} gives no answer in {limit:g} s"
        answers[address] = complaints.get(address, silence)
    return answers

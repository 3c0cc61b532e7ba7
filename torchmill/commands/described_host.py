"""The machine of `--host FILE` or `--collect-env FILE`, in place of this one."""

import sys
from pathlib import Path

from torchmill.core.errors import ConfigError
from torchmill.core.log_reader import read_log
from torchmill.core.plain_text import as_plain_text
from torchmill.host.description import load_host
from torchmill.host.host import Host


def load_described_host(host: str, collect_env: str) -> Host | None:
    """Return the machine that one of two files describes; None if both names are "".

    `host` is a host file, `collect_env` the output of a collect_env; what that does not say is
    noted on standard error. Raises ConfigError for both at once, and for a file that is neither.
    """
    if host and collect_env:
        raise ConfigError(
            "--host and --collect-env both describe the machine: give one",
            code="contradictory-options",
        )
    if host:
        return load_host(Path(host))
    if not collect_env:
        return None
    from torchmill.plan.diagnosis.collected_host import read_collected_host

    collected = read_collected_host(read_log(collect_env), collect_env)
    for note in collected.notes:
        sys.stderr.write(as_plain_text(f"{note}\n"))
    return collected.host

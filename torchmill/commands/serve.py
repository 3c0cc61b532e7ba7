"""`invoke serve`: serve the index on this machine's own address."""

from torchmill.commands.command import TaskCommand
from torchmill.deliver.index.server import LOOPBACK, PORT, serve_index

SERVE = TaskCommand(
    serve_index,
    {
        "folder": "the index, by default index/ beside dist/",
        "port": f"the port to listen on, by default {PORT}, or any where that is taken",
        "host": f"the address to listen on, by default {LOOPBACK}: this machine alone; 0.0.0.0 is "
        f"for everybody "
        "who reaches it",
    },
    short_flags=False,
)

#!/bin/sh
# Warns if /dev/shm is too small for the workers of a DataLoader, and runs the command.
size=$(df -Pk /dev/shm 2> /dev/null | { read -r _; read -r _ blocks _ && echo "$blocks"; })
if [ "${size:-0}" -lt 1048576 ]; then
    echo "note: /dev/shm has ${size:-0} KiB. DataLoader workers hand batches over in it:" \
        "run the container with --shm-size=8G or --ipc=host, or they can end with 'Bus error'" \
        "or 'unable to allocate shared memory'." >&2
fi
exec "$@"

"""A container engine for machines that have none: what it is told to run in a container, it runs as it is.

Every place that a mount names is replaced by the folder that is mounted there, and so are their parents.
"""

import sys
from pathlib import Path

# As Linux 6 wrote it on Debian 12, after `update-binfmts --enable qemu-aarch64`.
AARCH64 = """\
enabled
interpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P
flags: PF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""
SCRIPT = """\
#!{python}
import json, os, sys
words = sys.argv[1:]
with open({orders!r}, "a", encoding="utf-8") as file:
    file.write(json.dumps(words) + "\\n")
if words[0] == "info":
    print(json.dumps([{arch!r}, True, False]) if "Arch" in words[-1] else "4.3.1")
    sys.exit()
if words[:2] == ["image", "inspect"]:
    sys.exit(words[2] != "debian-{arch}")
if words[0] != "run":
    sys.exit()
if words[-1] == "-m":
    print({machine!r})
    sys.exit()
places, variables = {{}}, {{}}
while words[1] != "--entrypoint":
    option, value = words[1:3] if words[1] not in ("--rm", "--init") else (words[1], "")
    del words[1 : 3 if value else 2]
    if option == "--mount":
        said = dict(one.split("=", 1) for one in value.split(",") if "=" in one)
        places[said["target"]] = said["source"]
        if os.path.basename(said["target"]) == os.path.basename(said["source"]):
            places.setdefault(os.path.dirname(said["target"]), os.path.dirname(said["source"]))
    elif option == "--env":
        name, equals, value = value.partition("=")
        variables[name] = value if equals else os.environ[name]
argv = [words[2], *words[4:]]
for target in sorted(places, key=len, reverse=True):
    if len(target) > 1:
        argv = [word.replace(target, places[target]) if word.startswith(target) else word for word in argv]
        variables = {{
            name: value.replace(target, places[target]) if value.startswith(target) else value
            for name, value in variables.items()
        }}
os.execvpe(argv[0], argv, {{"PATH": os.environ["PATH"], **variables}})
"""


def podman(folder: Path, arch: str, machine: str) -> Path:
    """Put a "podman" for an arch into a folder; its image debian-ARCH says that it is a `machine`.

    Return the file to which it writes what it is told, a JSON list for each command.
    """
    orders = folder / "orders"
    program = folder / "podman"
    text = SCRIPT.format(python=sys.executable, orders=str(orders), arch=arch, machine=machine)
    program.write_text(text, encoding="utf-8")
    program.chmod(0o755)
    return orders

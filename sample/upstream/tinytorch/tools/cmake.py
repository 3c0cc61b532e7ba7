"""Configure once, build always."""

import subprocess
import sys

FORWARDED = ("USE_", "BUILD_", "CMAKE_")


def build(source, folder, environment):
    """Bring `folder` up to date with `source`; the environment's switches count only the first time."""
    if not (folder / "CMakeCache.txt").exists() or not (folder / "build.ninja").exists():
        configure(source, folder, environment)
    jobs = environment.get("MAX_JOBS")
    run("--build", folder, *(("--", "-j", jobs) if jobs else ()))


def configure(source, folder, environment):
    """Write the CMake cache."""
    defines = {"CMAKE_BUILD_TYPE": "Release", "Python_EXECUTABLE": sys.executable}
    defines.update((name, value) for name, value in environment.items() if name.startswith(FORWARDED))
    defines.pop("CMAKE_GENERATOR", None)
    settings = (f"-D{name}={value}" for name, value in sorted(defines.items()))
    run("-G", "Ninja", "-S", source, "-B", folder, *settings)


def install(folder, prefix):
    """Copy what was built under `prefix`."""
    run("--install", folder, "--prefix", prefix)


def run(*arguments):
    command = ["cmake", *map(str, arguments)]
    print("+", *command, flush=True)
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        sys.exit("Could not find cmake: install it, and ninja with it")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)

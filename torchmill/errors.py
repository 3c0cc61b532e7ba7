"""One tree of errors: each is one sentence (where, what, what to do) and has an exit code of its own."""


class SuiteError(Exception):
    """Something the user can act on: shown as one message, never as a traceback."""

    exit_code = 1


class ConfigError(SuiteError):
    """A fact in build_configs/ or an option is wrong."""

    exit_code = 2


class ImpossibleBuildError(SuiteError):
    """No release supports the cell that was asked for, or a fact forbids it."""

    exit_code = 3


class UnknownReleaseError(SuiteError):
    """The tag, or the identifier, names nothing we know."""

    exit_code = 4


class SourceError(SuiteError):
    """The source is missing, half-made, changed, or not the commit that was recorded."""

    exit_code = 5


class NetworkError(SuiteError):
    """A host that is needed cannot be reached."""

    exit_code = 6


class HostError(SuiteError):
    """This machine lacks a tool, an interpreter, or room."""

    exit_code = 7


class BuildError(SuiteError):
    """A command of the build failed."""

    exit_code = 8


class VerifyError(SuiteError):
    """The wheel was built, but is not what the plan promised."""

    exit_code = 9


class BusyError(SuiteError):
    """Another run works on the same cell or source."""

    exit_code = 10


class MemoryBuildError(SuiteError):
    """One file of the build needs more memory than there is, even with all of it to itself."""

    exit_code = 11


class GpuError(SuiteError):
    """No GPU answers the wheels that shall be tried on one."""

    exit_code = 13


class DeliveryError(SuiteError):
    """What shall be delivered is not what it says, or the place it goes to is somebody else's."""

    exit_code = 14


class InterruptedBuildError(SuiteError):
    """The user stopped the run (exit code of SIGINT in a shell)."""

    exit_code = 130

"""The request of `invoke build`: the wheels that a user asks for, and how."""

from dataclasses import dataclass

from torchmill.plan.build_options import NO_OPTIONS, Options


@dataclass(frozen=True, slots=True)
class SourceWishes:
    """Where a user wants the sources to come from; "" where that is left to the facts."""

    origin: str = ""  # a directory, an archive, a URL, "debian" or "pypi"
    mirror: str = ""  # of repositories
    ref: str = ""  # a branch or commit

    @property
    def words(self) -> list[str]:
        """Return the options of `invoke fetch` that ask for the same: "--from=debian"."""
        options = {"from": self.origin, "mirror": self.mirror, "ref": self.ref}
        return [f"--{name}={value}" for name, value in options.items() if value]


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """The wheels that a user asks for, and how far the command may go without a question."""

    names: tuple[str, ...] = ()  # of packages or cells
    tag: str = ""
    pythons: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()  # "12.1", "cpu"
    gpus: tuple[str, ...] = ()
    source: SourceWishes = SourceWishes()
    options: Options = NO_OPTIONS
    yes: bool = False
    elsewhere: bool = False  # the wheels are for another machine
    dry_run: bool = False

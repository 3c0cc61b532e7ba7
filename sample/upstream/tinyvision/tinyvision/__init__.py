"""Pictures in miniature."""

import tinytorch  # noqa: F401  its library must be loaded before ours

from ._C import *  # noqa: F403
from .version import __version__, git_version  # noqa: F401

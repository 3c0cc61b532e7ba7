"""Compare two wheels file by file: which files only one of them has, which differ, and how.

python benchmarks/compare_wheels.py FIRST.whl SECOND.whl    # exit code 1 if they differ
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torchmill.deliver.wheel_comparison import wheel_differences


def main() -> None:
    """Print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path, metavar="FIRST.whl")
    parser.add_argument("second", type=Path, metavar="SECOND.whl")
    options = parser.parse_args()
    for line in wheel_differences(options.first, options.second):
        print(line)
    same = options.first.read_bytes() == options.second.read_bytes()
    print(f"the same, byte for byte: {same}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()

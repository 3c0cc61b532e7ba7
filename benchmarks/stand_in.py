"""A project of torch's proportions, in minutes: the sample's package with units added to it.

Of 1146 compiles of torch 1.13.1 for CPU 123 depended on Python, with 26 of 155 minutes: 11 of 100, each of
which takes 1.7 times as long as another. So it is here.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample"
TAG = "v1.0.0"
SHARE = 0.11  # of all units depends on Python

# What one of them instantiates decides how long it takes: about 1.1 s, and 1.7 times that.
FREE, DEPENDENT = 2, 4

_UNIT = """{include}#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace {name} {{
template <int N>
struct Word {{
  std::string text;
  int count[N];
  bool operator<(const Word& other) const {{ return text < other.text; }}
}};
template <int N>
int counted(const std::vector<std::string>& lines) {{
  std::unordered_map<std::string, Word<N>> words;
  std::map<int, std::vector<Word<N>>> by_count;
  for (const auto& line : lines) ++words[line].count[line.size() % N];
  for (auto& word : words) by_count[word.second.count[0]].push_back(word.second);
  for (auto& same : by_count) std::stable_sort(same.second.begin(), same.second.end());
  std::function<int(int)> seen = [&](int n) {{ return by_count.count(n) ? N : n; }};
  return seen(static_cast<int>(words.size()));
}}
int run(const std::vector<std::string>& lines) {{ return {calls}{python}; }}
}}  // namespace {name}
"""
_CMAKE = """
file(GLOB dependent_units python/unit*.cpp)
target_sources(_C PRIVATE ${dependent_units})
"""


def write(folder: Path, units: int) -> Path:
    """Write the source with so many units more; return its folder, which is no git repository."""
    source = folder / "tinytorch"
    upstream = SAMPLE / "upstream"
    bits = Path("third_party", "tinybits")
    shutil.copytree(upstream / "tinytorch", source)
    shutil.copytree(
        upstream / "third_party_tinymath", source / "third_party" / "tinymath", dirs_exist_ok=True
    )
    shutil.copytree(
        upstream / "third_party_tinybits",
        source / "third_party/tinymath" / bits,
        dirs_exist_ok=True,
    )
    dependent = round(units * SHARE)
    for number in range(units):
        below = "python" if number < dependent else "src"
        (source / below / f"unit{number}.cpp").write_text(
            _unit(number, number < dependent), encoding="ascii"
        )
    with (source / "CMakeLists.txt").open("a", encoding="utf-8") as file:
        file.write(_CMAKE)
    return source


def _unit(number: int, dependent: bool) -> str:
    count = DEPENDENT if dependent else FREE
    return _UNIT.format(
        include="#include <Python.h>\n" if dependent else "",
        name=f"unit{number}",
        calls=" + ".join(f"counted<{n}>(lines)" for n in range(1, count + 1)),
        python=" + PY_MINOR_VERSION" if dependent else "",
    )


def fetch(source: Path, environment: Mapping[str, str]) -> None:
    """Have the suite fetch the source, with the sample's facts."""
    invoke = [sys.executable, "-m", "invoke", "fetch", f"--tag={TAG}", f"--from={source}"]
    subprocess.run(invoke, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)

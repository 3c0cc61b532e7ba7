"""The stand-in for torch in benchmarks of whole builds: the sample's package with more units, built in minutes.

It has torch's proportions. Of 1146 compiles of torch 1.13.1 for CPU, 123 depended on the Python version, with 26 of
155 minutes: 11 in 100, each of which takes 1.7 times as long as another. A unit here is one C++ file.
"""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample"
TAG = "v1.0.0"
PYTHON_SHARE = 0.11  # of all units include Python.h

# How many templates a unit instantiates, which decides its time: about 1.1 s, and 1.7 times that.
TEMPLATES, PYTHON_TEMPLATES = 2, 4

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


def write_source(folder: Path, units: int) -> Path:
    """Write the source with so many more units; return its folder, which is not a git repository."""
    source = folder / "tinytorch"
    upstream = SAMPLE / "upstream"
    tinymath = source / "third_party" / "tinymath"
    shutil.copytree(upstream / "tinytorch", source)
    shutil.copytree(upstream / "third_party_tinymath", tinymath, dirs_exist_ok=True)
    shutil.copytree(
        upstream / "third_party_tinybits", tinymath / "third_party" / "tinybits", dirs_exist_ok=True
    )
    python_units = round(units * PYTHON_SHARE)
    for number in range(units):
        needs_python = number < python_units
        unit_folder = source / ("python" if needs_python else "src")
        text = _unit_text(number, needs_python)
        (unit_folder / f"unit{number}.cpp").write_text(text, encoding="ascii")
    with (source / "CMakeLists.txt").open("a", encoding="utf-8") as file:
        file.write(_CMAKE)
    return source


def _unit_text(number: int, needs_python: bool) -> str:
    templates = PYTHON_TEMPLATES if needs_python else TEMPLATES
    calls = (f"counted<{argument}>(lines)" for argument in range(1, templates + 1))
    return _UNIT.format(
        include="#include <Python.h>\n" if needs_python else "",
        name=f"unit{number}",
        calls=" + ".join(calls),
        python=" + PY_MINOR_VERSION" if needs_python else "",
    )


def fetch_source(source: Path, environment: Mapping[str, str]) -> None:
    """Run `invoke fetch` on the source; the environment names the sample's facts and the home."""
    invoke = [sys.executable, "-m", "invoke", "fetch", f"--tag={TAG}", f"--from={source}"]
    subprocess.run(invoke, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)

"""Failures that real tools are made to have: files, and the shell command that fails by them.

`{python}` is this interpreter without anything installed, `{pip}` the pip of this environment.
"""

from typing import NamedTuple

NO_LANGUAGE = "cmake_minimum_required(VERSION 3.10)\nproject(x NONE)\n"


class Case(NamedTuple):
    """One provoked failure."""

    cause: str  # the entry of the catalogue that its output must be told by
    command: str
    files: dict[str, str]
    tools: str = ""  # that must be there, blank between


def _cpp(cause: str, text: str, flags: str = "", file: str = "a.cpp") -> Case:
    return Case(cause, f"g++ {flags} -c {file}", {file: text}, "g++")


def _header(cause: str, name: str) -> Case:
    """Miss a header, also where it is installed."""
    return Case(cause, "gcc -nostdinc -I. -c a.c", {"a.c": f"#include <{name}>\n"}, "gcc")


def _import(cause: str, name: str) -> Case:
    return Case(cause, f"{{python}} -c 'import {name}'", {})


def _cmake(cause: str, text: str, before: str = "") -> Case:
    return Case(cause, f"{before} cmake -S . -B build", {"CMakeLists.txt": text}, "cmake")


def _ld(cause: str, library: str) -> Case:
    """Miss a library, also where it is installed."""
    return Case(cause, f"ld -nostdlib -l{library}", {}, "ld")


def _nvcc(cause: str, text: str, flags: str = "") -> Case:
    return Case(cause, f"nvcc {flags} -c a.cu", {"a.cu": text}, "nvcc g++")


CASES = [
    # the machine
    Case("memory", "ulimit -v 60000; g++ -O2 -c a.cpp", {"a.cpp": "#include <regex>\n"}, "g++"),
    Case("memory", "sh -c 'kill -9 $$'", {}),
    Case(
        "memory",
        "ninja",
        {"build.ninja": "rule r\n  command = sh -c 'kill -9 $$$$'; exit 137\nbuild x: r\n"},
        "ninja",
    ),
    Case("memory", "{python} -c 'x = [0] * (1 << 62)'", {}),
    Case("disk-full", "g++ -c a.cpp -o /dev/full", {"a.cpp": "int f() { return 1; }\n"}, "g++"),
    Case("disk-full", "{python} -c 'print(1)' > /dev/full", {}),
    Case(
        "quota",
        "ulimit -f 1; {python} fill.py",
        {
            "fill.py": "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "for _ in range(2):\n    open('x', 'ab', 0).write(bytes(1 << 20))\n"
        },
    ),
    Case(
        "open-files", "ulimit -n 8; {python} -c 'x = [open(\"/dev/null\") for _ in range(9)]'", {}
    ),
    # the source and the network
    Case(
        "submodule-missing",
        "mkdir -p third_party/fmt; cmake -S . -B build",
        {"CMakeLists.txt": f"{NO_LANGUAGE}add_subdirectory(third_party/fmt)\n"},
        "cmake",
    ),
    Case(
        "submodule-commit-gone",
        "git init -q . && git read-tree 49444c3e546bf240bed24a101e747422d1f8a0ee; "
        "git checkout -q --detach 49444c3e546bf240bed24a101e747422d1f8a0ee",
        {},
        "git",
    ),
    Case(
        "dubious-ownership",
        "git init -q . && GIT_TEST_ASSUME_DIFFERENT_OWNER=1 git status",
        {},
        "git",
    ),
    Case("network", "git clone -q http://127.0.0.1:1/x.git", {}, "git"),
    _cmake(
        "configure-download",
        f"{NO_LANGUAGE}include(FetchContent)\nFetchContent_Declare(y GIT_REPOSITORY nowhere/y.git)\n"
        "FetchContent_MakeAvailable(y)\n",
    ),
    # tools
    _cmake("compiler-missing", "cmake_minimum_required(VERSION 3.10)\nproject(x C)\n", "CC=/nope"),
    Case(
        "tool-missing",
        "cmake=$(command -v cmake); PATH=/nowhere $cmake -G Ninja -S . -B build",
        {"CMakeLists.txt": NO_LANGUAGE},
        "cmake",
    ),
    _cmake("cmake-too-old", "cmake_minimum_required(VERSION 9.1)\n"),
    Case(
        "stale-cache",
        "cmake -S a -B build && cmake -S b -B build",
        {"a/CMakeLists.txt": NO_LANGUAGE, "b/CMakeLists.txt": NO_LANGUAGE},
        "cmake",
    ),
    Case(
        "stale-cache",
        "cmake -G Ninja -S . -B build && cmake -G 'Unix Makefiles' -S . -B build",
        {"CMakeLists.txt": NO_LANGUAGE},
        "cmake ninja make",
    ),
    Case("half-configured", "ninja", {}, "ninja"),
    Case(
        "clock-skew",
        "touch -t 209901010000 in; ninja",
        {
            "build.ninja": "rule again\n  command = true\n  generator = 1\nbuild build.ninja: again in\n"
        },
        "ninja",
    ),
    Case("command-too-long", "/bin/true $(seq 1 500000)", {}, "seq"),
    # Python
    _header("python-headers", "Python.h"),
    _header("numpy-headers", "numpy/arrayobject.h"),
    _import("python-module", "yaml"),
    _import("wheel-missing", "setuptools"),
    _import("pkg-resources", "pkg_resources"),
    _import("torch-not-seen", "torch"),
    _cpp("python-name-of-another-release", "int n = PyUnicode_AS_UNICODE(0);\n"),
    _cpp(
        "numpy-name-of-another-release",
        "struct PyArray_Descr {};\nint f(PyArray_Descr *d) { return d->elsize; }\n",
    ),
    # C++ and the libraries in third_party/
    _cpp("missing-cstdint", "#include <cstddef>\nuint32_t f();\n"),
    _cpp("missing-include", "#include <cstddef>\nint m = std::numeric_limits<int>::max();\n"),
    _cpp("c++-standard-too-low", "#include <optional>\nstd::optional<int> f();\n", "-std=c++14"),
    _cpp("c++-standard-too-low", "", "-std=c++99"),
    _cpp("gloo", "#include <utility>\nstd::array<char, 64> name;\n", file="gloo/gloo/device.cc"),
    _cpp(
        "breakpad",
        "#include <algorithm>\nlong size();\nint n = std::max(16384, size());\n",
        file="breakpad/src/handler.cc",
    ),
    _cpp(
        "fbgemm",
        "int f(int b) { int x; return x + b; }\n",
        "-O2 -Wall -Werror",
        "third_party/fbgemm/src/a.cc",
    ),
    _cpp("warning-as-error", "void f() { int x; }\n", "-Wall -Werror"),
    _cpp("kineto", "#include <ActivityType.h>\n"),
    _cpp("flatbuffers", 'static_assert(2 == 23, "Non-compatible flatbuffers version included");\n'),
    _cpp("protobuf", "#error This file was generated by a newer version of protoc which is\n"),
    _cpp("march-native", "", "-march=nonsense"),
    _header("media-headers", "jpeglib.h"),
    _cpp("header-missing", "#include <nope.h>\n"),
    # linking
    Case(
        "relocation-overflow",
        "gcc -fno-pie -no-pie a.c -o a",
        {"a.c": "char big[3ul << 30];\nint after;\nint main(void) { return after + big[5]; }\n"},
        "gcc x86_64",
    ),
    Case(
        "not-position-independent",
        "gcc -fno-pic -c a.c && gcc -shared a.o -o a.so",
        {"a.c": "int x;\nint *f(void) { return &x; }\n"},
        "gcc x86_64",
    ),
    _ld("blas", "openblas"),
    _ld("numa", "numa"),
    _ld("library-missing", "nope"),
    Case(
        "magma",
        "gcc a.c",
        {"a.c": "int magma_init(void);\nint main(void) { return magma_init(); }\n"},
        "gcc",
    ),
    Case(
        "c++-abi",
        "g++ -shared -fPIC a.cpp -o a.so && {python} -c 'import ctypes; ctypes.CDLL(\"./a.so\", 2)'",
        {"a.cpp": "namespace c10 { void f(); }\nvoid g() { c10::f(); }\n"},
        "g++",
    ),
    Case(
        "program-of-another-processor",
        "chmod +x x && {python} -c 'import subprocess; subprocess.run([\"./x\"])'",
        {"x": "\x7fELF"},
    ),
    # CUDA
    _nvcc("gpu-of-another-toolkit", "", "-arch=sm_35"),
    _nvcc("compiler-too-new-for-cuda", "", "-D__GNUC__=99"),
    _cmake(
        "nvcc-missing",
        "cmake_minimum_required(VERSION 3.18)\nproject(x CUDA)\n",
        "CUDACXX=/nope/nvcc CUDA_PATH= PATH=/usr/bin:/bin",
    ),
    _header("cudnn", "cudnn.h"),
    _header("cuda-header-missing", "cuda_runtime.h"),
    # what was built, and what says little
    Case(
        "illegal-instruction",
        "gcc a.c && ./a.out",
        {"a.c": "int main(void) { __builtin_trap(); }\n"},
        "gcc",
    ),
    Case("interrupted", "{python} -c 'import os; os.kill(os.getpid(), 2)'", {}),
    Case("locale", '{python} -c \'open("a", encoding="ascii").read()\'', {"a": "ü"}),
    Case("permission", "./x", {"x": "#!/bin/sh\n"}),
    _import("python-module-missing", "nope"),
]

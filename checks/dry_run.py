"""Run a setup.py without building anything, and write down what it asks setuptools to build.

    python dry_run.py request.json answer.json

The request has a list of scenarios, each with a folder of sources, an environment and a toolkit; the
answer has a record for each, in the same order. Every scenario runs in a process of its own, which
is forked after torch was imported once. `setuptools.setup` only records its arguments. In a scenario
with "compile", the smallest file of a language is compiled by torch's own build command, and nothing
is linked.

No program of a setup.py can reach a network if the caller starts this one without. Python's own
connections are refused here as well, because the refusal tells which host was asked for.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
import types

_THIS_FILE = os.path.abspath(__file__)
_POLL_SECONDS = 0.02
# Times the seconds that a scenario may compute: other programs have the processors, too.
_PATIENCE = 4
_DOWNLOADERS = ("curl", "wget", "aria2c")
_GIT_TRANSFERS = ("clone", "fetch", "pull", "submodule")
# Modules that pass on a request for a variable: the caller is behind them.
_LOOKUP_FILES = (
    os.path.abspath(os.__file__),
    "<frozen os>",
    "<frozen _collections_abc>",
    _THIS_FILE,
)
_TEXT_LIMIT = 400  # characters of an error


class Recorded(BaseException):
    """setup() was called, and nothing after it matters."""


class Record:
    """What one run of a setup.py did."""

    def __init__(self, root):
        self.root = root
        self.variables = {}  # name -> [default, "setup.py:12"]
        self.network = []  # hosts, and commands that download
        self.programs = []
        self.changed = {}  # variables that it set
        self.setup = None
        self.requires = []  # of a build backend
        self.error = None

    def note_network(self, entry):
        if entry not in self.network:
            self.network.append(entry)

    def note_program(self, line):
        self.programs.append(line[:_TEXT_LIMIT])
        if downloads(line):
            self.note_network(line[:_TEXT_LIMIT])

    def as_data(self):
        return {
            "variables": self.variables,
            "network": self.network,
            "programs": self.programs[:20],
            "changed": self.changed,
            "setup": self.setup,
            "requires": self.requires,
            "error": self.error,
        }


def place_of_caller(root):
    """Return "setup.py:12" of the code below `root` that asks; "" if something else asks."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if os.path.abspath(name) not in _LOOKUP_FILES and name not in _LOOKUP_FILES:
            break
        frame = frame.f_back
    if frame is None:
        return ""
    name = frame.f_code.co_filename
    path = os.path.abspath(name)
    if name.startswith("<") or not path.startswith(root + os.sep):
        return ""
    return "{}:{}".format(os.path.relpath(path, root), frame.f_lineno)


def watch_variables(record):
    """Let os.environ note which variables the package's own code asks for."""
    usual = type(os.environ)

    class Watched(usual):
        def _note(self, name, default):
            place = place_of_caller(record.root)
            if place and isinstance(name, str):
                text = None if default is None else str(default)
                record.variables.setdefault(name, [text, place])

        def __getitem__(self, name):
            self._note(name, None)
            return usual.__getitem__(self, name)

        def __contains__(self, name):
            self._note(name, None)
            return usual.__contains__(self, name)

        def get(self, name, default=None):
            self._note(name, default)
            try:
                return usual.__getitem__(self, name)
            except KeyError:
                return default

    watched = Watched.__new__(Watched)
    watched.__dict__.update(os.environ.__dict__)
    os.environ = watched


def watch_network(record):
    """Refuse Python's connections, and note them and the programs that are started."""

    def refuse(host):
        record.note_network(str(host))
        raise OSError("no network in a dry run")

    def hook(event, arguments):
        if event in ("socket.getaddrinfo", "socket.gethostbyname"):
            refuse(arguments[0])
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            refuse(arguments[1][0])
        elif event == "subprocess.Popen":
            record.note_program(" ".join(words(arguments[1])))
        elif event == "os.system":
            record.note_program(" ".join(words(arguments[0])))

    if hasattr(sys, "addaudithook"):
        sys.addaudithook(hook)


def downloads(line):
    """Tell whether a command would reach a network."""
    words = [word.rpartition("/")[2] for word in line.replace("&&", " ").split()]
    if any(word in _DOWNLOADERS for word in words):
        return True
    if "pip" in words and ("install" in words or "download" in words):
        return True
    return "git" in words and any(word in _GIT_TRANSFERS for word in words)


def stand_in_torch(described):
    """Put modules in place of torch, with as much of it as a setup.py usually reads."""
    import setuptools

    def module(name, **values):
        made = types.ModuleType(name)
        made.__dict__.update(values)
        made.__path__ = []
        sys.modules[name] = made
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)
        return made

    version = described["version"]
    folder = os.path.join(os.path.dirname(_THIS_FILE), "torch")
    torch = module("torch", __version__=version, __file__=os.path.join(folder, "__init__.py"))
    module("torch.version", __version__=version, cuda=described["cuda"] or None, hip=None)
    module("torch.cuda")
    module("torch.cuda.nccl", version=lambda: (2, 27, 3))
    module("torch.__config__", parallel_info=lambda: "ATen parallel backend: OpenMP")
    module("torch._C", _GLIBCXX_USE_CXX11_ABI=True)
    torch.compiled_with_cxx11_abi = lambda: True
    module("torch.backends")
    module("torch.backends.cuda", is_built=lambda: bool(described["cuda"]))
    module("torch.backends.cudnn", is_available=lambda: False, version=lambda: None)
    module("torch.backends.openmp", is_available=lambda: True)
    module("torch.utils")

    class BuildExtension(setuptools.Command):
        @classmethod
        def with_options(cls, **options):
            class Chosen(cls):
                use_ninja = options.get("use_ninja", True)

            return Chosen

    extension = module(
        "torch.utils.cpp_extension",
        BuildExtension=BuildExtension,
        CUDA_HOME=None,
        ROCM_HOME=None,
        IS_HIP_EXTENSION=False,
        include_paths=lambda *_, **__: [],
        library_paths=lambda *_, **__: [],
        is_ninja_available=lambda: True,
        TORCH_LIB_PATH=os.path.join(folder, "lib"),
    )

    def cpp(name, sources, *args, **settings):
        return setuptools.Extension(name, sources, *args, **with_dictionary(settings))

    def cuda(name, sources, *args, **settings):
        if extension.CUDA_HOME is None:
            raise OSError("CUDA_HOME environment variable is not set.")
        return setuptools.Extension(name, sources, *args, **with_dictionary(settings))

    def with_dictionary(settings):
        settings.pop("dlink", None)
        settings.pop("dlink_libraries", None)
        return settings

    extension.CppExtension = cpp
    extension.CUDAExtension = cuda
    extension.SyclExtension = cpp


def set_torch(scenario):
    """Give torch the toolkit and the GPU of a scenario, whatever this machine has."""
    if "torch" not in sys.modules:
        return
    import torch
    from torch.utils import cpp_extension

    home = scenario.get("cuda_home")
    cpp_extension.CUDA_HOME = home
    # A build without CUDA is made against a torch without CUDA.
    torch.version.cuda = scenario.get("cuda") if home else None
    # Some setup.py look for "cu" in the version, which official wheels call themselves, on PyPI too.
    public = str(torch.__version__).partition("+")[0]
    label = "cu" + (scenario.get("cuda") or "").replace(".", "") if home else "cpu"
    torch.__version__ = torch.version.__version__ = type(torch.__version__)(public + "+" + label)
    torch.has_cuda = bool(home)
    torch.backends.cuda.is_built = lambda: bool(home)
    has_gpu = bool(scenario.get("gpu"))
    torch.cuda.is_available = lambda: has_gpu
    torch.cuda.device_count = lambda: int(has_gpu)
    if has_gpu:
        capability = tuple(scenario.get("capability") or (9, 0))
        torch.cuda.get_device_capability = lambda *_: capability
        torch.cuda.get_device_name = lambda *_: "a GPU"
        torch.cuda.current_device = lambda: 0
    for kind in ("CppExtension", "CUDAExtension", "SyclExtension"):
        make = getattr(cpp_extension, kind, None)
        if make is not None:
            setattr(cpp_extension, kind, marking(make, kind))


def marking(make, kind):
    """Return torch's function for an extension, with a mark on what it makes."""

    def make_marked(*args, **settings):
        extension = make(*args, **settings)
        extension.made_by = kind
        return extension

    return make_marked


def words(value):
    """Return a value as a list of texts."""
    if value is None:
        return []
    if isinstance(value, (str, bytes)):
        return [value if isinstance(value, str) else value.decode("utf-8", "replace")]
    try:
        return [
            item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)
            for item in value
        ]
    except TypeError:
        return [str(value)]


def describe_extension(extension, root):
    """Return an extension as JSON-ready data."""
    arguments = getattr(extension, "extra_compile_args", None) or []
    if not isinstance(arguments, dict):
        arguments = {"cxx": arguments, "nvcc": arguments}
    defines = []
    for macro in getattr(extension, "define_macros", None) or []:
        name, value = [*macro, None][:2]
        defines.append(str(name) if value is None else "{}={}".format(name, value))
    kind = getattr(extension, "made_by", "") or type(extension).__name__
    return {
        "name": str(getattr(extension, "name", "")),
        "kind": kind,
        "sources": [relative(source, root) for source in words(getattr(extension, "sources", []))],
        "flags": {str(language): words(flags) for language, flags in arguments.items()},
        "defines": defines,
        "includes": [
            relative(folder, root) for folder in words(getattr(extension, "include_dirs", []))
        ],
        "libraries": words(getattr(extension, "libraries", [])),
        "link_flags": words(getattr(extension, "extra_link_args", [])),
        "limited_api": bool(getattr(extension, "py_limited_api", False)),
    }


def relative(path, root):
    """Return a path below `root` as relative to it; any other path as it is."""
    if os.path.isabs(path) and (path + os.sep).startswith(root + os.sep):
        return os.path.relpath(path, root)
    return path


def uses_ninja(command, distribution):
    """Tell whether torch's build command compiles with ninja; None if that cannot be told."""
    try:
        return bool(command(distribution).use_ninja)
    except Exception:
        return None


def make_distribution(attributes):
    """Return setuptools' distribution of the arguments of setup(), without requirements to fetch."""
    from setuptools import Distribution

    distribution = Distribution(attributes)
    distribution.script_name = "setup.py"
    distribution.parse_config_files()
    if hasattr(distribution, "set_defaults"):
        distribution.set_defaults()
    return distribution


def record_setup(record, scenario, attributes):
    """Note the arguments of setup(); compile one file if the scenario says so."""
    needed = words(attributes.pop("setup_requires", None))
    raw = {name: attributes.get(name) for name in ("name", "version", "python_requires")}
    build_command = (attributes.get("cmdclass") or {}).get("build_ext")
    extensions = list(attributes.get("ext_modules") or [])
    packages = words(attributes.get("packages"))
    modules = words(attributes.get("py_modules"))
    installs = words(attributes.get("install_requires"))
    distribution = None
    try:
        distribution = make_distribution(dict(attributes))
        metadata = distribution.metadata
        raw["name"] = raw["name"] or metadata.name
        raw["version"] = raw["version"] or metadata.version
        raw["python_requires"] = str(distribution.python_requires or "") or raw["python_requires"]
        packages = packages or words(distribution.packages)
        modules = modules or words(distribution.py_modules)
        extensions = extensions or list(distribution.ext_modules or [])
        installs = installs or words(distribution.install_requires)
    except BaseException as error:
        record.programs.append("metadata: {}".format(last_line(error)))
    ninja = None
    if build_command is not None and distribution is not None:
        ninja = uses_ninja(build_command, distribution)
    package_dir = attributes.get("package_dir") or getattr(distribution, "package_dir", None) or {}
    record.setup = {
        "name": text_or_none(raw["name"]),
        "version": text_or_none(raw["version"]),
        "requires_python": text_or_none(raw["python_requires"]),
        "packages": packages,
        "modules": modules,
        "package_dir": {str(name): str(folder) for name, folder in dict(package_dir).items()},
        "extensions": [describe_extension(extension, record.root) for extension in extensions],
        "setup_requires": needed,
        "install_requires": installs,
        "use_ninja": ninja,
        "wheel_tag": wheel_tag(attributes, distribution),
    }
    if scenario.get("compile"):
        attributes["ext_modules"] = extensions
        compile_one(record, scenario["compile"], attributes)


def wheel_tag(attributes, distribution):
    """Return the tag of one wheel for several Pythons, "cp39-abi3"; "" for a wheel for this one."""
    options = attributes.get("options") or {}
    value = (options.get("bdist_wheel") or {}).get("py_limited_api")
    if distribution is None:
        return "{}-abi3".format(value) if value else ""
    if not value:
        # From setup.cfg, with the place that it is from.
        value = distribution.get_option_dict("bdist_wheel").get("py_limited_api", ("", ""))[1]
    if value:
        return "{}-abi3".format(value)
    command_class = (attributes.get("cmdclass") or {}).get("bdist_wheel")
    if command_class is None:
        return ""
    try:
        command = command_class(distribution)
        command.ensure_finalized()
        python, abi = command.get_tag()[:2]
    except Exception:  # whatever a class of the package raises
        return ""
    return "{}-{}".format(python, abi) if abi in ("abi3", "none") else ""


def text_or_none(value):
    """Return a value as text; None stays."""
    return None if value is None else str(value)


def smallest(extensions, suffixes):
    """Return the extension and the source that is the smallest file with one of the suffixes."""
    choices = []
    for extension in extensions:
        for source in words(extension.sources):
            if source.endswith(suffixes) and os.path.isfile(source):
                choices.append((os.path.getsize(source), source, extension))
    if not choices:
        return None
    _, source, extension = min(choices, key=lambda choice: choice[:2])
    return extension, source


def compile_one(record, request, attributes):
    """Compile the smallest file of a language by the package's own build command."""
    choice = smallest(attributes["ext_modules"], tuple(request["suffixes"]))
    if choice is None:
        record.setup["compiled"] = None
        return
    extension, source = choice
    extension.sources = [source]
    # As a build does: ninja compiles in another folder.
    extension.include_dirs = [os.path.abspath(folder) for folder in extension.include_dirs]
    attributes["ext_modules"] = [extension]
    distribution = make_distribution(attributes)
    command = distribution.get_command_obj("build_ext")
    command.build_temp = os.path.join(request["folder"], "temp")
    command.build_lib = os.path.join(request["folder"], "lib")
    command.inplace = False
    command.ensure_finalized()
    for name in ("distutils.ccompiler", "setuptools._distutils.ccompiler"):
        try:
            compiler = importlib.import_module(name).CCompiler
        except (ImportError, AttributeError):
            continue
        compiler.link_shared_object = lambda *_, **__: None
        compiler.link = lambda *_, **__: None
    try:
        from setuptools._distutils.compilers.C import base

        base.Compiler.link_shared_object = lambda *_, **__: None
        base.Compiler.link = lambda *_, **__: None
    except ImportError:
        pass
    start = time.time()
    error = ""
    try:
        command.run()
    except BaseException as problem:
        error = last_line(problem)
    objects = []
    for _, _, names in os.walk(request["folder"]):
        objects += [name for name in names if name.endswith((".o", ".obj"))]
    record.setup["compiled"] = {
        "source": relative(source, record.root),
        "objects": len(objects),
        "seconds": round(time.time() - start, 1),
        "error": "" if objects else (error or "no object file was made"),
    }


def last_line(error):
    """Return the name of an exception and the last line of its text."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[-1].strip()[:_TEXT_LIMIT] if lines else ""
    return "{}: {}".format(type(error).__name__, text) if text else type(error).__name__


def place_of_error(error, root):
    """Return "setup.py:12" of the innermost code of the package that an exception went through."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = os.path.abspath(frame.filename)
        if path.startswith(root + os.sep):
            place = "{}:{}".format(os.path.relpath(path, root), frame.lineno)
    return place


def run_setup(record, scenario):
    """Run the setup.py of a scenario, and fill its record."""
    root = record.root
    os.chdir(root)
    os.environ.clear()
    os.environ.update(scenario["variables"])
    sys.argv = ["setup.py", "bdist_wheel"]
    sys.path.insert(0, root)
    set_torch(scenario)
    watch_variables(record)
    watch_network(record)
    if scenario.get("backend"):
        try:
            record.requires = backend_requirements(scenario["backend"])
        except BaseException as error:
            record.error = describe_error(error, root)
        return
    import setuptools

    def setup(**attributes):
        # A setup.py may call it again without its extensions if the first call has failed.
        if record.setup is None:
            record_setup(record, scenario, attributes)
        raise Recorded

    setuptools.setup = setup
    for name in ("distutils.core", "setuptools._distutils.core"):
        try:
            importlib.import_module(name).setup = setup
        except ImportError:
            continue
    try:
        call_setup(root, setup)
        if record.setup is None:
            record.error = {"kind": "nothing", "text": "setup() was not called", "place": ""}
    except Recorded:
        pass
    except BaseException as error:
        record.error = describe_error(error, root)
    given = scenario["variables"]
    record.changed = {
        name: value for name, value in dict(os.environ).items() if given.get(name) != value
    }


def backend_requirements(described):
    """Return what a backend requires for a wheel: https://peps.python.org/pep-0517/"""
    sys.path[:0] = [os.path.abspath(folder) for folder in described["path"]]
    name, _, attribute = described["name"].partition(":")
    backend = importlib.import_module(name)
    for part in filter(None, attribute.split(".")):
        backend = getattr(backend, part)
    hook = getattr(backend, "get_requires_for_build_wheel", None)
    return [] if hook is None else [str(requirement) for requirement in hook({})]


def call_setup(root, setup):
    """Run the setup.py in a folder; without one, setuptools is given no arguments."""
    file = os.path.join(root, "setup.py")
    if not os.path.isfile(file):
        setup()
        return
    with open(file, "rb") as stream:
        code = compile(stream.read(), file, "exec")
    exec(code, {"__name__": "__main__", "__file__": file, "__builtins__": __builtins__})


def describe_error(error, root):
    """Return why a setup.py ended, as JSON-ready data."""
    data = {"kind": "exception", "text": last_line(error), "place": place_of_error(error, root)}
    if isinstance(error, ModuleNotFoundError):
        data.update(kind="module", module=(error.name or "").partition(".")[0])
    elif isinstance(error, SystemExit):
        text = error.code
        if not isinstance(text, str):
            text = "it ended with code {}".format(error.code)
        data.update(kind="exit", text=text[:_TEXT_LIMIT])
    else:
        traceback.print_exc()
    return data


def run_scenario(scenario, number, folder):
    """Run one scenario in a forked process, and return its record as data."""
    answer = os.path.join(folder, "scenario-{}.json".format(number))
    log = os.path.join(folder, "scenario-{}.log".format(number))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            # Of each process that it starts, too. The second number is when it is killed.
            limit = max(1, int(scenario["seconds"]))
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            record = Record(os.path.realpath(scenario["root"]))
            run_setup(record, scenario)
            with open(answer, "w") as stream:
                json.dump(record.as_data(), stream)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    seconds = _PATIENCE * scenario["seconds"]
    signal_number = wait_for(child, seconds)
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)  # whatever it started and left
    with open(log, "rb") as stream:
        output = stream.read().decode("utf-8", "replace")
    data = Record("").as_data()
    if signal_number in (signal.SIGKILL, signal.SIGXCPU):
        text = "it has not ended after {:g} s, of which it may compute {:g}".format(
            seconds, scenario["seconds"]
        )
        data["error"] = {"kind": "time", "text": text, "place": ""}
    else:
        try:
            with open(answer) as stream:
                data = json.load(stream)
        except (OSError, ValueError):
            text = output.strip().splitlines()[-1:] or ["the process ended"]
            data["error"] = {"kind": "exception", "text": text[0][:_TEXT_LIMIT], "place": ""}
    data["output"] = output[-20000:]
    return data


def wait_for(child, seconds):
    """Wait for a process, which is killed after `seconds`; return the signal that ended it, or 0."""
    end = time.time() + seconds
    while time.time() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status & 0x7F
        time.sleep(_POLL_SECONDS)
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] & 0x7F


def main():
    with open(sys.argv[1]) as stream:
        request = json.load(stream)
    # The folder of this program must not supply modules to a setup.py.
    sys.path[:] = [
        path for path in sys.path if os.path.abspath(path or ".") != os.path.dirname(_THIS_FILE)
    ]
    described = request.get("stand_in")
    torch_version = None
    if described:
        stand_in_torch(described)
        torch_version = described["version"]
    else:
        import torch
        import torch.utils.cpp_extension

        torch_version = torch.__version__
    folder = os.path.dirname(os.path.abspath(sys.argv[2]))
    records = []
    for number, scenario in enumerate(request["scenarios"]):
        records.append(run_scenario(scenario, number, folder))
    with open(sys.argv[2], "w") as stream:
        json.dump({"torch": torch_version, "records": records}, stream)


if __name__ == "__main__":
    main()

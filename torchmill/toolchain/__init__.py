"""Programs between ninja and the compiler: compiler caches, and shares of a build.

- compiler_cache: set up the compiler cache of a build: ccache or sccache, local and shared
- crossed_python/: what the Python of a crossed build reads when it starts
- remote_cache: a compiler cache that machines share: one setting for ccache and sccache
- sccache: sccache under the memory guard: launcher, server, statistics, watch of its shared cache
- setup_modules: run a setup.py, and compile its extension modules in parallel
- shards: compile one machine's share of a build: a program in place of ninja
- without_cuda: let torch have no CUDA in a build without it, whatever the machine has
"""

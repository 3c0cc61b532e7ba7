"""Keep a build within the memory and the processors that this process may really use.

Every compiler and linker passes a gate (`gate`), which asks the guard's process (`__main__`, `server`,
`admission`). That lets it run when it fits: by what can be had (`limits`, `cgroups`), by what it is expected
to need (`expected`, `history`), as the pure `policy` decides. `session` starts and ends it all for one build;
`jobs` says how many compilers may be started, and how many run where nobody watches.
"""

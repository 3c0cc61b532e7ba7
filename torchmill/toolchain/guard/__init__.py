"""The memory guard: keep a build within its memory and processors.

- __main__: guard one build: `python -m torchmill.toolchain.guard`, its command is a line of JSON on stdin
- clients: the protocol between a gate and the guard
- command: the command that starts the guard, and what the guard reads from the process that
  started it
- expectations: how much memory and time a unit is expected to need: its history, facts, and what similar
  units needed
- forecast: what the policy sees, and whether running units stay within memory until they end
- gate/: the gate: the small program before every compiler of a build
- jobserver: GNU make's jobserver: a fifo whose bytes are permissions to run one more job
- policy: decide which compilers run, pause or run again: a pure function
- scheduler: keep track of all units of a build and carry out the policy's decisions
- server: the guard's main loop: gates, memory, records
- session: start the guard of a build, read its records, and end what it leaves running
- timeline: the timeline of a build: records written by the guard, read by progress line, manifest and
  report
- units: describe a unit by its compiler's command line: its key and its weight
"""

"""Imports nothing of ours: errors, processes, locks, atomic writes, digests, URLs, units.

- console: progress bars and tables: moving on a terminal, a line now and then in a log
- errors: every error that a user can act on, with its exit code and a stable code
- exits: how a command ends: whatever is raised becomes one message and an exit code, never a traceback
- files: write files atomically, hash them, read JSON objects strictly, and delete folders safely
- formats: the formats of files that outlive the torchmill that wrote them, one integer each
- git_index: read which files git tracks, without running git
- homes: tell whether what lies in a home is the user's, by a mark that no repository can bring
- locks: lock folders against other runs: refuse, or wait for the holder to end
- ninja: read ninja's progress and its record of files read
- paths: where everything is kept: the only module that knows folder names
- plain_text: the door for all that people read: harmless, and with the programs that are here
- process: run programs, watch their output, and end them with all processes that they started
- programs: what runs tasks and sessions here: `invoke` and `nox`, or an installed `torchmill`
- reaper: end what a run started when the run itself was killed
- running_python: the Python that runs the suite: one that is too old ends with a sentence
- silence: how long what others send may stay away: told after 15 seconds, ended after 60
- stat_cache: remember digests of files and answers of programs for as long as the files look the same
- task_lines: the tasks by stage, with what each does in a line
- units: bytes and durations as people write them
- urls: URLs that users pass: checked before use, and shown without secrets
"""

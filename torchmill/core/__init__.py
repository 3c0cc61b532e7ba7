"""Imports nothing of ours: errors, processes, locks, atomic writes, digests, URLs, units.

- atomic_writes: write files in one move, so that nobody reads half of one
- console: progress bars and tables: moving on a terminal, a line now and then in a log
- deletion: delete files and folders, out of sight first, also while others delete them
- digests: digests of files
- errors: every error that a user can act on, with its exit code and a stable code
- exits: how a command ends: whatever is raised becomes one message and an exit code, never a traceback
- formats: the formats of files that outlive the torchmill that wrote them, one integer each
- git_index: read which files git tracks, without running git
- homes: tell whether what lies in a home is the user's, by a mark that no repository can bring
- lenient_paths: ask the file system about paths that may be closed to us
- locks: lock folders against other runs: refuse, or wait for the holder to end
- ninja: read ninja's progress and its record of files read
- package_data: tables that lie beside the modules that read them
- paths: where everything is kept: the only module that knows folder names
- plain_text: the door for all that people read: harmless, and with the programs that are here
- process: run programs, watch their output, and end them with all processes that they started
- programs: what runs tasks and sessions here: `invoke` and `nox`, or an installed `torchmill`
- reaper: end what a run started when the run itself was killed
- running_python: the Python that runs the suite: one that is too old ends with a sentence
- silence: how long what others send may stay away: told after 15 seconds, ended after 60
- stat_cache: remember digests of files and answers of programs for as long as the files look the same
- strict_json: read JSON that somebody else may have written
- suite_version: which torchmill this is
- system_errors: say in one sentence why the system refused something
- task_lines: the tasks by stage, with what each does in a line
- units: bytes and durations as people write them
- urls: URLs that users pass: checked before use, and shown without secrets
"""

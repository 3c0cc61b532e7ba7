"""One module per task or session.

Only `noxfile.py` and `tasks.py` import it; `command_line` alone imports invoke.

- add/: `invoke add`
- arch: `invoke arch`: the compute capabilities of GPUs, and the GPUs that a list of them serves
- bisect: `invoke bisect`: find the commit that changed behaviour, by git bisect, builds and a
  command
- build: `invoke build`: all that a wheel needs, from the sources to dist/
- build_question: the question that `invoke build` is given: for which GPUs, and which cells of a
  pattern
- build_request: the request of `invoke build`: the wheels that a user asks for, and how
- clean/: `invoke status` and `invoke clean`
- cluster: `invoke cluster`: write the jobs that build a cell in shares, with Slurm or another
  engine
- command: the output of the functions that tasks call, and the help of options
- command_line: the command line of `invoke`: the class of the tasks, and the answers to slips
- cross_build: build for another architecture in a container: options, image, checks beforehand, the
  run
- deps: `invoke deps`: the command that installs the system packages of a release
- described_host: the machine of `--host FILE` or `--collect-env FILE`, in place of this one
- rebuild: `invoke rebuild`: build a wheel once more from its records, and compare both
- diagnose: `invoke diagnose`: find the cause of a failed build in its log, and the fix
- doctor: `invoke doctor`: examine a machine, for a build or for itself, and report findings with
  their fixes
- doctor_fixes: the fixes of `invoke doctor --fix`: the needs of all are checked before the first
  one runs
- explain_variant: `invoke explain PROJECT --index INDEX`: which wheel variant a machine gets, and why
- fetch: `invoke fetch`: fetch a release and its submodules, verify the commit, and select the
  release
- gpu: `nox -s gpu`: install wheels in a fresh environment and try them on this machine's GPU
- image: `invoke image`: write Dockerfiles for a builder, a runtime or a dev container, and build
  them
- index: `invoke index`: write a static index of dist/, or a conda channel
- index_variants: `invoke index --variants`: make variants of the wheels of an index
- jobs: `invoke jobs`: the limits of memory and processors, and how many compilers may run
- log_machine: what this machine says about a log, if it names paths that are here
- machine_report: the report of `invoke doctor` on a machine: findings with their fixes
- matrix: `invoke matrix` and `invoke explain`: every cell of a release, and why a cell cannot be
  built
- new_torch: `invoke build --new-torch`: build a family of packages for the torch that has just
  appeared
- outlook: the outlook on wheels before they are built, and the question whether to build them
- plan: `invoke plan`: the work and the cost of a session, without doing any of it
- publish: `invoke publish`: bring verified wheels to the place that --to names; replace nothing
- report/: `invoke report`
- session_choice: the sessions of nox that a command line can mean, and the help of `nox` alone
- package_matrix: `invoke matrix --package` for an extension: wheels and builds by torch and toolkit
- session_matrix: the sessions that nox lists: the buildable cells, remembered between runs
- session_work: the work of nox's sessions: build a wheel, make products of it, try it on a GPU
- shards: `invoke shards`: the time and the cost of a build on several machines
- slim: `invoke slim`: leave out GPU code that some GPUs do not run, of wheels or of an environment
- slim_variants: `invoke slim --variants`: make of one wheel a variant for each kind of GPU
- snippet: `invoke snippet`: the declarations of a project that uses them, for uv, Poetry, PDM, pip,
  conda or pixi
- terminal: questions to a person in a terminal, and the commands that are run there for them
- toolkit: `invoke toolkit`: list CUDA toolkits, libraries and host compilers, or install them
  without root
- verify: `invoke verify`: check that wheels, manifests, statements and SBOMs agree
- walk: the walk of `invoke build`: every step is asked for its needs before the first one runs
- watch: `invoke status --watch`, the builds that run now
"""

"""One module per task or session.

Only `noxfile.py` and `tasks.py` import it; `command_line` alone imports invoke.

- arch: `invoke arch`: the compute capabilities of GPUs, and what a list of capabilities runs on
- bisect: `invoke bisect`: find the commit that changed behaviour, by git bisect, builds and a
  command
- build: `invoke build`: all that a wheel needs, from the sources to dist/
- build_question: the question of `invoke build`: for which GPUs, and which cells can be built
- clean/: `invoke status` and `invoke clean`
- cluster: `invoke cluster`: write the jobs that build a cell in shares, with Slurm or another
  engine
- command: what the functions of this wing return to the tasks that call them, and what options mean
- command_line: the command line of `invoke`: what it lacks, behind the `klass` of its tasks
- cross_build: build for another architecture in a container: options, image, checks beforehand, the
  run
- deps: `invoke deps`: the command that installs what a release needs from the system
- diagnose: `invoke diagnose`: say why a build failed, by its log, and what fixes it
- doctor: `invoke doctor`: examine a machine, for a build or for itself, and report findings with
  their fixes
- doctor_fixes: the fixes of `invoke doctor --fix`: all of them are walked before the first one runs
- fetch: `invoke fetch`: fetch a release and its submodules, verify the commit, and select the
  release
- gpu: `nox -s gpu`: install wheels in a fresh environment and try them on this machine's GPU
- image: `invoke image`: write Dockerfiles for a builder, a runtime or a dev container, and build
  them
- index: `invoke index`: write a static index of dist/, or a conda channel
- jobs: `invoke jobs`: what limits memory and processors here, and how many compilers may run
- machine_report: the report of `invoke doctor` on a machine: findings with their fixes
- matrix: `invoke matrix` and `invoke explain`: every cell of a release, and why a cell cannot be
  built
- outlook: what is known beforehand of wheels, and the question whether to build them all the same
- plan: `invoke plan`: everything a session will do and what it will cost, without doing any of it
- publish: `invoke publish`: bring verified wheels to an index, GitHub, a folder or a bucket;
  replace nothing
- report/: `invoke report`
- session_work: what the sessions of nox do: build a wheel, make something else of it, try a GPU
- session_choice: which sessions of nox a command line can mean, and what `nox` alone says
- session_matrix: the sessions that nox lists: the buildable cells, remembered between runs
- shards: `invoke shards`: how long a build takes on several machines, and what that costs
- slim: `invoke slim`: leave out of wheels, or of an environment, the GPU code that its GPUs do not
  run
- snippet: `invoke snippet`: what a project declares to use the wheels, for uv, Poetry, PDM, pip,
  conda or pixi
- terminal: what a person is asked in a terminal, and the commands that are run there for them
- toolkit: `invoke toolkit`: list CUDA toolkits, libraries and host compilers, or install them
  without root
- verify: `invoke verify`: check that wheels, manifests, statements and SBOMs agree
- walk: the walk of `invoke build`: every step asked for what it needs, before the first one runs
"""

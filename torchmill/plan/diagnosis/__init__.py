"""Choose among the reasons of a failure by facts: those of the log, of the machine and of the rules.

- situation: the known facts of a failed build, each with its origin
- log_facts: read facts out of the lines of a log
- run_facts: read the facts of the run that fails out of a log that holds several
- log_end: what the end of a log says: success, or the failure of a tool that is not read
- collected_host: the machine that the output of a collect_env describes
- host_facts: the facts of a machine that a diagnosis uses
- named_paths: collect the paths that a log names
- this_machine: whether a log was written on this machine, and what this machine says about it
- rule_facts: facts that the rule book adds to known ones: which gcc this nvcc takes, …
- toolkit_facts: where the toolkit is, whose package it is, and what installs its other parts
- compiler_choice: a gcc that both a toolkit and a release of torch take, and how to install it
- torch_commands: the commands that install torch, from the index that has it for this machine
- project_commands: the project whose compiled part a log names, and the command that installs it again
- requested_versions: compare the version that was asked for with those that there are, and find a Python for it
- source_edits: the command that edits old code for a newer torch or CUDA
- candidates: judge the candidates of a cause by the facts
- templates: fill facts into the sentences and commands of a cause
- cure_order: put the parts of a cure for this machine before those for others
- shell_words: write commands in the words of the machine's installer and shell
- answer: the answer of a diagnosis, as text and as data
"""

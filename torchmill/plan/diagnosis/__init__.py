"""Choose among the reasons of a failure by facts: those of the log, of the machine and of the rules.

- situation: what is known of a failed build, each fact with its origin
- log_facts: read facts out of the lines of a log
- collected_host: the machine that the output of a collect_env describes
- host_facts: the facts of a machine that a diagnosis uses
- rule_facts: what the rule book says of known facts: which gcc this nvcc takes, …
- compiler_choice: a gcc that both a toolkit and a release of torch take, and how to install it
- candidates: judge the candidates of a cause by the facts
- templates: fill facts into the sentences and commands of a cause
- cure_order: put the parts of a cure for this machine before those for others
- answer: the answer of a diagnosis, as text and as data
"""

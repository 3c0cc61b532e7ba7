"""From a build's log to the cause of its failure.

- causes: diagnose a build's log: match the first error against the catalogue in causes.toml
- first_error: find the first real error in a build's log, not ninja's report of it
- log_text: read build logs: any encoding, without prefixes of other tools or harmless lines
"""

"""`invoke status` and `invoke clean`.

- caches: find what all checkouts of a user share: downloads, toolkits, compiler caches
- checkout: find what builds of this checkout left behind
- command: `invoke status` and `invoke clean`
- in_use: which processes and locks use a folder at the moment
- items: the things that are stored, as `status` and `clean` see them
- removal: remove stored items, or only rehearse it
- report: what is stored and what a clean removed, as text and as JSON
- selection: select which stored items to remove: by kind, age, release and size
"""

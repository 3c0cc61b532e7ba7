"""What PyPI says of releases, held against build_configs/: differences, and drafts of what is new."""

HELP = {
    "check": "compare the facts with every wheel on the index that pip uses",
    "release": "compare only this release of torch and what pairs with it; may be repeated",
    "new": "draft the file of each release that appeared on the index",
    "write": "with --new: write the drafts into build_configs/releases/",
    "table": "write the pages that are generated: docs/compatibility.md and docs/diagnose.md",
}

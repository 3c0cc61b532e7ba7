import sys

sys.exit(
    f"setup.py {' '.join(sys.argv[1:])}: tinytorch is built with scikit-build-core since 1.1.0; "
    "use 'python -m build --wheel'"
)

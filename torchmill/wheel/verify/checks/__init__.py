"""Scripts that the interpreter of a wheel runs, down to Python 3.5; they import each other by plain name."""

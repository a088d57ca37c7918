"""``python -m dragoman`` is ``dragoman``."""

from dragoman.cli import main

main()

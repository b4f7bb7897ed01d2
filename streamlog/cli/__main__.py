"""`python -m streamlog.cli` is the program `streamlog`."""

from streamlog.cli import main

main()

"""``python -m holdfast``: the command line, where its script is not on the PATH."""

from holdfast.cli.app import main

main()

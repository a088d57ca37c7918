"""``python -m dragoman.cluster.lab exec HOST -- COMMAND`` is ``dragoman lab exec``, started in half the time."""

import sys

from dragoman.cluster.lab.client import exec_on_host
from dragoman.errors import ExitCode, UserError

USAGE = "python -m dragoman.cluster.lab exec HOST [--] COMMAND..."


def main() -> int:
    """Run a command on a host of the lab that DRAGOMAN_LAB names, or of the only one there is."""
    try:
        if len(sys.argv) < 3 or sys.argv[1] != "exec" or sys.argv[2].startswith("-"):
            raise UserError("only exec can be called this way", where=USAGE, fix="see dragoman lab --help")
        return exec_on_host(sys.argv[2], sys.argv[3:])
    except UserError as error:
        print(error, file=sys.stderr)
        return ExitCode.USER


if __name__ == "__main__":
    sys.exit(main())

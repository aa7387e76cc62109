"""`python -m privopt`, and what the installed command runs: Ctrl-C ends it with one line, also while it is being loaded."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from privopt.cli.application import app

        app()
    except KeyboardInterrupt:
        sys.stderr.write("Stopped.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()

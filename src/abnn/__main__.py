"""``python -m abnn``: the command line."""

from abnn.cli import main

if __name__ == "__main__":
    main()

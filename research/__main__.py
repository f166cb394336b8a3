"""``python -m research``."""

from research.cli import main

if __name__ == "__main__":
    main()

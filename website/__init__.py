"""Makes the documentation site: `make docs`. What belongs to it and not to the package."""

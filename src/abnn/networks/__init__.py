"""Networks by name, their weights, and how a saved folder may describe one."""

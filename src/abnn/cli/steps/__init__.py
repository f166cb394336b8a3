"""The steps of long commands; imported when a command runs, for they need torch."""

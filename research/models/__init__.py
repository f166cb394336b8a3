"""Sixty networks that others wrote, each through everything that a user does; see ``run``."""

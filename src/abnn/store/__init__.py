"""Saved models: what is written, and how it is read."""

"""Scores as formulas: larger = more uncertain."""

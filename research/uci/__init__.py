"""Regression on the nine UCI sets with their standard splits: one hidden layer, five methods."""

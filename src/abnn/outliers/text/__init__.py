"""Outliers of sentences: whole numbers that name words, not amounts."""

"""Hostile files and requests: whatever is put in, it gives the same answers as before or one clear error, and touches nothing else."""

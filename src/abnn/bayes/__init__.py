"""Gaussian layers that take all draws at once, priors, convolutions."""

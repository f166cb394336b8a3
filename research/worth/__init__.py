"""What is each Bayesian form worth, and what do draws and views add to one pass? See :mod:`research.worth.run`."""

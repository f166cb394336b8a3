"""Score millions of inputs on one machine or many: every input exactly once."""

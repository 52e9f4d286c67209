"""A report on every head of a model: what it does over a corpus, and which heads do the same."""

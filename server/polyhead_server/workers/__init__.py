"""Several processes that serve on one port, and the one above that keeps them running."""

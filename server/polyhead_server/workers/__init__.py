"""Several processes that serve on one port, and the supervisor that keeps them running."""

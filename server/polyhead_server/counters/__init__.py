"""What every model has done so far, counted once for statistics and metrics, by all workers together."""

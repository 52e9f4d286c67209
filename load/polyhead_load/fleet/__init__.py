"""`polyhead plan`: how many machines carry a rate within a limit on p99, from a sweep and a simulation."""

"""Serve on Ray: Serve spreads, scales and restarts replicas; each batches as a server of its own does.

Only this room imports `ray`. docs/ray.md describes it.
"""

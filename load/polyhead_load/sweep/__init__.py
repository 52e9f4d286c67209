"""Sweeps: what each head configuration costs in latency, measured so that a sceptic can follow."""

"""Admits work for a model, batches it by cost, runs it, and gives every caller exactly one answer."""

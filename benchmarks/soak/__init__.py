"""`make soak`: mixed load, bursts of callers, large JSON and hostile connections; nothing may be lost."""

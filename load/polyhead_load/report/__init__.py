"""What a sweep has found: one page with everything, JSON and CSV beside it, and the comparison of two."""

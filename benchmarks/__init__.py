"""What `make` measures: a module or a package for each benchmark, run by `python -m benchmarks.NAME`."""

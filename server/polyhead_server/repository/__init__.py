"""The model repository on disk: what is there, and whether it can be trusted."""

"""`polyhead doctor`: what this machine can run, what is missing, and what runs where."""

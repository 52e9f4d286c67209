"""What outputs say to a user: tags, scores, evidence, and vectors of fewer bits.

The client says it to its callers, the server's HTTP to its own. Neither may import the other, so it is below
both.
"""

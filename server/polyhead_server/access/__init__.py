"""Who may call: bearer tokens, and certificates of TLS."""

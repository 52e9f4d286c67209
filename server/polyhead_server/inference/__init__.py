"""One inference: reads a request, runs its model, writes the reply. Bytes in, bytes out."""

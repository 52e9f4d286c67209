"""HTTP: metrics and probes, and inference over the Open Inference Protocol and embeddings calls."""

"""The gRPC service: it translates between the wire and the scheduler, and decides nothing else."""

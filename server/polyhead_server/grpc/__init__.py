"""The gRPC server, on `grpc.aio`: access, TLS, requests as bytes, errors as statuses."""

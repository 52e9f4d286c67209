"""The gRPC server: access, TLS, reading and writing messages, errors as statuses."""

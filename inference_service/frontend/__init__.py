"""The gRPC side of the inference daemon."""

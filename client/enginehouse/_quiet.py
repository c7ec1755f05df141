"""Imported before gRPC: its library reads this once, and would print lines on connections that end or processes that
fork, which are no news to a user. Set GRPC_VERBOSITY to see them."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

"""What both sides of the wire spell: tensors, parameters, and metadata of calls."""

TEXT = "text"
"""The input that holds texts, which the server tokenises."""

TOKENS = "tokens"
"""The output that holds the tokens of texts and token ids."""

LENGTHS = "lengths"
"""The input and output that holds each sequence's tokens."""

TIMINGS = ("parse_ns", "tokenise_ns", "queue_ns", "compute_ns", "serialise_ns")
"""A reply's parameters about the server's time, in nanoseconds."""

TRUNCATE = "truncate"
"""A request's parameter: whether texts that are too long are cut."""

PARTS = "parts"
"""A request's parameter: whether it is answered in parts. A part's: how many there are."""

PART = "part"
"""A part's parameter: its number."""

FINAL = "triton_final_response"
"""The parameter of a stream's reply that says whether it is the request's last."""

START = "start"
"""The parameter of an output in a part: where in the whole output it begins."""

WHOLE = "whole"
"""The parameter of an output in a part: the whole output's shape."""

REQUEST_ID = "x-request-id"
"""The metadata key of a call's name, which the server's log has, too."""

LIMIT = "polyhead-limit"
"""The trailing metadata key that names the limit of a refusal, where another way of asking keeps to it."""

PUSHBACK = "grpc-retry-pushback-ms"
"""The trailing metadata key that says when to call again, which gRPC's own retries keep to; negative: not."""

WANTS_STATUS = ("triton_grpc_error", "true")
"""The metadata with which a stream's error comes as its status, as Triton has it, not in a message."""

"""The names that both sides of the wire use: tensors, parameters, model properties and call metadata."""

import re
from enum import StrEnum

X = "x"
"""The input of vectors, [B, T, D]."""

QUERY = "query"
"""The input of vectors of an encoder that attends to a memory, [B, T, D]."""

MEMORY = "memory"
"""The input of the vectors that it attends to, [B, S, D]; and its role."""

MEMORY_LENGTHS = "memory_lengths"
"""The input of the number of tokens in each memory, [B]; and its role."""

MEMORY_MASK = "memory_mask"
"""The input of a mask of the attention to the memory, [B, T, S]; True = may attend."""

INPUT_IDS = "input_ids"
"""The input of token ids, [B, T]."""

TOKEN_TYPE_IDS = "token_type_ids"  # noqa: S105 - not a password
"""The input of token types, [B, T]."""

TEXT = "text"
"""The input of texts, [B], which the server tokenises."""

TEXT_PAIR = "text_pair"
"""The input of the second texts of pairs, [B], beside `text`."""

LENGTHS = "lengths"
"""The input and output of the number of tokens in each sequence, [B]; and their role."""

MASK = "mask"
"""The input of an attention mask, [B, T, T]; True = may attend."""

HEAD_MASK = "head_mask"
"""The input of a factor on what each head adds, [B, L, H]: 1 keeps a head, 0 silences it; and its role."""

HEAD_MIX = "head_mix"
"""The input of the weights of heads in `mixed`, [B, L, H]; and its role."""

QUERY_VECTORS = "query_vectors"
"""The input of vectors of a query's tokens, [B, S, V], to compare documents with; and its role."""

EDIT_VECTORS = "edit_vectors"
"""The input of the vectors of edits of the stream, [B, Edits, D]; and its role."""

HEAD_EDIT_VECTORS = "head_edit_vectors"
"""The input of those of edits of what heads give, [B, HeadEdits, K]; and its role."""

OUTPUT = "output"
"""The output of the encoder's vectors, [B, T, D]."""

POOLED = "pooled"
"""The output of pooled vectors, [B, D], or [B, P] behind dense layers; and its role."""

LOGITS = "logits"
"""The output of a classifier of sequences, [B, C], or of tokens, [B, T, C]; and its role."""

TOKENS = "tokens"
"""The output of the tokens of texts and token ids, [B, T]; and the role of inputs of token ids."""

SPANS = "spans"
"""The output of where the tokens of texts are in them, [B, T, 3]; and its role. -1 = in no text.

Of each token where it starts and ends, in characters, and the number of its word.
"""

ATTENTION = "attention"
"""The role of outputs of attention weights, [B, H, T, T].

[B, H, T, S] where layers attend to a memory alone.
"""

ROWS = "rows"
"""The role of inputs of the queries whose weights are asked for, [B, R]: different ones in each sequence."""

HEADS = "heads"
"""The parameter of an output with an axis of heads that selects from it, such as `0,3` or `0:4`."""

LAYERS = "layers"
"""The parameter of an output with an axis of layers that selects from it, likewise, by their numbers."""

TOP = "top"
"""The parameter of an output of the strongest keys or words: how many of them."""

QUERIES = "queries"
"""The parameter of an attention output that selects query positions, likewise."""

DIMENSIONS = "dimensions"
"""The parameter of an output of pooled vectors: how many of their first numbers, normalised again."""

PRECISION = "precision"
"""The parameter of an output of pooled vectors: one of `outputs.pooled.DATATYPES`."""

DTYPE = "dtype"
"""The parameter of an output that sets its datatype: FP32 or FP16; UINT8 for numbers from 0 to 1."""

TRUNCATE = "truncate"
"""The parameter of a request: whether to truncate texts that are too long."""

PROMPT_NAME = "prompt_name"
"""The parameter of a request: the name of the prompt to put before its texts; empty for none."""

PARTS = "parts"
"""The parameter of a request: whether to reply in parts. Of a part: the number of parts."""

PART = "part"
"""The parameter of a part: its number, from 0."""

FINAL = "triton_final_response"
"""The parameter of a streamed reply: whether it is the last one of its request."""

START = "start"
"""The parameter of an output in a part: the index at which its block starts."""

WHOLE = "whole"
"""The parameter of an output in a part: the shape of the whole output."""

TIMINGS = ("parse_ns", "tokenise_ns", "queue_ns", "compute_ns", "serialise_ns")
"""The parameters of a reply with the server's timings, in nanoseconds."""

REQUEST_ID = "x-request-id"
"""The metadata key of a call's id, which the server logs."""

LIMIT = "polyhead-limit"
"""The trailing metadata key that names the exceeded limit, if another way of asking avoids it."""

FAULT = "polyhead-fault-bin"
"""The trailing metadata key that holds what is wrong with a field, as JSON: see `polyhead_proto.faults`."""

PUSHBACK = "grpc-retry-pushback-ms"
"""The trailing metadata key that says when to retry, which gRPC's own retries obey; negative means never."""

WANTS_STATUS = ("triton_grpc_error", "true")
"""The metadata that makes a stream end with its error as status, as Triton does, instead of a message."""


class Property(StrEnum):
    """The properties in a model's metadata."""

    FAMILY = "family"
    GRAPH = "graph"
    MODELS = "models"
    """The models of the family, one for each graph."""
    TENSORS = "tensors"
    """JSON: the axes of each tensor, and where it matters its role and layer."""
    LAYERS = "layers"
    HEADS = "heads"
    KV_HEADS = "kv_heads"
    """G, the heads of keys and values, which equally many heads in a row share; empty if each has its own."""
    KEPT_HEADS = "kept_heads"
    """JSON: the numbers of each layer's heads that pruning left; empty if no head was pruned."""
    D_MODEL = "d_model"
    HEAD_WIDTH = "head_width"
    CAUSAL = "causal"
    LOCAL_WINDOW = "local_window"
    """In local layers, a token sees only those at most half of it away; empty if no layer is local."""
    GLOBAL_EVERY = "global_every"
    """n: every n-th layer is not local; empty if all are, or none."""
    FIRST_GLOBAL = "first_global"
    """The first of those layers."""
    POOLING = "pooling"
    PRECISION = "precision"
    """Of the family's files."""
    DRIFT = "drift"
    """JSON: how far that is from fp32, measured at the export; empty in fp32."""
    COMPUTE_PRECISION = "compute_precision"
    """In which the server computes what the files hold in fp32."""
    COMPUTE_DRIFT = "compute_drift"
    """JSON: what that changes, measured when the model was loaded; empty in fp32."""
    SAME_BITS = "same_bits"
    """The outputs of which the same request gets the same bits in any company, measured when the model was
    loaded, separated by commas; empty on GPUs."""
    ACTIVATIONS = "activations"
    """The axes of what layers compute: `B,T,D`, or `N,D` where that is no padding."""
    PARAMETERS = "parameters"
    VOCABULARY = "vocabulary"
    MAX_TOKENS = "max_tokens"
    TEXT_MAX_TOKENS = "text_max_tokens"
    TEXT_PROMPT = "text_prompt"
    TEXT_PROMPTS = "text_prompts"
    """JSON: the prompts that requests may name."""
    MAX_REQUEST_BYTES = "max_request_bytes"
    MAX_REPLY_BYTES = "max_reply_bytes"
    """Also the value of the metadata key `LIMIT`."""
    MAX_STREAM_REPLY_BYTES = "max_stream_reply_bytes"
    MAX_TEXT_BYTES = "max_text_bytes"
    MAX_BATCH_SIZE = "max_batch_size"
    MAX_REQUEST_TOKENS = "max_request_tokens"
    MAX_WORKING_BYTES = "max_working_bytes"
    EXECUTION_PROVIDER = "execution_provider"
    FORMAT = "format"


def family_name(checkpoint: str) -> str:
    """Return the name of a checkpoint's family: its own in letters, digits, hyphens and underscores.

    Args:
        checkpoint: The name of the checkpoint, such as bge-small-en-v1.5, whose family is bge-small-en-v1-5.
    """
    return re.sub(r"[^A-Za-z0-9_-]", "-", checkpoint).strip("-_")[:255] or "encoder"

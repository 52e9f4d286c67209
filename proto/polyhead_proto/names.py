"""The names that both sides of the wire use: tensors, parameters, model properties and call metadata."""

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

TOKEN_VECTORS = "token_vectors"  # noqa: S105 - not a password
"""The role of the output of vectors of tokens for late interaction, [B, T, V]."""

SIMILARITIES = "similarities"
"""The role of the output of the cosines of a query's tokens and a document's, [B, S, T]."""

MAX_SIMILARITIES = "max_similarities"
"""The role of the output of the largest of these for each token of the query, [B, S]."""

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

ATTENTION_ROWS = "attention_rows"
"""The role of outputs of attention weights of chosen queries, [B, L, H, R, T], likewise."""

CROSS_ATTENTION = "cross_attention"
"""The role of outputs of attention weights to the memory, [B, H, T, S], of a layer that has both."""

CROSS_ATTENTION_ROWS = "cross_attention_rows"
"""The role of outputs of such weights of chosen queries, [B, L, H, R, S]."""

ROWS = "rows"
"""The role of inputs of the queries whose weights are asked for, [B, R]: different ones in each sequence."""

VALUE_NORMS = "value_norms"
"""The role of outputs of the norm of each head's value behind the output projection, [B, L, H, T]."""

CROSS_VALUE_NORMS = "cross_value_norms"
"""The role of outputs of such norms of the memory's values, [B, L, H, S], of a layer that attends to both."""

HEAD_SCORES = "head_scores"
"""The role of outputs of scores of each head, [B, L, H, Scores]."""

WEIGHTED_SCORES = "weighted_scores"
"""The role of outputs of the same scores of norm-weighted attention."""

ROLLOUT = "rollout"
"""The role of outputs of attention rollout, [B, T, T]."""

MIXED = "mixed"
"""The role of outputs of the attention of all heads, summed with the weights `head_mix`, [B, T, T]."""

CONTACTS = "contacts"
"""The role of outputs of the probability of a contact of each pair of tokens, [B, T, T]."""

FRACTIONS = frozenset({ATTENTION, ATTENTION_ROWS, CROSS_ATTENTION, CROSS_ATTENTION_ROWS, CONTACTS})
"""The roles of outputs of numbers from 0 to 1, which come as bytes if asked for: weights, probabilities."""

SPARSE_INDICES = "sparse_indices"
"""The role of outputs of the words that say most of a text, [B, TopWords]; -1 where there are fewer."""

SPARSE_VALUES = "sparse_values"
"""The role of outputs of their weights."""

TOP_KEYS = "top_keys"
"""The role of outputs of the strongest keys of each query, [B, L, H, T, Top]; -1 where there are fewer."""

TOP_WEIGHTS = "top_weights"
"""The role of outputs of their weights."""

THUMBNAILS = "thumbnails"
"""The role of outputs of a small picture of each head, [B, L, H, Side, Side]."""

STREAM = "stream"
"""The role of outputs of what was read of the residual stream, [B, Reads, D]."""

HEAD_OUTPUTS = "head_outputs"
"""The role of outputs of what was read of what heads give, [B, HeadReads, K]."""

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
"""The parameter of an output of pooled vectors: one of `outputs.vectors.DATATYPES`."""

DTYPE = "dtype"
"""The parameter of an output that sets its datatype: FP32 or FP16; UINT8 for `FRACTIONS`."""

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
    KEPT_HEADS = "kept_heads"
    """JSON: the numbers of each layer's heads that pruning left; empty if no head was pruned."""
    D_MODEL = "d_model"
    HEAD_WIDTH = "head_width"
    CAUSAL = "causal"
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

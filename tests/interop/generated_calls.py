"""Calls a polyhead server through a client that was generated from its OpenAPI document.

    python generated_calls.py URL TOKEN <GIVEN >GOT

Runs in an environment of its own; `tests/interop/test_generated.py` makes the client, `generated`, gives it a
query and texts in JSON, and looks at what it prints.
"""

import json
import sys

from generated import AuthenticatedClient
from generated.api.default import create_embeddings, infer, rerank
from generated.models import EmbeddingsBody, InferBody, OpenAIError, RerankBody

url, token = sys.argv[1:]
query, *texts = json.load(sys.stdin)
client = AuthenticatedClient(base_url=url, token=token, timeout=600.0)

embedded = create_embeddings.sync(client=client, body=EmbeddingsBody(model="tiny-tokens", input_=texts))
ranked = rerank.sync(client=client, body=RerankBody(model="reranker", query=query, texts=texts))
tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
inferred = infer.sync(
    "tiny-tokens",
    client=client,
    body=InferBody.from_dict({"inputs": [tensor], "outputs": [{"name": "pooled"}]}),
    x_request_timeout="600",
)
refused = create_embeddings.sync(client=client, body=EmbeddingsBody(model="none", input_=texts))
assert isinstance(refused, OpenAIError)

json.dump(
    {
        "vectors": [one.embedding for one in embedded.data],
        "ranks": [[one.index, one.score] for one in ranked],
        "pooled": inferred.outputs[0].data,
        "refused": refused.error.message,
    },
    sys.stdout,
)

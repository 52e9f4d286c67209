"""What schemathesis loads in `test_described.py`: models that there are, and a check of our own."""

from typing import Any

import schemathesis

NOT_DESCRIBED = "not as described: "
"""With what the server of the test begins its message where a body or header is refused for its form."""

MODELS = dict.fromkeys(("/v1/embeddings", "/embeddings", "/embed", "/similarity"), "tiny-tokens")
MODELS["/embed_sparse"] = "splade"


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Names a model that can do what is asked for, where a body names any."""
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        body["model"] = MODELS.get(context.operation.path, "reranker")
    return body


@schemathesis.hook
def map_path_parameters(_: Any, parameters: Any) -> Any:
    """Names a model that there is."""
    if isinstance(parameters, dict) and isinstance(parameters.get("name"), str):
        parameters["name"] = "tiny-tokens"
    return parameters


@schemathesis.check
def what_is_described_is_accepted(_: Any, response: Any, case: Any) -> None:
    """Only what a model must tell may be refused, such as that a text is too long for it."""
    if case.meta is not None and case.meta.generation.mode.is_positive:
        assert NOT_DESCRIBED not in response.text, response.text

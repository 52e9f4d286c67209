"""The OpenAPI document, made from what answers: routes, fields that are read, replies that are written."""

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from starlette.routing import Route

from polyhead_proto.names import REQUEST_ID
from polyhead_server.http.documents import Fields
from polyhead_server.http.endpoint import JSON_BYTES, Endpoint

_TYPES: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_PATH: Mapping[str, str] = {"name": "The model", "version": "Its version, a number"}
_BINARY: Mapping[str, object] = {"type": "string", "format": "binary"}
_MEANINGS: Mapping[int, str] = {
    400: "Something is wrong with the request; the message names it",
    401: "The call must carry a token",
    403: "The token does not open this, pages of this origin may not call, or Host is not a local name",
    404: "There is no such model or version",
    413: "A limit would be passed",
    415: "The type or encoding of the body is not known",
    500: "The server failed; its log says why under the request's id",
    503: "Loading, failed to load, draining or too busy: see Retry-After",
    504: "The deadline passed, or the body did not come in time",
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Describe routes to endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        method = "post" if "POST" in (route.methods or ()) else "get"
        endpoint: Any = route.endpoint
        paths.setdefault(route.path, {})[method] = _operation(route.path, endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "polyhead", "version": version("polyhead")},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def like(sample: Any) -> dict[str, Any]:
    """Return the schema of what is like a sample. None stands for anything."""
    if sample is None:
        return {}
    schema: dict[str, Any] = {"type": _TYPES[type(sample)]}
    if isinstance(sample, list):
        schema["items"] = like(sample[0])
    elif isinstance(sample, dict):
        schema["properties"] = {name: like(value) for name, value in sample.items()}
        schema["required"] = list(sample)
    return schema


def _fields(of: Fields) -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = {}
    for name, field in of.known.items():
        types = [_TYPES[one] for one in field.types] + ["null"] * (not field.required)
        properties[name] = {"type": types, "description": field.meaning}
        if field.items is not None and list in field.types:
            properties[name]["items"] = _fields(field.items)
        elif field.items is not None:
            properties[name] |= {**_fields(field.items), **properties[name]}
    return {
        "type": "object",
        "properties": properties,
        "required": of.required,
        "additionalProperties": False,
    }


def _operation(path: str, endpoint: Endpoint) -> dict[str, Any]:
    binary = JSON_BYTES in endpoint.headers
    parameters = [
        _parameter(name, "path", _PATH[name], required=True) for name in re.findall(r"{(\w+)}", path)
    ]
    parameters.append(_parameter(REQUEST_ID, "header", "The request's id in logs; without it, one is made"))
    for header in endpoint.headers:
        parameters.append(_parameter(header.name, "header", header.meaning, pattern=f"^({header.pattern})$"))
    replies = {"200": _content("The reply", endpoint.reply, endpoint.media_type, binary=binary)}
    failed = endpoint.body(400, "")
    for status in _errors(path, endpoint):
        replies[str(status)] = _content(_MEANINGS[status], like(failed))
    if endpoint.fails:
        replies["503"] = _content("It is not", endpoint.reply, endpoint.media_type)
    described: dict[str, Any] = {"summary": endpoint.summary, "parameters": parameters, "responses": replies}
    if endpoint.request is not None:
        body = _content("", _fields(endpoint.request), binary=binary)
        body["content"]["application/json"]["example"] = endpoint.request.example
        described["requestBody"] = {**body, "required": bool(endpoint.request.required)}
    if endpoint.guarded:
        described["security"] = [{"token": []}]
    return described


def _parameter(
    name: str, place: str, description: str, *, required: bool = False, **schema: str
) -> dict[str, Any]:
    described = {"name": name, "in": place, "description": description, "required": required}
    return {**described, "schema": {"type": "string", **schema}}


def _content(
    description: str,
    schema: Mapping[str, object],
    media_type: str = "application/json",
    *,
    binary: bool = False,
) -> dict[str, Any]:
    content: dict[str, Any] = {media_type: {"schema": schema}}
    if binary:
        content["application/octet-stream"] = {"schema": _BINARY}
    return {"description": description, "content": content} if description else {"content": content}


def _errors(path: str, endpoint: Endpoint) -> list[int]:
    """Return the statuses of the errors that an endpoint may answer with."""
    statuses = {403}
    if endpoint.guarded:
        statuses.add(401)
    if "{version}" in path:
        statuses.add(400)
    if "{name}" in path or endpoint.procedure == "ModelInfer":
        statuses |= {404, 503}
    if endpoint.request is not None:
        statuses |= {400, 413, 415, 503, 504}
    if endpoint.procedure == "ModelInfer":
        statuses.add(500)
    return sorted(statuses)

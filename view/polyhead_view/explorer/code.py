"""What the page asks, as code that a user can run."""

import json
import re
from typing import Any

import numpy as np

from polyhead_client import InvalidRequest, ModelInfo
from polyhead_client.asked import Asked
from polyhead_client.selection import select
from polyhead_proto.names import TEXT, TEXT_PAIR
from polyhead_view.explorer.questions import Question
from polyhead_view.inputs import SEED, SequenceFiles, names, takes_ids


def wanted_of(asked: Question) -> dict[str, Any]:
    """Return the arguments of `encode` that ask for a map of all heads, or the weights of one."""
    if asked.whole:
        return {asked.whole: True}
    kind = "cross_attention" if asked.cross else "attention"
    return {kind: [asked.layer], "heads": [asked.head]} | ({"weighted": True} if asked.weighted else {})


def kept_heads(info: ModelInfo, silenced: tuple[tuple[int, int], ...]) -> dict[str, Any]:
    """Return the argument `head_mask` of `encode`, float32 [L, H]; none if no head is silenced.

    Raises:
        InvalidRequest: There is no such head, or the family takes no head mask.
    """
    if not silenced:
        return {}
    if "head_mask" not in info.inputs:
        raise InvalidRequest(
            f"silenced must be empty: {info.family} takes no head mask (--head-mask at export)"
        )
    layers, heads = info.layers or 0, info.heads or 0
    mask = np.ones((layers, heads), np.float32)
    for layer, head in silenced:
        if not (0 <= layer < layers and 0 <= head < heads):
            raise InvalidRequest(
                f"silenced must be heads within {layers} layers of {heads} heads, was {[layer, head]}"
            )
        mask[layer, head] = 0
    return {"head_mask": mask}


def python(asked: Question, info: ModelInfo, *, address: str, files: SequenceFiles) -> str:
    """Return a program that fetches what is asked for.

    Args:
        asked: The question.
        info: The family's fast graph.
        address: The server's address.
        files: The files of a family that takes no texts.
    """
    imports, before = [], []
    if info.takes_text:
        arguments = [json.dumps(asked.text, ensure_ascii=False)]
        if asked.pair:
            arguments.append(f"text_pair={json.dumps(asked.pair, ensure_ascii=False)}")
    else:
        imports.append("import numpy as np\n")
        if files.input or files.memory:
            imports = [
                "from pathlib import Path\n\n",
                *imports,
                "from polyhead_client.files import load_sequence\n",
            ]
        lines = {name: _input(name, info, files, asked.length) for name in names(info)}
        before += [f"{name} = {spelled}" for name, spelled in lines.items()]
        arguments = [name if name == "inputs" else f"{name}={name}" for name in lines]
    if asked.silenced:
        imports = ["import numpy as np\n"]
        before.append(f"head_mask = np.ones(({info.layers}, {info.heads}), np.float32)")
        before += [f"head_mask[{layer}, {head}] = 0" for layer, head in asked.silenced]
        arguments.append("head_mask=head_mask")
    arguments.append(f"model={json.dumps(asked.model)}")
    if asked.truncate and info.takes_text:
        arguments.append("truncate=True")
    arguments += [f"{name}={value}" for name, value in wanted_of(asked).items()]
    called = "".join(f"        {argument},\n" for argument in arguments)
    return "".join(
        [
            *imports,
            *(["\n"] if imports and not imports[-1].startswith("from") else []),
            "from polyhead_client import Client\n\n",
            *(f"{line}\n" for line in before),
            f"with Client({json.dumps(address)}) as client:\n    encoding = client.encode(\n{called}    )\n",
            "encoding.save('encoding.npz')\nencoding.show()  # in a notebook\n",
        ]
    )


def curl(asked: Question, info: ModelInfo, *, address: str) -> str:
    """Return a call over HTTP.

    It is empty for vectors, which are long as text, and for addresses that name no host.

    Args:
        asked: The question.
        info: The graph that answers.
        address: The server's address for gRPC; HTTP listens on its default port.

    Raises:
        InvalidRequest: A head that is silenced does not exist.
    """
    host = re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:]+\]):\d+", address)
    if host is None or not info.takes_text:
        return ""
    wanted = Asked.read({"output": False, "pooled": False, **wanted_of(asked)}, text=True)
    texts = {TEXT: asked.text} | ({TEXT_PAIR: asked.pair} if asked.pair else {})
    inputs: list[dict[str, Any]] = [
        {"name": name, "datatype": "BYTES", "shape": [1], "data": [text]} for name, text in texts.items()
    ]
    for name, mask in kept_heads(info, asked.silenced).items():
        data = mask.ravel().astype(int).tolist()
        inputs.append({"name": name, "datatype": "FP32", "shape": [1, *mask.shape], "data": data})
    body = {
        "inputs": inputs,
        "outputs": [
            {"name": output.name} | ({"parameters": dict(output.parameters)} if output.parameters else {})
            for output in select(info, wanted).outputs
            if output.name != "lengths"
        ],
    } | ({"parameters": {"truncate": True}} if asked.truncate else {})
    spelled = json.dumps(body, ensure_ascii=False).replace("'", r"'\''")
    return (
        f"curl http://{host[1]}:8002/v2/models/{info.name}/infer -H 'Content-Type: application/json' \\\n"
        f"  -d '{spelled}'\n"
    )


def _input(name: str, info: ModelInfo, files: SequenceFiles, length: int) -> str:
    """Return the Python expression of one input."""
    path = {"inputs": files.input, "memory": files.memory}.get(name)
    if path is not None:
        option = "--input" if name == "inputs" else "--memory"
        return f"load_sequence({json.dumps(option)}, Path({json.dumps(str(path))}))"
    random = f"np.random.default_rng([{SEED}, {int(name == 'memory')}])"
    if takes_ids(info):
        return f"{random}.integers(0, {info.vocabulary or 1}, {length})"
    return f"{random}.standard_normal(({length}, {info.d_model}), np.float32)"

"""Families that attend to a second sequence or take masks, through export, a server and the client."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from tests.encoders import seeded
from tests.load.sweep.synthetic import a_plan
from tests.pages import block
from tests.server.conftest import Running, running
from tests.server.graphs import OpenGraph
from tests.servers import quick_settings

from polyhead_client import Client, InvalidRequest
from polyhead_client.command import main
from polyhead_export import ExportError, export_family
from polyhead_load.sweep.processes import generate
from polyhead_model import Encoder, EncoderConfig

D, H, L = 16, 2, 2
DECODER = EncoderConfig(
    d_model=D,
    heads=H,
    layers=L,
    feed_forward=32,
    norm="pre",
    causal=True,
    cross_attention="after_self",
    mask_input=True,
    pooling="mean",
)
CONFIGS = {
    "decoder": DECODER,
    "cross": EncoderConfig(d_model=D, heads=H, layers=L, cross_attention="alone"),
    "causal": EncoderConfig(d_model=D, heads=H, layers=L, causal=True, mask_input=True),
}
RANDOM = np.random.default_rng(11)


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, np.float32)


def build(name: str) -> Encoder:
    # Biases, too: they show what is seen of an empty memory.
    return seeded(CONFIGS[name], 2, change=lambda _, parameter: parameter.normal_(std=0.3))


def reference(name: str, *inputs: Any, **more: Any) -> Any:
    """What PyTorch gives for one sequence: output, attention and cross-attention [L, H, T, T or S]."""
    encoder = build(name)
    tensors = {key: torch.from_numpy(np.array(value))[None] for key, value in more.items()}
    with torch.inference_mode():
        result = encoder(*(torch.from_numpy(one)[None] for one in inputs), **tensors, need_weights=True)
    stacked = [
        None if each is None else torch.stack(each)[:, 0].numpy()
        for each in (result.attention, result.cross_attention)
    ]
    return result.output[0].numpy(), *stacked


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cross")
    export_family(build("decoder"), "decoder", folder, graphs=["all"])
    export_family(build("cross"), "cross", folder, graphs=["rows"])
    export_family(build("causal"), "causal", folder, graphs=["rows"])
    return folder


@pytest.fixture(scope="module")
def server(models: Path, device: str) -> Iterator[Running]:
    with running(quick_settings(models, device=device)) as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[Client]:
    with Client(server.address) as one:
        yield one


def test_the_page_shows_what_works(server: Running) -> None:
    code = block("docs/client.md", "memory=memories")
    for shown, ours in {"127.0.0.1:8001": server.address, "decoder-block": "decoder", "768": f"{D}"}.items():
        code = code.replace(shown, ours)
    names: dict[str, Any] = {}

    exec(code, names)

    assert names["result"].attention[0].shape == (H, 3, 5)
    assert names["both"].cross_attention[0][1].shape == (H, 3, 9)


def batched(
    models: Path, name: str, graph: str, requests: Sequence[Mapping[str, Any]], device: str
) -> list[Any]:
    """Run requests in one batch."""
    opened = OpenGraph(models, name, graph, device)
    return list(opened.run([opened.work(feeds) for feeds in requests]).outputs)


# ---- Export --------------------------------------------------------------------------------------


def test_parity_holds_and_attention_stays_fused(models: Path) -> None:
    for name, fused, softmax in (("decoder", 2 * L, 2 * L), ("cross", L, L), ("causal", L, L)):
        manifest = json.loads((models / name / "1" / "manifest.json").read_text())
        for compared in manifest["parity"]["graphs"].values():
            assert all(each["graph"]["rms"] <= each["limit"]["rms"] for each in compared.values())
        operators = {graph: record["operators"] for graph, record in manifest["graphs"].items()}
        assert set(operators) - {"stream"} == {"fast", "attention", "rows"}
        assert operators["fast"]["MultiHeadAttention"] == operators["rows"]["MultiHeadAttention"] == fused
        assert "Softmax" not in operators["fast"]
        assert operators["attention"]["Softmax"] == operators["rows"]["Softmax"] == softmax


def test_insight_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="the memory's tokens are another; rows works"):
        export_family(build("cross"), "cross", tmp_path, graphs=["insight"])


def test_16_bit_decoder_blocks_keep_their_fusions(tmp_path: Path) -> None:
    encoder = build("decoder")
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    config = dataclasses.replace(DECODER, mask_input=False)
    encoder.config = config
    exported = export_family(encoder, "half", tmp_path, precision="fp16")
    manifest = json.loads((exported.folder / "manifest.json").read_text())
    fast = manifest["graphs"]["fast"]["operators"]
    assert fast["Attention"] == 2 * L  # of both kinds, as causal attention in 16 bits pads
    assert fast["SkipLayerNormalization"] >= 3 * L - 1


# ---- Batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["decoder", "cross"])
def test_requests_of_other_lengths_on_both_sides_share_a_batch(models: Path, name: str, device: str) -> None:
    sizes = [(3, 5), (6, 2), (1, 1), (2, 9)]
    requests = []
    for number, (t, s) in enumerate(sizes):
        feeds: dict[str, Any] = {
            "query": floats(2, t, D),
            "memory": floats(2, s, D),
            "lengths": np.array([t, max(1, t - 1)], np.int32),
            "memory_lengths": np.array([0, s], np.int32),
        }
        if name == "decoder":  # a mask that was left out is one value for each sequence
            masked = number in {1, 2}
            shapes = ((2, t, t), (2, t, s)) if masked else ((2, 1, 1), (2, 1, 1))
            values = [RANDOM.random(shape) < (0.6 if masked else 2) for shape in shapes]
            feeds |= dict(zip(("mask", "memory_mask"), values, strict=True))
        requests.append(feeds)
    together = batched(models, name, "attention", requests, device)

    for feeds, outputs in zip(requests, together, strict=True):
        for row in range(2):
            t, s = int(feeds["lengths"][row]), int(feeds["memory_lengths"][row])
            masks = {
                each: np.broadcast_to(feeds[each][row], (t, keys))
                if feeds[each].shape[1] == 1
                else feeds[each][row, :t, :keys]
                for each, keys in (("mask", t), ("memory_mask", feeds["memory"].shape[1]))
                if each in feeds
            }
            output, attention, cross = reference(
                name,
                feeds["query"][row, :t],
                memory=feeds["memory"][row],
                memory_lengths=np.int32(s),
                **masks,
            )
            np.testing.assert_allclose(outputs["output"][row, :t], output, atol=1e-5)
            for layer in range(L):
                got = outputs[f"attention.{layer}"][row, :, :t]
                np.testing.assert_allclose(got[..., : attention.shape[-1]], attention[layer], atol=1e-5)
                if cross is not None:
                    got = outputs[f"cross_attention.{layer}"][row, :, :t]
                    np.testing.assert_allclose(got, cross[layer], atol=1e-5)


# ---- The wire ------------------------------------------------------------------------------------


def test_memory_counts_for_the_limits_of_work(models: Path) -> None:
    settings = quick_settings(models, max_request_tokens=40, max_working_bytes=60_000)
    with running(settings) as one:
        with pytest.raises(grpc.RpcError, match=r"had 50 \(B 1 × S 50, padding included\)"):
            one.infer("cross", {"query": floats(1, 2, D), "memory": floats(1, 50, D)})
        with pytest.raises(grpc.RpcError, match=r"computing B 1 × T 38 × S 39 needs about"):
            one.infer("cross.attention", {"query": floats(1, 38, D), "memory": floats(1, 39, D)})
        assert one.infer("cross.attention", {"query": floats(1, 2, D), "memory": floats(1, 40, D)}).outputs


# ---- The client ----------------------------------------------------------------------------------


def test_one_query_and_its_memory(client: Client) -> None:
    query, memory = floats(4, D), floats(7, D)
    output, attention, _ = reference("cross", query, memory=memory)

    plain = client.encode(query, memory=memory, model="cross")
    assert plain.model == "cross"
    np.testing.assert_allclose(plain.output, output, atol=1e-5)
    result: Any = client.encode(query, memory=memory, model="cross", attention=[-1], heads=[1], dtype="FP16")
    np.testing.assert_allclose(result.attention[1], attention[1, [1]], atol=1e-3)
    rows: Any = client.encode(query, memory=memory, model="cross", attention=True, queries=[3, 0])
    assert rows.model == "cross.rows"
    np.testing.assert_allclose(rows.attention[0], attention[0][:, [3, 0]], atol=1e-5)
    weighted: Any = client.encode(query, memory=memory, model="cross", attention=[0], weighted=True)
    expected = attention[0] * weighted.value_norms[0][:, None]
    np.testing.assert_allclose(weighted.attention[0], expected, atol=1e-5)


def test_decoder_blocks_have_attention_of_both_kinds(client: Client) -> None:
    queries, memories = [floats(t, D) for t in (4, 1, 6)], [floats(s, D) for s in (2, 8, 5)]
    masks = [RANDOM.random((len(q), len(m))) < 0.7 for q, m in zip(queries, memories, strict=True)]
    result: Any = client.encode(
        queries, memory=memories, memory_mask=masks, model="decoder", attention=[0], cross_attention=True
    )
    rows: Any = client.encode(
        queries, memory=memories, memory_mask=masks, model="decoder", cross_attention=[1], queries=[0]
    )
    weighted: Any = client.encode(
        queries, memory=memories, memory_mask=masks, model="decoder", cross_attention=[1], weighted=True
    )

    assert not rows.attention
    assert rows.model == "decoder.rows"
    for number, (query, memory, mask) in enumerate(zip(queries, memories, masks, strict=True)):
        output, attention, cross = reference("decoder", query, memory=memory, memory_mask=mask)
        np.testing.assert_allclose(result.output[number], output, atol=1e-5)
        np.testing.assert_allclose(result.attention[0][number], attention[0], atol=1e-5)
        for layer in range(L):
            np.testing.assert_allclose(result.cross_attention[layer][number], cross[layer], atol=1e-5)
        np.testing.assert_allclose(rows.cross_attention[1][number], cross[1][:, [0]], atol=1e-5)
        assert weighted.cross_attention[1][number].shape == (H, len(query), len(memory))


def test_arrays_keep_their_padding_and_large_batches_are_split(models: Path) -> None:
    settings = quick_settings(models, max_request_tokens=20)
    query, memory = floats(5, 3, D), floats(5, 8, D)
    lengths, memory_lengths = np.array([3, 1, 0, 2, 3]), np.array([8, 0, 3, 8, 5])
    with running(settings) as one, Client(one.address) as client:
        seen: list[tuple[int, int]] = []
        result: Any = client.encode(
            query,
            memory=memory,
            lengths=lengths,
            memory_lengths=memory_lengths,
            model="cross",
            attention=[1],
            progress=lambda done, total: seen.append((done, total)),
        )
        mixed: Any = client.encode(list(query), memory=memory, model="cross", attention=[0])
        ragged = [row[:s] for row, s in zip(memory, (2, 5, 8, 1, 3), strict=True)]
        masks = [np.tri(3, len(row), dtype=np.bool_) for row in ragged]
        listed: Any = client.encode(
            query, memory=ragged, memory_mask=masks, model="decoder", cross_attention=[1]
        )
    assert seen[-1] == (5, 5)
    assert len(seen) == 3
    assert result.attention[1].shape == (5, H, 3, 8)
    assert [each.shape for each in mixed.attention[0]] == [(H, 3, 8)] * 5
    assert listed.cross_attention[1].shape == (5, H, 3, 8)
    for row, (own, mask) in enumerate(zip(ragged, masks, strict=True)):
        output, _, cross = reference("decoder", query[row], memory=own, memory_mask=mask)
        np.testing.assert_allclose(listed.output[row], output, atol=1e-5)
        np.testing.assert_allclose(listed.cross_attention[1][row, ..., : len(own)], cross[1], atol=1e-5)
        assert not listed.cross_attention[1][row, ..., len(own) :].any()
    for row, (t, s) in enumerate(zip(lengths, memory_lengths, strict=True)):
        if t:
            output, attention, _ = reference(
                "cross", query[row, :t], memory=memory[row], memory_lengths=np.int32(s)
            )
            np.testing.assert_allclose(result.output[row, :t], output, atol=1e-5)
            np.testing.assert_allclose(result.attention[1][row, :, :t], attention[1], atol=1e-5)
        assert not result.output[row, t:].any()


def test_a_load_is_put_on_what_has_a_memory(server: Running, tmp_path: Path) -> None:
    plan = a_plan(address=server.address, model="cross", tokens=5, rate=20.0, seconds=0.5)

    assert generate(plan, tmp_path).records.answered.all()


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (floats(3, D), {}, r"inputs of cross must be vectors \(floats\) with memory, was vectors \(floats\)"),
        (floats(3, D), {"memory": [floats(2, D)]}, r"memory must be floats \[S, D\], as there is one query"),
        (floats(2, 3, D), {"memory": floats(3, 4, D)}, r"memory must be floats \[2, S, D\], or a list of 2"),
        ([floats(3, D)], {"memory": [floats(3)]}, r"memory\[0\] must be floats \[S, D\]"),
        (floats(3, D), {"memory": floats(4, D), "memory_lengths": 5}, r"memory_lengths\[0\] must be between"),
        (
            [floats(3, D)],
            {"memory": [floats(4, D)], "memory_lengths": [4]},
            "memory_lengths goes with one array",
        ),
        (floats(3, D), {"memory_mask": np.ones((3, 4), np.bool_)}, "memory_mask goes with memory"),
        (["a text"], {"memory": [floats(4, D)]}, "memory goes with vectors .* the inputs are texts"),
        ([1, 2, 3], {"memory": floats(4, D)}, "memory goes with vectors .* the inputs are token ids"),
        (
            floats(3, D),
            {"memory": floats(4, D), "scores": True},
            "scores is not defined for cross, whose layers attend to a memory",
        ),
        (
            floats(3, D),
            {"memory": floats(4, D), "cross_attention": [0]},
            "cross_attention is not available: its layers attend to the memory alone, which attention gives",
        ),
        (
            floats(3, D),
            {"memory": floats(4, D), "memory_mask": np.ones((3, 4), np.bool_)},
            "memory_mask is no input of cross.* an encoder with mask_input=True takes masks",
        ),
    ],
)
def test_the_client_says_what_does_not_fit(
    client: Client, inputs: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        client.encode(inputs, model="cross", **options)


def test_infer_reads_a_memory_from_a_file(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query, memory = floats(3, D), floats(6, D)
    _, attention, cross = reference("decoder", query, memory=memory)
    for name, array in (("query", query), ("memory", memory)):
        np.save(tmp_path / f"{name}.npy", array)
    command = ["infer", "--address", server.address, "--model", "decoder"]
    command += ["--input", str(tmp_path / "query.npy"), "--memory", str(tmp_path / "memory.npy")]
    command += ["--attention", "0", "--cross-attention", "1", "--npz", str(tmp_path / "all.npz")]

    assert main([*command, "--json"]) == 0
    (sequence,) = json.loads(capsys.readouterr().out)["sequences"]
    strongest = sequence["cross_attention"]["1"][0]
    assert strongest["weight"] == pytest.approx(cross[1, 0].max(), abs=1e-5)
    with np.load(tmp_path / "all.npz") as arrays:
        np.testing.assert_allclose(arrays["attention.0.0"], attention[0], atol=1e-5)
        np.testing.assert_allclose(arrays["cross_attention.1.0"], cross[1], atol=1e-5)
    assert main(command) == 0
    assert "layer 1: strongest edges to the memory" in capsys.readouterr().out


def test_a_mask_goes_with_any_form_of_inputs(client: Client) -> None:
    xs = [floats(t, D) for t in (5, 1, 3)]
    masks = [RANDOM.random((len(x), len(x))) < 0.6 for x in xs]
    listed: Any = client.encode(xs, mask=masks, model="causal", attention=[1])
    for number, (x, mask) in enumerate(zip(xs, masks, strict=True)):
        output, attention, _ = reference("causal", x, mask=mask)
        np.testing.assert_allclose(listed.output[number], output, atol=1e-5)
        np.testing.assert_allclose(listed.attention[1][number], attention[1], atol=1e-5)
        alone: Any = client.encode(x, mask=mask, model="causal", attention=[1], queries=[0])
        assert alone.model == "causal.rows"
        np.testing.assert_allclose(alone.attention[1], attention[1][:, [0]], atol=1e-5)
    without = client.encode(xs[0], model="causal")
    np.testing.assert_allclose(without.output, reference("causal", xs[0])[0], atol=1e-5)

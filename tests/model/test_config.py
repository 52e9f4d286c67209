"""An encoder's configuration: what it allows, and what it says to the rest."""

import dataclasses
import json
import re
from typing import Any

import pytest

from polyhead_model import Classifier, Dense, EncoderConfig

BLOCK = {"feed_forward": 8}


def test_a_configuration_shows_what_is_not_as_by_default() -> None:
    config = EncoderConfig(d_model=8, heads=2, layers=1, causal=True, dense=(Dense(width=4),), pooling="cls")

    assert str(config).startswith(
        "EncoderConfig(d_model=8, heads=2, layers=1, causal=True, pooling='cls', dense=("
    )
    assert eval(repr(config)) == config


def test_head_width_follows_from_the_model_or_is_given() -> None:
    assert EncoderConfig(d_model=12, heads=3, layers=1).head_size == 4
    assert EncoderConfig(d_model=12, heads=5, layers=1, head_width=7).head_size == 7


def test_a_configuration_survives_json() -> None:
    config = EncoderConfig(
        d_model=12,
        heads=3,
        layers=1,
        head_widths=((4, 2, 3),),
        pooling="last",
        dense=(Dense(width=5, activation="tanh"), Dense(width=4, bias=False, normalise=True)),
        classifier=Classifier(labels=("no", "yes"), dense=(Dense(width=12, norm=True),)),
    )

    assert EncoderConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert config.pooled_size == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": 0}, "d_model must be at least 1, was 0"),
        ({"d_model": 2**63}, "d_model must fit into 64 bits, was 9,223,372,036,854,775,808"),
        ({"layers": 10**9}, "layers must be at most 10,000, was 1,000,000,000"),
        ({"head_width": 0}, "head_width must be at least 1, was 0"),
        ({"kv_heads": 3}, "kv_heads must divide heads (4), as equally many queries share each, was 3"),
        ({"kv_heads": 8}, "kv_heads must divide heads (4)"),
        ({"kv_heads": 0}, "kv_heads must be at least 1, was 0"),
        ({"head_widths": [[4, 4, 4, 4]]}, "head_widths must have the widths of 4 heads for each of 2 layers"),
        ({"head_widths": [[4, 4, 4], [4, 4, 4]]}, "head_widths must have the widths of 4 heads"),
        ({"head_widths": [[4, 4, 4, 4], [4, 4, 4, 0]]}, "head_widths[1][3] must be at least 1, was 0"),
        ({"head_widths": [[2, 2, 2, 2], [1, 1, 1, 1]]}, "head_width must be the largest of head_widths, 2"),
        (
            {"head_widths": [[4, 2, 2, 2], [4, 1, 1, 1]], "kv_heads": 2},
            "kv_heads must be left out where there are head_widths, was 2",
        ),
        (
            {"head_widths": [[4, 2, 2, 2], [4, 1, 1, 1]], "shared_layers": True, **BLOCK},
            "head_widths must be the same in each layer where layers are shared",
        ),
        ({"norm_type": "rms", **BLOCK}, "norm_bias must be false where norm_type is 'rms'"),
        (
            {"local_window": 4, "global_every": 2, "first_global": 2},
            "first_global must be below global_every",
        ),
        ({"first_global": 1}, "first_global must be below global_every (None), was 1"),
        ({"types": -1}, "types must be at least 0, was -1"),
        ({"types": 2**63}, "types must fit into 64 bits, was 9,223,372,036,854,775,808"),
        ({"padding_id": 10**5000}, "padding_id must fit into 64 bits, was an integer of 16610 bits"),
        (
            {"layer_norm_epsilon": 1e-46},
            "layer_norm_epsilon must be at least 1.2e-38, the smallest that fp32",
        ),
        ({"rotary_base": 10**400}, "rotary_base must be finite in fp32, was an integer of 1329 bits"),
        (
            {"contacts": {"weights": [1.0, 1e39], "bias": 0, "end_id": 0}},
            "contacts: weights[1] must be finite in fp32, was 1e+39",
        ),
        ({"heads": 5}, "d_model (16) must be a multiple of heads (5); give head_width"),
        ({"norm": "middle"}, "norm must be one of post, pre, both, was 'middle'"),
        ({"activation": "swish"}, "activation must be one of gelu, gelu_tanh, relu, silu, was 'swish'"),
        (
            {"pooling": "sum"},
            "pooling must be one of mean, cls, max, last, weighted_mean, mean_sqrt_len, was 'sum'",
        ),
        ({"dropout": float("nan")}, "dropout must be finite in fp32, was nan"),
        ({"layer_norm_epsilon": 0}, "layer_norm_epsilon must be at least 1.2e-38"),
        ({"norm": "pre"}, "norm must be 'post' when feed_forward is None"),
        ({"kept_heads": [[0]]}, "kept_heads must have the heads of each of 2 layers, has 1"),
        (
            {"kept_heads": [[0], [4]]},
            "kept_heads[1] must be at least one head from 0 to 3, ascending, was [4]",
        ),
        ({"kept_heads": [[0], [1, 1]]}, "kept_heads[1] must be at least one head from 0 to 3, ascending"),
        ({"kept_heads": [[0, 1, 2, 3]] * 2}, "kept_heads must lack a head"),
        (
            {"kept_heads": [[0], [1]], "cross_attention": "after_self", "feed_forward": 8},
            "kept_heads must be None where cross_attention is 'after_self'",
        ),
        ({"positions": 8}, "positions needs vocabulary"),
        ({"normalise": True}, "normalise needs pooling"),
        ({"dense": [{"width": 4}]}, "dense needs pooling"),
        (
            {"pooling": "cls", "dense": [{"width": 4}, {"width": 0}]},
            "dense[1]: width must be at least 1, was 0",
        ),
        ({"classifier": {"labels": []}}, "classifier: labels must be at least one, were none"),
        ({"classifier": {"labels": ["a", "a"]}}, "labels must differ, 'a' was there twice"),
        (
            {"classifier": {"labels": ["a"], "pooling": "cls", "pools_logits": True}},
            "classifier: pools_logits needs the pooling 'mean', was 'cls'",
        ),
        (
            {"padding_id": 8, "vocabulary": 8, "positions": 4},
            "padding_id must be between 0 and vocabulary - 1 (7), was 8",
        ),
        ({"first_attention_norm": False}, "first_attention_norm needs feed_forward"),
        ({**BLOCK, "first_attention_norm": False}, "first_attention_norm must be true unless norm is 'pre'"),
        ({"qk_layer_norm": True, "qk_norm": True}, "qk_norm must be left out where qk_layer_norm is true"),
        (
            {"qk_layer_norm": True, "kept_heads": [[0], [1]]},
            "kept_heads must be left out where qk_layer_norm",
        ),
        ({"final_norm_bias": False}, "final_norm_bias needs final_norm, was False"),
        (
            {"final_norm": True, "norm_bias": False, "final_norm_bias": False},
            "final_norm_bias must be true where norm_bias is false",
        ),
        ({"up_bias": False}, "up_bias needs feed_forward"),
        ({**BLOCK, "bias": False, "up_bias": False}, "up_bias must be true where bias is false"),
        ({"layers": 1, "shared_layers": True}, "shared_layers must be false for a single layer"),
        ({"global_every": 2}, "global_every needs local_window"),
        ({"rotary_base": 9.0, "local_rotary_base": 9.0}, "local_rotary_base needs local_window"),
        ({"local_window": 4, "global_every": 1}, "global_every must be at least 2"),
        ({"local_window": 4, "local_rotary_base": 9.0}, "local_rotary_base needs rotary_base"),
        ({"rotary_base": 1}, "rotary_base must be above 1, was 1"),
        ({"rotary_base": 9.0, "head_width": 5}, "rotary_base needs an even head width"),
        ({"rotary_frequencies": [1.0, 0.1]}, "rotary_frequencies needs rotary_base"),
        (
            {"rotary_base": 9.0, "rotary_frequencies": [1.0]},
            "rotary_frequencies must be half the head width, 2",
        ),
        ({"relative_buckets": 8}, "relative_buckets and relative_distance must be given together"),
        ({"relative_buckets": 7, "relative_distance": 9}, "relative_buckets must be even and at least 4"),
        (
            {"relative_buckets": 8, "relative_distance": 2},
            "relative_distance must be above relative_buckets // 4",
        ),
        ({"rotary_base": 9.0, "cross_attention": "alone"}, "rotary_base must be None where there is cross"),
        (
            {"rotary_base": 9.0, "rotary_frequencies": [1.0, float("nan")]},
            "rotary_frequencies[1] must be finite in fp32, was nan",
        ),
        (
            {"token_dropout_id": 9, "vocabulary": 8},
            "token_dropout_id must be between 0 and vocabulary - 1 (7)",
        ),
        (
            {"padding_id": 1, "vocabulary": 8, "positions": 4, "rotary_base": 9.0},
            "padding_id needs vocabulary and embedded positions",
        ),
        (
            {"padding_id": 1, "vocabulary": 8, "positions": 4, "position_embeddings": False},
            "padding_id needs vocabulary and embedded positions",
        ),
        (
            {"projection_first": True, "vocabulary": 8, "embedding_norm": True},
            "projection_first needs embedding_norm and embedding_width",
        ),
        *(
            ({"disentangled": {"terms": ["c2p"], "span": 4} | wrong}, f"disentangled: {message}")
            for wrong, message in (
                ({"terms": []}, "terms must be c2p, p2c or both, each once, were []"),
                ({"terms": ["c2p", "c2p"]}, "terms must be c2p, p2c or both, each once"),
                ({"terms": ["p2p"]}, "terms[0] must be one of c2p, p2c, was 'p2p'"),
                ({"span": 5, "distance": 9}, "span must be even where there is a distance, was 5"),
                ({"distance": 3}, "distance must be above span / 2 + 1 (3)"),
                ({"distance": 2**20 + 1}, "distance must be at most 1,048,576, was 1,048,577"),
                ({"span": 2**20 + 1}, "span must be at most 1,048,576"),
            )
        ),
        *(
            (
                {"disentangled": {"terms": ["c2p"], "span": 4}, **other},
                f"{next(iter(other))} must be left out where there is disentangled",
            )
            for other in (
                {"kv_heads": 2},
                {"head_widths": [[4] * 4] * 2},
                {"qk_norm": True},
                {"rotary_base": 9.0},
                {"relative_buckets": 8, "relative_distance": 9},
            )
        ),
        (
            {"disentangled": {"terms": ["c2p"], "span": 4}, "cross_attention": "alone"},
            "disentangled must be None where there is cross_attention",
        ),
        ({**BLOCK, "convolution": {"width": 4}}, "convolution: width must be odd, was 4"),
        ({**BLOCK, "convolution": {"width": 3, "groups": 3}}, "groups must divide d_model (16), was 3"),
        *(
            ({**BLOCK, "convolution": {"width": 3}, **other}, "convolution needs blocks of self-attention")
            for other in ({"norm": "pre"}, {"causal": True}, {"cross_attention": "after_self"})
        ),
        ({"convolution": {"width": 3}}, "convolution needs blocks of self-attention with norm 'post'"),
    ],
)
def test_bad_values_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        EncoderConfig(**{"d_model": 16, "heads": 4, "layers": 2} | fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_model": "16"}, "d_model must be an integer, was '16'"),
        ({"heads": 4.0}, "heads must be an integer, was 4.0"),
        ({"bias": 1}, "bias must be true or false, was 1"),
        ({"dropout": "0"}, "dropout must be a number, was '0'"),
        ({"dense": 3}, "dense must be a list, was 3"),
        ({"dense": [3]}, "dense[0] must be an object, was 3"),
        ({"dense": [{"size": 4}]}, "dense[0]: there is no field 'size', only width, activation, "),
        ({"rotary_base": 9.0, "rotary_frequencies": 3}, "rotary_frequencies must be a list, was 3"),
        ({"classifier": "a"}, "classifier must be an object, was 'a'"),
        ({"classifier": {"labels": "ab"}}, "classifier: labels must be a list, was 'ab'"),
    ],
)
def test_bad_types_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        EncoderConfig(**{"d_model": 16, "heads": 4, "layers": 2} | fields)


def test_errors_do_not_show_all_of_what_is_long() -> None:
    labels = [f"label {number}" for number in range(100_000)]

    with pytest.raises(ValueError, match="labels must differ, 'label 7' was there twice") as raised:
        Classifier(labels=(*labels, labels[7]))
    with pytest.raises(TypeError, match="labels\\[100000\\] must be a string, was 7") as also:
        Classifier(labels=[*labels, 7])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rotary_frequencies needs rotary_base") as third:
        EncoderConfig(d_model=16, heads=4, layers=1, rotary_frequencies=(0.5,) * 100_000)

    assert sum(len(str(each.value)) for each in (raised, also, third)) < 450

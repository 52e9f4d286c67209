"""Requests for the vectors of texts, and the calls that count."""

import psutil
import pytest

from benchmarks.load_generator import LoadResult
from benchmarks.peers.contenders import Contender
from benchmarks.texts.served import TextServer, whole_rounds
from polyhead_proto import messages as pb
from polyhead_proto.datatypes import unpack_strings


@pytest.mark.parametrize("per_text", [(), (1,)])
def test_requests_hold_so_many_texts(per_text: tuple[int, ...]) -> None:
    contender = Contender(name="it", address="127.0.0.1:1", process=psutil.Process())
    server = TextServer(contender=contender, model="minilm", per_text=per_text)

    requests = [pb.ModelInferRequest.FromString(each) for each in server.requests(["a", "bä", "c"], 2)]

    assert [list(each.inputs[0].shape) for each in requests] == [[2, *per_text], [1, *per_text]]
    assert unpack_strings("text", [2], requests[0].raw_input_contents[0]) == [b"a", "bä".encode()]
    assert requests[0].model_name == "minilm"


@pytest.mark.parametrize(
    ("latencies", "rate"), [([100.0, 300.0, 100.0, 300.0, 100.0], 5.0), ([100.0, 300.0], 5.0), ([100.0], 1.0)]
)
def test_part_of_a_round_is_left_out(latencies: list[float], rate: float) -> None:
    load = LoadResult(latencies_ms=latencies, errors=0, seconds=1.0, client_cores=0.0, server_cores=0.0)

    assert whole_rounds(load, 2).rate == pytest.approx(rate)


def test_requests_hold_token_ids() -> None:
    server = TextServer(contender=Contender(name="it", address="127.0.0.1:1"), model="minilm")

    requests = [pb.ModelInferRequest.FromString(each) for each in server.requests([[5, 6], [7, 8], [9]], 2)]

    assert [(each.name, list(each.shape)) for each in requests[0].inputs] == [
        ("input_ids", [2, 2]),
        ("token_type_ids", [2, 2]),
        ("lengths", [2]),
    ]
    assert list(requests[1].inputs[0].shape) == [1, 1]

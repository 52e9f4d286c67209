"""Places on a page: none is taken twice, and every word that others use has one."""

from grpc import StatusCode

from polyhead_server.observability import counter_layout as at
from polyhead_server.scheduling.observer import Drop


def test_no_place_is_taken_twice() -> None:
    histograms = (at.REQUEST, at.PARSE, at.TOKENISE, at.QUEUE, at.COMPUTE, at.SERIALISE, at.BATCH)
    taken = [
        *(place for one in histograms for place in range(one.first, one.sum + 1)),
        *(row + offset for row in at.BATCH_ROWS.values() for offset in range(4)),
        *(slot for codes in at.CODE.values() for slot in codes.values()),
        *at.DROP.values(),
        *at.GAUGES,
        *(at.INPUT_NS, at.FAILED, at.FAILED_NS, at.SEQUENCES, at.LAST_INFERENCE_MS),
        *range(at.PROVIDER.start, at.PROVIDER.stop),
        *(at.TOKENS, at.PADDED_TOKENS),
    ]

    assert len(taken) == len(set(taken))
    assert max(taken) < at.SLOTS


def test_every_status_and_every_reason_has_a_place() -> None:
    for codes in at.CODE.values():
        assert set(codes) == {code.name for code in StatusCode}
    assert {*Drop, at.DRAINING, at.LOADING, at.MEMORY} == set(at.DROP)


def test_any_provider_has_a_name() -> None:
    values = [0] * at.SLOTS
    assert at.decode_provider(values) == ""
    values[at.PROVIDER] = at.encode_provider("OpenVINOExecutionProvider")

    assert at.decode_provider(values) == "OpenVINOExecutionProvider"
    assert len(at.encode_provider("x" * 100)) == len(at.encode_provider(""))


def test_large_batches_share_the_place_of_the_next_power_of_two() -> None:
    places = {size: row for size, row in at.BATCH_ROWS.items() if at.batch_row(size) == row}

    assert places == at.BATCH_ROWS
    assert at.batch_row(256) != at.batch_row(257) == at.batch_row(512) != at.batch_row(513)
    assert at.batch_row(2**31) == at.BATCH_ROWS[2**31]

"""Places on a page: none is taken twice, and every word that others use has one."""

from polyhead_server.observability import counter_slots as slots


def test_no_place_is_taken_twice() -> None:
    histograms = (
        slots.REQUEST,
        slots.PARSE,
        slots.TOKENISE,
        slots.QUEUE,
        slots.COMPUTE,
        slots.SERIALISE,
        slots.BATCH,
    )
    taken = [
        *(place for one in histograms for place in range(one.first, one.sum + 1)),
        *(row + offset for row in slots.BATCH_ROWS.values() for offset in range(4)),
        *(slot for codes in slots.CODE.values() for slot in codes.values()),
        *slots.DROP.values(),
        *slots.GAUGES,
        *(slots.INPUT_NS, slots.FAILED, slots.FAILED_NS, slots.SEQUENCES, slots.LAST_INFERENCE_MS),
        *range(slots.PROVIDER.start, slots.PROVIDER.stop),
        *(slots.TOKENS, slots.PADDED_TOKENS),
    ]

    assert len(taken) == len(set(taken))
    assert max(taken) < slots.SLOTS


def test_any_provider_has_a_name() -> None:
    values = [0] * slots.SLOTS
    assert slots.decode_provider(values) == ""
    values[slots.PROVIDER] = slots.encode_provider("OpenVINOExecutionProvider")

    assert slots.decode_provider(values) == "OpenVINOExecutionProvider"
    assert len(slots.encode_provider("x" * 100)) == len(slots.encode_provider(""))


def test_large_batches_share_the_place_of_the_next_power_of_two() -> None:
    assert all(slots.batch_row(size) == row for size, row in slots.BATCH_ROWS.items())
    assert slots.batch_row(256) != slots.batch_row(257) == slots.batch_row(512) != slots.batch_row(513)
    assert slots.batch_row(2**31) == slots.BATCH_ROWS[2**31]

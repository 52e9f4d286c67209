"""What each model has done so far, counted the way Triton's statistics count."""

import time
from dataclasses import dataclass, field


@dataclass
class Duration:
    """How often something happened, and how long it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        """Counts one more."""
        self.count += 1
        self.ns += ns


@dataclass
class BatchStatistics:
    """The runs of one batch size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass
class Statistics:
    """One model's counters. Written on the event loop only."""

    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    """From the message to arrays: reading, checking, tokenising."""
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    """From arrays to the message: selecting, converting, writing."""
    sequences: int = 0
    executions: int = 0
    last_inference_ms: int = 0
    """Since the epoch."""
    batches: dict[int, BatchStatistics] = field(default_factory=dict)

    def succeeded(
        self,
        *,
        batch: int,
        ran: bool,
        total_ns: int,
        queue_ns: int,
        input_ns: int,
        infer_ns: int,
        output_ns: int,
    ) -> None:
        """Counts an answered request of `batch` sequences, for which the engine ran or did not need to."""
        self.success.add(total_ns)
        self.queue.add(queue_ns)
        self.sequences += batch
        self.executions += ran
        self.last_inference_ms = time.time_ns() // 1_000_000
        for counters in (self, self.batches.setdefault(batch, BatchStatistics())):
            counters.compute_input.add(input_ns)
            counters.compute_infer.add(infer_ns)
            counters.compute_output.add(output_ns)

    def failed(self, *, total_ns: int) -> None:
        """Counts a request that was refused, failed, cancelled or late."""
        self.fail.add(total_ns)

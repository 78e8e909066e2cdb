"""The decode benchmark: what it times is the decode that the locks hold."""

from harness.devices import open_device
from oracle.config import preset
from oracle.weights import load
from reports.bench_decode import Case, measure


class TestMeasure:
    """A measured run reports the stream it decoded, so that a wrong one has no speed."""

    def test_stream_does_not_depend_on_batch_chunk_or_drafts(self):
        """One prompt gives one stream alone, in a batch, by other chunks and with drafts (red: a wrong graph)."""
        device, weights = open_device("host"), load("synthetic:1", preset("tiny"))
        cases = (Case("a8", 1, 5, 4, 5), Case("a8", 2, 5, 4, 3), Case("a8", 1, 5, 4, 5, drafts=2))
        runs = [measure(device, weights, case) for case in cases]
        assert len({run["first_stream_sha256"] for run in runs}) == 1

    def test_counts_steps_and_tokens(self):
        """A run makes the tokens it was asked for, no sequence is flagged, and times are positive."""
        run = measure(open_device("host"), load("synthetic:1", preset("tiny")), Case("a8", 2, 5, 4, 5))
        assert (run["steps"], run["tokens_made"], run["flags"]) == (3, 6, [0])
        assert run["ms"] > 0
        assert run["ms_a_step_p99"] >= run["ms"]

"""Sixteen clients at once on the embedded model, for ten seconds and until the last answers have come."""

import load
import pytest


@pytest.mark.slow
def test_many_clients_at_once() -> None:
    run = load.serve_and_run(["--lanes", "4", "--threads", "1"], num_clients=16, seconds=10)
    assert not run.errors, load.report(run)
    assert min(client.tokens for client in run.clients) > 0, load.report(run)
    assert run.growth < 1.5, load.report(run)

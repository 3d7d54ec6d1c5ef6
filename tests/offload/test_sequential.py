"""Sequential scheduling: the same tokens bit for bit, and nothing beside the model's own work."""

from __future__ import annotations

import pytest
import torch

import kvviz
from kvviz.offload.background import Pending, sequential
from tests import tiny_models

FIELDS = {
    "clusterkv": {"budget": 48, "sinks": 4, "dense_layers": 0},
    "pqcache": {"budget": 64},
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_schedule_changes_no_result(name):
    lm = kvviz.LanguageModel(tiny_models.make("llama"), tiny_models.letters_tokenizer(), "tiny")

    def run():
        return kvviz.generate(
            lm, tiny_models.prompt(333), name, max_new_tokens=40, store="host", record=True, timeline=True,
            **FIELDS[name],
        )  # fmt: skip

    overlapped = run()
    with sequential():
        in_line = run()
    assert in_line.token_ids == overlapped.token_ids
    steps = overlapped.recording.steps
    assert steps > 30
    for step in range(steps):
        for layer in overlapped.recording.layers:
            assert (in_line.recording.indices(step, layer) == overlapped.recording.indices(step, layer)).all()
    assert in_line.ledger == overlapped.ledger
    threads = {"overlapped": overlapped, "in line": in_line}
    builds = {
        schedule: [event for event in out.timeline.events if event.what == "build"] for schedule, out in threads.items()
    }
    assert len(builds["in line"]) == len(builds["overlapped"]) == 4
    for build in builds["in line"]:  # no layer's own work runs at the same time
        for event in in_line.timeline.events:
            if event.what in ("projections and FFN", "attention", "select"):
                assert event.end_s <= build.start_s or event.start_s >= build.end_s, (build, event)


def test_work_runs_in_the_calling_thread_and_errors_wait_for_the_result():
    import threading

    def fail():
        raise ValueError("broken")

    caller, tensor = threading.get_ident(), torch.zeros(1)
    with sequential():
        pending = Pending(threading.get_ident, (tensor,), stream="build")
        broken = Pending(fail, (tensor,), stream="build")
    assert pending.result() == caller != Pending(threading.get_ident, (tensor,), stream="build").result()
    with pytest.raises(ValueError, match="broken"):
        broken.result()

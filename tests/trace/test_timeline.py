"""Timelines: spans with a scripted clock, overlap against counting, files, and work in other threads."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvviz
from kvviz.errors import IncompatibleFileError, InvalidInputError
from kvviz.offload.background import Pending, device_clock
from kvviz.trace.storage import read_arrays, write_arrays
from kvviz.trace.timeline import STREAMS, Event, Timeline, span, waiting


class ScriptedClock:
    """A clock that gives these times, one after the other."""

    name = "scripted"

    def __init__(self, *times: float) -> None:
        self.times = list(times)

    def mark(self) -> float:
        return self.times.pop(0)

    def seconds(self, mark: float) -> float:
        return mark


def scripted(*times: float) -> Timeline:
    timeline = Timeline("a test")
    timeline.use(ScriptedClock(*times))
    return timeline


def timeline_of(spans: list[tuple[str, float, float]]) -> Timeline:
    timeline = scripted(*(bound for _, *bounds in spans for bound in bounds))
    for stream, *_ in spans:
        with timeline.span(stream, "something"):
            pass
    return timeline


class TestSpans:
    def test_a_span_inside_another_interrupts_it(self):
        timeline = scripted(0, 1, 2, 3, 4, 5)
        with timeline.span("compute", "attention", 7), timeline.span("transfer", "fetch", 7):
            pass
        assert timeline.events == (
            Event(0, 1, "compute", "attention", 7, "prefill"),
            Event(2, 3, "transfer", "fetch", 7, "prefill"),
            Event(4, 5, "compute", "attention", 7, "prefill"),
        )
        assert timeline.overlap()["transfer"] == 0

    def test_waiting_is_left_out(self):
        timeline = scripted(0, 1, 9, 10)
        with span(timeline.of(2), "compute", "attention"), waiting(timeline.of(2)):
            pass
        assert [event[:2] for event in timeline.events] == [(0, 1), (9, 10)]
        with waiting(timeline.of(2)):
            pass
        assert len(timeline.events) == 2, "there was no span to interrupt"

    def test_an_error_ends_its_spans(self):
        timeline = scripted(0, 1, 2, 3, 4, 5, 6, 7)
        with (
            pytest.raises(ZeroDivisionError),
            timeline.span("compute", "attention"),
            timeline.span("transfer", "fetch"),
        ):
            _ = 1 / 0
        with timeline.span("compute", "select"):
            pass
        assert [event.what for event in timeline.events] == ["attention", "fetch", "attention", "select"]

    def test_other_threads_interrupt_no_span_and_keep_the_phase_of_the_request(self):
        timeline = scripted(0, 1, 2, 3)
        requested = timeline.span("clustering", "build", 3)

        def build() -> None:
            with requested:
                pass

        timeline.phase = "decode"
        with timeline.span("compute", "attention", 4):
            worker = threading.Thread(target=build)
            worker.start()
            worker.join()
        assert timeline.events == (
            Event(0, 3, "compute", "attention", 4, "decode"),
            Event(1, 2, "clustering", "build", 3, "prefill"),
        )
        assert timeline.overlap() == pytest.approx({"clustering": 1.0, "transfer": np.nan, "host": np.nan}, nan_ok=True)

    def test_spans_between_two_layers_are_the_models_compute(self):
        timeline = scripted(*range(12))
        timeline.begin_pass()  # marks 0 and 1
        timeline.arrive(0, "prefill")
        timeline.leave(0)
        timeline.arrive(1, "prefill")
        timeline.leave(1)
        timeline.end_pass()  # marks 6 and 7
        timeline.leave(1)  # an unannounced pass, and one after it
        timeline.arrive(0, "decode")
        assert timeline.events == (
            Event(0, 7, "pass", "forward pass", -1, "prefill"),
            Event(1, 2, "compute", "embedding and projections", 0, "prefill"),
            Event(3, 4, "compute", "projections and FFN", 0, "prefill"),
            Event(5, 6, "compute", "FFN and logits", 1, "prefill"),
        )

    def test_without_a_timeline_nothing_happens(self):
        with span(None, "compute", "attention"), waiting(None):
            pass

    def test_an_unknown_stream_and_a_used_timeline_are_refused(self):
        timeline = scripted(0, 1)
        with pytest.raises(InvalidInputError, match=r"stream: got 'network'; wanted one of \('pass', 'compute'"):
            timeline.span("network", "fetch")
        with timeline.span("host", "attention"):
            pass
        with pytest.raises(InvalidInputError, match="a new Timeline for each cache"):
            timeline.use(ScriptedClock())

    def test_the_host_has_its_own_clock(self):
        timeline = scripted()
        with timeline.span("host", "attention"):
            time.sleep(0.002)
        (event,) = timeline.events
        assert 0 <= event.start_s < event.end_s - 0.001


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from(STREAMS), st.integers(0, 30), st.integers(0, 12)).map(
            lambda row: (row[0], row[1], row[1] + row[2])
        ),
        max_size=12,
    )
)
def test_overlap_equals_counting(spans):
    """Spans last whole seconds, so that each second can be counted."""
    spans = [row for row in spans if row[0] != "host"]
    shares = timeline_of(spans).overlap()
    ran = {stream: {s for name, a, b in spans if name == stream for s in range(a, b)} for stream in STREAMS}
    for stream in ("clustering", "transfer", "host"):
        expected = len(ran[stream] & ran["compute"]) / len(ran[stream]) if ran[stream] else np.nan
        assert shares[stream] == pytest.approx(expected, nan_ok=True)


def test_seconds_by_stream_name_and_phase():
    timeline = timeline_of([("pass", 0, 10), ("clustering", 2, 3), ("clustering", 2, 3), ("compute", 0, 9)])
    assert timeline.seconds() == 21
    assert timeline.seconds("clustering") == timeline.seconds("clustering", "something", "prefill") == 2
    assert timeline.seconds(phase="decode") == timeline.seconds(what="nothing") == 0
    assert timeline.build_share() == 0.2
    assert np.isnan(Timeline().build_share())


class TestFiles:
    def test_a_saved_timeline_is_read_back(self, tmp_path):
        timeline = timeline_of([("pass", 0, 1.25), ("clustering", 0.1, 3e5), ("compute", 0.5, 0.5)])
        loaded = Timeline.load(timeline.save(tmp_path / "timeline.safetensors"))
        assert loaded.events == timeline.events
        assert (loaded.description, loaded.clock) == ("a test", "scripted")
        with pytest.raises(InvalidInputError, match="a new Timeline"):
            loaded.use(ScriptedClock())

    def test_an_empty_timeline_is_read_back(self, tmp_path):
        loaded = Timeline.load(Timeline().save(tmp_path / "empty"))
        assert loaded.events == ()
        assert loaded.to_frame().shape == (0, 6)

    def test_a_frame(self):
        frame = timeline_of([("pass", 0, 1), ("compute", 0.5, 0.75)]).to_frame()
        assert list(frame.columns) == ["start_s", "end_s", "stream", "what", "layer", "phase"]
        assert frame["stream"].tolist() == ["pass", "compute"]
        assert frame["end_s"].tolist() == [1, 0.75]

    def test_a_frame_is_read_back(self):
        timeline = timeline_of([("pass", 0, 1), ("compute", 0.5, 0.75), ("transfer", 0.6, 0.9)])
        frame = timeline.to_frame()
        again = Timeline.from_frame(frame.sample(frac=1, random_state=0).assign(other=1), "again")
        assert again.events == timeline.events
        assert again.overlap() == pytest.approx(timeline.overlap(), nan_ok=True)
        assert again.description == "again"
        for column, value in (("stream", "unknown"), ("phase", "later"), ("end_s", -1.0)):
            with pytest.raises(InvalidInputError, match=r"Timeline\.from_frame: got"):
                Timeline.from_frame(frame.assign(**{column: value}))
        with pytest.raises(InvalidInputError, match="wanted also layer"):
            Timeline.from_frame(frame.drop(columns="layer"))

    @pytest.mark.parametrize("cut", [0, 5, 100, -1])
    def test_a_truncated_file_is_refused(self, tmp_path, cut):
        path = timeline_of([("pass", 0, 1)]).save(tmp_path / "timeline")
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(IncompatibleFileError, match="damaged or truncated"):
            Timeline.load(path)

    def test_another_kind_and_version(self, tmp_path, monkeypatch):
        path = timeline_of([("pass", 0, 1)]).save(tmp_path / "timeline")
        with pytest.raises(IncompatibleFileError, match=r"kind 'kvviz\.timeline'"):
            kvviz.Recording.load(path)
        monkeypatch.setattr(Timeline, "VERSION", 2)
        with pytest.raises(IncompatibleFileError, match="version 1; wanted version 2"):
            Timeline.load(path)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("end_ns", [-1, 5]), ("end_ns", [5]), ("start_ns", None), ("start_ns", np.zeros(2, np.int32)),
            ("stream", [9, 0]), ("stream", [-1, 0]), ("what", [1, 0]), ("phase", [0, 2]), ("layer", [-2, 0]),
            ("layer", np.zeros((2, 2), np.int32)), ("layer", np.zeros((), np.int32)),
            ("phase", np.zeros(2, np.float32)),
        ],
        ids=str,
    )  # fmt: skip
    def test_impossible_events_are_refused(self, tmp_path, name, value):
        path = timeline_of([("pass", 0, 1), ("compute", 0, 1)]).save(tmp_path / "timeline")
        arrays, metadata = read_arrays(path, Timeline.KIND, 1)
        edited = {key: np.array(array) for key, array in arrays.items()}
        if value is None:
            del edited[name]
        else:
            edited[name] = np.asarray(value, None if isinstance(value, np.ndarray) else edited[name].dtype)
        write_arrays(tmp_path / "edited", Timeline.KIND, 1, edited, metadata)
        with pytest.raises(IncompatibleFileError):
            Timeline.load(tmp_path / "edited")

    @pytest.mark.parametrize("change", [{"clock": 3}, {"what": "x"}, {"more": 1}, {"description": None}], ids=str)
    def test_impossible_metadata_is_refused(self, tmp_path, change):
        path = timeline_of([("pass", 0, 1)]).save(tmp_path / "timeline")
        arrays, metadata = read_arrays(path, Timeline.KIND, 1)
        write_arrays(tmp_path / "edited", Timeline.KIND, 1, arrays, metadata | change)
        with pytest.raises(IncompatibleFileError, match=next(iter(change))):
            Timeline.load(tmp_path / "edited")


def test_work_in_a_thread_is_recorded_while_it_runs():
    timeline = Timeline()
    timeline.use(device_clock(torch.device("cpu")))
    running, finish = threading.Event(), threading.Event()

    def work() -> int:
        running.set()
        assert finish.wait(120)
        return 7

    pending = Pending(work, (torch.zeros(1),), stream="transfer", span=timeline.span("transfer", "prefetch", 5))
    with timeline.span("compute", "attention", 4):
        assert running.wait(120)
        time.sleep(0.005)
    finish.set()
    assert pending.result() == 7
    transfer = next(event for event in timeline.events if event.stream == "transfer")
    assert (transfer.what, transfer.layer) == ("prefetch", 5)
    assert transfer.end_s - transfer.start_s >= 0.004
    assert timeline.overlap()["transfer"] > 0


@pytest.mark.gpu
def test_cuda_events_are_recorded_on_the_stream_of_the_work():
    device = torch.device("cuda")
    timeline = Timeline()
    timeline.use(device_clock(device))
    assert timeline.clock == "CUDA events"
    square = torch.ones(4096, 4096, device=device)
    for _ in range(2):  # the first loads the libraries
        pending = Pending(
            lambda: [square @ square for _ in range(20)][-1],
            (square,),
            stream="build",
            span=timeline.span("clustering", "build", 1),
        )
        with timeline.span("compute", "attention", 1):
            for _ in range(20):
                _ = square @ square
        pending.result()
    *_, compute = (event for event in timeline.events if event.stream == "compute")
    *_, build = (event for event in timeline.events if event.stream == "clustering")
    for event in (compute, build):
        assert event.end_s - event.start_s > 1e-3, "the time of the GPU's work, not of the launch"
    assert timeline.overlap()["clustering"] > 0

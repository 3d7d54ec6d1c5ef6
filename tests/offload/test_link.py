"""Predicted transfer times against values by hand, and the fit against a known link."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import kvviz
from kvviz.offload import LinkModel
from kvviz.offload.link import MEASURED_BYTES
from kvviz.trace import Ledger
from tests import synthetic


@pytest.mark.parametrize(
    ("name", "gigabytes_per_s", "label"),
    [
        ("pcie3", 15.754, "PCIe 3.0 ×16 (peak of the specification)"),
        ("pcie4", 31.508, "PCIe 4.0 ×16 (peak of the specification)"),
        ("pcie5", 63.015, "PCIe 5.0 ×16 (peak of the specification)"),
        ("nvlink-c2c", 450.0, "NVLink-C2C (peak of the specification)"),
    ],
)
def test_presets_are_the_published_peaks(name, gigabytes_per_s, label):
    link = LinkModel.named(name)
    assert link.bytes_per_s / 1e9 == pytest.approx(gigabytes_per_s, abs=6e-4)
    assert (link.label, link.latency_s, link.basis) == (label, 0.0, "peak")
    assert set(LinkModel.PRESETS) == {"pcie3", "pcie4", "pcie5", "nvlink-c2c"}


def test_fewer_lanes():
    assert LinkModel.pcie(4, 8).bytes_per_s == LinkModel.pcie(3).bytes_per_s
    assert LinkModel.pcie(3, 1).bytes_per_s == pytest.approx(984.6e6, rel=1e-4)
    assert LinkModel.pcie(5, 4).name == "PCIe 5.0 ×4"


class TestSeconds:
    link = LinkModel("slow", bytes_per_s=1e6, latency_s=1e-3)

    def test_by_hand(self):
        assert self.link.seconds(2_000_000) == pytest.approx(2.001)
        assert self.link.seconds(2_000_000, transfers=10) == pytest.approx(2.010)
        assert isinstance(self.link.seconds(np.int64(5)), float)
        assert self.link.seconds(0, transfers=10) == 0, "zero bytes are no transfer"

    def test_arrays(self):
        moved = np.array([[0, 1000, 500_000], [1, 2, 3]])
        seconds = self.link.seconds(moved, np.array([[3], [2]]))
        expected = [
            [size / 1e6 + (count * 1e-3 if size else 0) for size in row]
            for count, row in zip((3, 2), moved, strict=True)
        ]
        np.testing.assert_allclose(seconds, expected, rtol=1e-12)
        assert self.link.seconds([]).shape == (0,)

    @pytest.mark.parametrize("bad", [-1, np.nan, np.inf, "much", [1, -2], None, [1, "x"]])
    def test_bad_numbers(self, bad):
        for arguments in ((bad,), (1, bad)):
            with pytest.raises(kvviz.InvalidInputError, match=r"LinkModel\.seconds"):
                self.link.seconds(*arguments)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinkModel("x", 0),
        lambda: LinkModel("x", -5.0),
        lambda: LinkModel("x", float("nan")),
        lambda: LinkModel("x", float("inf")),
        lambda: LinkModel("x", 1.0, -1e-6),
        lambda: LinkModel("x", 1.0, float("inf")),
        lambda: LinkModel.pcie(2),
        lambda: LinkModel.pcie(4, 3),
        lambda: LinkModel.measured("meta"),
        lambda: LinkModel.fitted("x", [10], [1.0]),
        lambda: LinkModel.fitted("x", [10, 10], [1.0, 2.0]),
        lambda: LinkModel.fitted("x", [10, 20], [1.0]),
        lambda: LinkModel.fitted("x", [10, 20], [1.0, 0.0]),
        lambda: LinkModel.fitted("x", [10, 20, 40], [3.0, 2.0, 1.0]),
    ],
)
def test_bad_input(make):
    with pytest.raises(kvviz.InvalidInputError, match="LinkModel"):
        make()


def test_unknown_names():
    with pytest.raises(kvviz.UnknownNameError, match="did you mean 'pcie4'"):
        LinkModel.named("pcie-4")


class TestFit:
    @pytest.mark.parametrize("latency_s", [0.0, 2e-6, 3e-4])
    @pytest.mark.parametrize("bytes_per_s", [1e8, 2.5e10])
    def test_a_known_link_is_recovered(self, latency_s, bytes_per_s):
        times = [latency_s + size / bytes_per_s for size in MEASURED_BYTES]
        link = LinkModel.fitted("known", MEASURED_BYTES, times)
        assert link.bytes_per_s == pytest.approx(bytes_per_s, rel=1e-6)
        assert link.latency_s == pytest.approx(latency_s, rel=1e-6, abs=1e-12)
        assert link.label == "known (measured)"

    def test_with_noise_of_three_percent(self):
        rng = np.random.default_rng(0)
        times = [(1e-5 + size / 2e10) * rng.normal(1, 0.03) for size in MEASURED_BYTES]
        link = LinkModel.fitted("noisy", MEASURED_BYTES, times)
        assert link.bytes_per_s == pytest.approx(2e10, rel=0.06)
        assert link.latency_s == pytest.approx(1e-5, rel=0.06)

    def test_no_latency_below_zero(self):
        """If large copies are slower per byte than small ones, the best latency would be negative."""
        sizes, times = [100, 200, 400], [1e-4, 2.2e-4, 5e-4]
        link = LinkModel.fitted("bent", sizes, times)
        assert link.latency_s == 0
        slopes = np.linspace(0.9e-6, 1.3e-6, 4001)
        errors = [
            sum((slope * size / time - 1) ** 2 for size, time in zip(sizes, times, strict=True)) for slope in slopes
        ]
        assert 1 / link.bytes_per_s == pytest.approx(slopes[np.argmin(errors)], abs=2e-10)


class TestPredictions:
    def recording(self, moved):
        """A synthetic recording in which layers 2 and 3 moved these bytes at each of six steps."""
        recording = synthetic.recording()
        events = {
            layer: dataclasses.replace(recording.events[layer], moved_bytes=np.array(column, np.int64))
            for layer, column in zip((2, 3), moved, strict=True)
        }
        return recording.replace(events=events)

    def test_a_recording_by_step(self):
        moved = [[0, 10, 1000, 0, 5, 7], [0, 20, 0, 3000, 5, 0]]
        link = LinkModel("slow", 1e3, 0.5)
        expected = [sum(column[step] / 1e3 + (0.5 if column[step] else 0.0) for column in moved) for step in range(6)]
        predicted = link.predict(self.recording(moved))
        assert predicted.shape == (6,)
        assert predicted.tolist() == pytest.approx(expected)

    def test_a_recording_on_the_device_takes_no_time(self):
        assert not LinkModel.named("pcie3").predict(synthetic.recording()).any()

    def test_a_ledger(self):
        link = LinkModel("slow", 1e3, 0.5)
        assert link.predict_total(Ledger(moved_bytes=4000)) == 4.5
        assert link.predict_total(Ledger(moved_bytes=4000), transfers=3) == 5.5
        assert link.predict_total(Ledger()) == 0

    def test_a_replay_with_a_store_on_the_host(self):
        """The bytes of a real run, predicted for a link of one byte per second."""
        rng = np.random.default_rng(0)
        arrays = [{0: rng.normal(size=(heads, 300, 8)).astype(np.float16)} for heads in (4, 2, 2)]
        trace = kvviz.Trace("random", kvviz.Geometry(1, 4, 2, 8, 512), ["x"] * 300, np.arange(300), *arrays)
        recording = kvviz.replay(trace, "quest", queries=8, store="host", budget=64, dense_layers=0)
        link = LinkModel("unit", 1.0)
        assert link.predict(recording).sum() == recording.events[0].moved_bytes.sum() > 0
        assert link.predict_total(recording.ledgers[0]) >= link.predict(recording).sum()


def test_measuring_the_memory_of_this_machine():
    link = LinkModel.measured("cpu")
    assert link.label == "memory of this machine (measured)"
    assert 1e8 < link.bytes_per_s < 1e12
    assert 0 <= link.latency_s < 1e-2


@pytest.mark.gpu
def test_measuring_the_link_of_the_gpu():
    link = LinkModel.measured()
    assert link.name == f"pinned memory to {torch.cuda.get_device_name()}"
    assert 1e9 < link.bytes_per_s < 1e12
    assert 0 <= link.latency_s < 1e-3

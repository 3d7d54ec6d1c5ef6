"""The cost of methods: time, memory, transfers."""

from __future__ import annotations

import plotly.graph_objects as go

from families import benchmarks, figure, title
from kvviz import Geometry, plots
from kvviz.offload import LinkModel
from notebooks.runs import Runs


@figure("ClusterKV fig. 13, PQCache fig. 12b, CentroidKV tables 6 and 7")
def latency(runs: Runs) -> go.Figure:
    """The time of a decode step by part. Grey is the model's other work, which no method can reduce; "attention" is the
    rest, without the selection.
    """
    table = benchmarks.decoding()
    return plots.latency(table, title=title(table, "Time of a decode step by part"))


@figure("none of the papers")
def latency_of_choosing(runs: Runs) -> go.Figure:
    """The time to select the tokens of a step in one layer, as the prompt grows."""
    return plots.latency(benchmarks.choosing())


@figure("none of the papers")
def long_generation(runs: Runs) -> go.Figure:
    """What a step attends to, finds on the device, keeps there and takes, while many tokens are generated. SnapKV's
    budget is for the prompt; ClusterKV's tokens that wait for their cluster come on top.
    """
    return plots.long_generation(benchmarks.generating())


@figure("CTkvr fig. 7, CentroidKV table 12")
def throughput_by_batch(runs: Runs) -> go.Figure:
    """Tokens per second over all texts of a batch, up to a limit of keys and values on the device.

    Methods with keys and values in host memory allow larger batches. On a CPU both are the same
    memory: no bus is crossed, and the limit is only a number.
    """
    return plots.throughput_by_batch(benchmarks.throughput())


@figure("CTkvr fig. 8 and table 9")
def index_build_time(runs: Runs) -> go.Figure:
    """The time to build an index of one layer's keys, beside faiss's IVF, HNSW and k-means, and the exponent of its
    growth with the length.
    """
    return plots.index_build_time(benchmarks.building())


@figure("none of the papers; PQCache eq. 1 to 3")
def iteration_fit(runs: Runs) -> go.Figure:
    """How many iterations of PQCache's clustering one layer's computation hides, as measured on a CPU, and as if the
    layer were computed 10 or 100 times as fast: then the choice, and at last the lower limit, binds.
    """
    fits = {
        f"{label} as fast": benchmarks.iterations(factor) for label, factor in (("10 times", 10), ("100 times", 100))
    }
    return plots.iteration_fit({"this CPU": benchmarks.iterations(), **fits}, hardware=benchmarks.machine())


@figure("ClusterKV section V-C, PQCache fig. 11d")
def hit_rate(runs: Runs) -> go.Figure:
    """How often a token that is attended to is already on the device."""
    return plots.hit_rate(runs.table("offload"))


@figure("PQCache fig. 1")
def kv_memory(runs: Runs) -> go.Figure:
    """The size of keys and values by length and batch, and the time to move them."""
    models = {"Llama 3 8B": Geometry(32, 32, 8, 128, 131072), "SmolLM2-135M": Geometry(30, 9, 3, 64, 8192)}
    lengths = [2**power for power in range(10, 18)]
    return plots.kv_memory(models, lengths, [1, 16, 128], link=LinkModel.pcie(5), memory_bytes=80 * 2**30)


@figure("ClusterKV fig. 6", width="page")
def timeline(runs: Runs) -> go.Figure:
    """Compute, clustering and transfers of ClusterKV during prefill: clustering overlaps with the next layers. Both
    share the processor's cores, so it is not free.
    """
    return plots.timeline(runs.timelines("overlap")["clusterkv"], phase="prefill")


@figure("PQCache fig. 7, the overlapped schedule only", width="page")
def timeline_of_a_step(runs: Runs) -> go.Figure:
    """A decode step of PQCache, layer by layer: a fetch from the host has to wait for the selection."""
    return plots.timeline(runs.timelines("overlap")["pqcache"], steps=(4, 5))

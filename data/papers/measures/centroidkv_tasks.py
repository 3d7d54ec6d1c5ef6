"""CentroidKV beside eviction: costs by length (tables 6, 7, 13 and 14), and needles of RULER (table 2)."""

from __future__ import annotations

from typing import Any

from measures import SEED, Rows, measure

EVICTION = ("full", "streaming_llm", "snapkv", "pyramidkv", "centroidkv")
KEPT = ["task", "length", "sample", "method", "budget", "prompt_tokens", "budget_tokens", "score"]
NEEDLES = (("noise", "numbers"), ("prose", "words"), ("prose", "numbers"), ("prose", "uuids"))
COSTS = ["ttft_s", "tpot_s", "attended_tokens", "kept_bytes", "metadata_bytes"]


@measure(task="needle", lengths=[300], samples=1, uniform=96, fields={"sinks": 4, "recent": 8})
def centroidkv_costs(
    lm: Any, task: str = "niah_single_2", lengths: tuple[int, ...] = (1024, 2048, 4096, 8000), samples: int = 1,
    uniform: int = 512, fields: dict[str, Any] | None = None,
) -> Rows:  # fmt: skip
    """Per length, sample, method and budget: time to the first token, time per token, and bytes of the cache.

    Budgets: a quarter of the prompt, as in tables 6 and 7, and `uniform` tokens at every length, as in tables 13 and
    14. ClusterKV runs at the uniform budget only. Each sample is prefilled once for all methods, so that the time to
    the first token is the same prefill and the method's own build.
    """
    quarter = {name: _created(name, fields) for name in EVICTION}
    fixed = {name: _created(name, fields) for name in ("centroidkv", "clusterkv")}
    rows = _rows(lm, (task,), quarter, (0.25,), lengths, samples, [*KEPT, *COSTS])
    return rows + _rows(lm, (task,), fixed, (uniform,), lengths, samples, [*KEPT, *COSTS])


@measure(needles=[["noise", "words"]], length=300, samples=1, budgets=[0.75], fields={"sinks": 4, "recent": 8})
def centroidkv_needles(
    lm: Any, needles: tuple[tuple[str, str], ...] = NEEDLES, length: int = 1024, samples: int = 5,
    budgets: tuple[float, ...] = (0.75, 0.5), fields: dict[str, Any] | None = None,
) -> Rows:  # fmt: skip
    """Scores by haystack and kind of value, one needle each: RULER's S-NIAH-1 to 3, and a value of two words.

    Values of digits and UUIDs are many tokens that resemble one another; words are not.
    """
    import kvviz

    methods = {name: _created(name, fields) for name in EVICTION if name != "pyramidkv"}
    rows = []
    for haystack, kind in needles:
        task = kvviz.tasks.create("niah_single_2", haystack=haystack, value_kind=kind)
        scored = _rows(lm, (task,), methods, budgets, (length,), samples, KEPT)
        rows += [{**row, "haystack": haystack, "value": kind} for row in scored]
    return rows


def _created(name: str, fields: dict[str, Any] | None) -> Any:
    import kvviz

    known = kvviz.methods.get(name).__dataclass_fields__
    return kvviz.methods.create(name, **{key: value for key, value in (fields or {}).items() if key in known})


def _rows(
    lm: Any, tasks: Any, methods: Any, budgets: Any, lengths: Any, samples: int, columns: list[str]
) -> Rows:  # fmt: skip
    """The columns of `kvviz.evaluate`; NaN becomes None."""
    import kvviz

    table = kvviz.evaluate(lm, list(tasks), methods, list(budgets), list(lengths), samples=samples, seed=SEED)
    ran = table[table["refused"] == ""][columns]
    return [
        {name: None if value != value else value for name, value in row.items()}  # only NaN differs from itself
        for row in ran.astype(object).to_dict("records")
    ]

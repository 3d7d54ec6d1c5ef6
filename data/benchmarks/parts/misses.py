"""Where methods lose needles: the share of misses by stage, what each cause takes, and what predicts the answer.

The needles are the first ones of the part `needle`, and all methods attend to equally many tokens at every step, as
there. Rows are those of `kvviz.evaluation.misses`.
"""

from __future__ import annotations

import json
from typing import Any

from .inputs import model, prose
from .markdown import table
from .needle import COUNT as BATCH
from .needle import EQUAL, SEED, TOKENS

COUNT, BUDGET = 20, 256
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "clusterkv": ("clusterkv", {}), "clusterkv, 400 clusters": ("clusterkv", {"n_clusters": 400}),
    "ctkvr": ("ctkvr", {}),
    "pqcache": ("pqcache", {}), "centroidkv": ("centroidkv", {}), "quest": ("quest", {}), "snapkv": ("snapkv", {}),
}  # fmt: skip
LOST = ("not kept", "badly grouped", "badly scored", "trimmed", "crowded out")
CAUSES = ("the budget", "the rest", *LOST[:4])


def run() -> dict[str, Any]:
    """The rows of every sample and method, and the correlations of their numbers with the answers."""
    return extended({"rows": [], "left_out": []})


def extended(part: dict[str, Any]) -> dict[str, Any]:
    """The part with the samples that it lacks."""
    import pandas as pd

    import kvviz
    from kvviz.evaluation import misses, predictors

    known = {row["seed"] for row in part["rows"]} | set(part["left_out"])
    samples = [sample for sample in _samples() if sample.seed not in known]
    methods = {
        label: kvviz.methods.create(name, budget=BUDGET, **EQUAL.get(name, {}), **fields)
        for label, (name, fields) in METHODS.items()
    }
    found = misses(model(), samples, methods, progress=False)
    rows = [*part["rows"], *json.loads(found.to_json(orient="records", double_precision=6))]
    return {
        "model": model().name, "tokens": TOKENS, "budget": BUDGET, "samples": COUNT,
        "left_out": [*part["left_out"], *found.attrs["left_out"]], "rows": rows,
        "predictors": predictors(pd.DataFrame(rows)).to_dict("records"),
    }  # fmt: skip


def _samples() -> list[Any]:
    """The first batch of the part `needle`, and as many of the second as are missing, at depths far apart."""
    from kvviz.tasks import needle_samples

    first, second = (
        needle_samples(model(), prose(), count=BATCH, tokens=TOKENS, seed=SEED + batch * BATCH) for batch in range(2)
    )
    left = COUNT - BATCH
    return [*first, *second[BATCH // (2 * left) :: BATCH // left][:left]]


def each(part: dict[str, Any]) -> str:
    """The page's section: shares by stage, nats by cause, and correlations, each with its interval."""
    import pandas as pd

    found = pd.DataFrame(part["rows"])
    shares, nats = [], []
    for label in dict.fromkeys(found["method"]):
        rows = found[found["method"] == label]
        wanted = rows[[*LOST, "attended"]].sum(axis=1)
        answered = f"{int(rows['answered'].sum())} of {len(rows)}"
        shares.append([
            f"`{label}`", answered, _interval(rows["logprob"]), _interval(rows["attended"] / wanted),
            *(_interval(rows[stage] / wanted) for stage in LOST),
        ])  # fmt: skip
        names = [cause for cause in CAUSES if f"nats: {cause}" in rows]
        nats.append([f"`{label}`", _interval(rows["full"]), *(_interval(rows[f"nats: {cause}"]) for cause in names)])
    counted = len(set(found["seed"]))
    about = (
        f"{part['model']}, contexts of {part['tokens']:,} tokens, budget {part['budget']}, the same number of attended "
        f"tokens at every step, {counted} needles that full attention finds, of {part['samples']}. In brackets: 95 % "
        "bootstrap intervals over samples. The evidence are the needle's tokens that full attention needs. Shares are "
        "of evidence tokens × steps × layers × heads where the head's exact attention wants the token."
    )
    numbers = [
        [row["number"].replace("_", " "), f"{row['correlation']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"]
        for row in part["predictors"]
    ]
    return "\n\n".join([
        about,
        table(["method", "answers", "log-probability", "attended", *LOST], shares),
        "What each cause adds to the answer's log-probability, in nats, from full attention's to the method's: one "
        "more stage is exact in all heads and steps.",
        table(["method", "full attention", *CAUSES], nats),
        "Which number predicts the answer: Spearman's rank correlation with giving the answer, over all samples and "
        "methods; intervals from resamples of whole samples.",
        table(["number", "correlation"], numbers),
    ])  # fmt: skip


def _interval(values: Any) -> str:
    from kvviz.metrics import bootstrap_interval

    low, high = bootstrap_interval(values.to_numpy(float))
    return f"{values.mean():.2f} [{low:.2f}, {high:.2f}]"

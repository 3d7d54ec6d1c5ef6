"""A prediction with a question of each kind, which tests of several modules use."""

from __future__ import annotations

from typing import Any

from kvviz.widgets import Choice, Curve, Order, Prediction, Value

ANSWERS: dict[str, Any] = {
    "How many of the needle's tokens does Quest attend to?": 8.0,
    "Which method finds the needle?": "Quest",
    "Sort by recall.": ["StreamingLLM", "CTkvr", "Quest", "ClusterKV"],
    "How does recall change with the budget?": [0.1, 0.2, 0.3, 0.4, 0.5],
}


def prediction(**state: Any) -> Prediction:
    """The prediction; its measured numbers are nowhere else in it."""
    return Prediction(
        Value("How many of the needle's tokens does Quest attend to?", 1.73, 0, 9, "tokens", digits=1),
        Choice("Which method finds the needle?", "ClusterKV", ["Quest", "ClusterKV", "StreamingLLM"]),
        Order("Sort by recall.", {"Quest": 0.317, "ClusterKV": 0.823, "StreamingLLM": 0.0419, "CTkvr": 0.771}),
        Curve(
            "How does recall change with the budget?", [64, 128, 256, 512, 1024],
            {"clusterkv": [0.113, 0.227, 0.339, 0.553, 0.887], "a run of our own": [0.1, 0.2, 0.3, 0.4, 0.513]},
            "budget, tokens", "recall", log_x=True, known={"quest": [0.05, 0.1, 0.2, 0.4, 0.6], "by chance": [0.1] * 5},
        ),
        **state,
    )  # fmt: skip

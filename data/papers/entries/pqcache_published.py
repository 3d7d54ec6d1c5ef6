"""Numbers that PQCache prints in its tables: scores by data set and method, in per cent."""

from __future__ import annotations

import pandas as pd

# Table 2: LongBench, Llama-3.1-8B, averages; methods in the order of the table.
METHODS = ("oracle", "h2o", "snapkv", "pyramidkv", "infllm", "sparq", "pqcache")
LONGBENCH_FULL = 47.37
LONGBENCH = {
    0.2: (47.40, 45.31, 46.45, 46.48, 39.95, 44.24, 47.29), 0.1: (47.52, 43.75, 45.42, 45.39, 34.36, 42.21, 47.19),
}  # fmt: skip
# Table 4: InfiniteBench, averages.
INFINITEBENCH_FULL = 47.63
INFINITEBENCH = {
    0.2: (47.56, 41.80, 46.33, 46.61, 28.17, 40.72, 47.31), 0.1: (47.60, 39.53, 44.71, 44.74, 39.19, 39.78, 46.80),
}  # fmt: skip
# Table 3: question before the text, 1/10 of the tokens; SnapKV (C), PyramidKV (C), PQCache.
QUESTION_FIRST = {
    "NarrativeQA": (19.39, 19.35, 18.82), "Qasper": (18.70, 17.60, 25.76), "MultiFieldQA": (43.48, 44.07, 47.99),
    "HotpotQA": (42.93, 42.55, 43.28), "2WikiMQA": (36.36, 35.04, 36.48), "Musique": (20.86, 21.19, 22.29),
}  # fmt: skip
# Table 5: InfiniteBench, 1/5 of the tokens; full attention, PQCache, MInference, both.
MINFERENCE = {
    "En.Sum": (27.41, 27.66, 26.58, 25.22), "En.QA": (15.12, 15.45, 13.58, 13.26),
    "En.MC": (67.25, 67.25, 58.95, 58.95), "En.Dia": (16.50, 17.00, 12.50, 11.50),
    "Zh.QA": (13.05, 13.05, 11.85, 11.93), "Math.Find": (34.29, 34.00, 34.00, 34.00),
    "Retr.PassKey": (100, 100, 100, 100), "Retr.Number": (99.49, 96.78, 98.31, 93.39),
    "Retr.KV": (55.60, 54.60, 13.60, 13.40),
}  # fmt: skip
# Table 6: LongBench, Llama-3.1-70B: full attention, PQCache with half the processors, with the same.
LARGER = {
    "NarrativeQA": (35.07, 35.02, 35.02), "Qasper": (49.97, 49.25, 49.02), "MultiFieldQA": (54.20, 54.19, 54.25),
    "HotpotQA": (64.95, 65.07, 64.95), "2WikiMQA": (67.85, 67.68, 67.68), "Musique": (46.78, 47.63, 47.74),
    "GovReport": (34.65, 34.80, 34.84), "QMSum": (24.56, 24.22, 24.37), "MultiNews": (26.95, 26.77, 27.16),
    "TREC": (76.50, 76.50, 76.00), "TriviaQA": (94.04, 94.04, 94.04), "SAMSum": (47.37, 47.67, 47.47),
    "Count": (20.00, 20.00, 20.00), "Retrieval": (97.50, 97.50, 97.50),
}  # fmt: skip


def averages(full: float, by_share: dict[float, tuple[float, ...]]) -> pd.DataFrame:
    """A table of average scores (shares of 1) by method and budget, for `plots.score_by_budget`."""
    rows = [{"method": "full", "budget": float("nan"), "score": full / 100}]
    for share, scores in by_share.items():
        rows += [
            {"method": method, "budget": share, "score": score / 100}
            for method, score in zip(METHODS, scores, strict=True)
        ]
    return pd.DataFrame(rows)


def by_data_set(scores: dict[str, tuple[float, ...]], labels: tuple[str, ...]) -> pd.DataFrame:
    """A table of scores (shares of 1), one row per data set and label, for `plots.ablation`."""
    return pd.DataFrame([
        {"method": label, "sample": name, "score": score / 100}
        for name, row in scores.items()
        for label, score in zip(labels, row, strict=True)
    ])  # fmt: skip

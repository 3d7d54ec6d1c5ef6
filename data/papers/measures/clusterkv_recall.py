"""ClusterKV, figure 11a: the important tokens that methods find while a model runs, by budget."""

from __future__ import annotations

from typing import Any

from measures import Rows, measure, texts

# By label: name and fields. Generated tokens count within ClusterKV's budget here, as in the other methods.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "clusterkv": ("clusterkv", {"decode_interval": None}),
    "quest": ("quest", {}),
    "infinigen": ("infinigen", {}),
    "infinigen, top": ("infinigen", {"preset": "top"}),
}
DENSE_LAYERS = 2  # in all methods, as in section V-A


@measure(tokens=136, count=2, steps=3, budgets=[64, 96])
def clusterkv_recall(
    lm: Any, tokens: int = 4096, count: int = 3, steps: int = 6,
    budgets: tuple[int, ...] = (256, 512, 1024, 2048),
) -> Rows:  # fmt: skip
    """Per text, method and budget: recall, attention mass and output error, means over layers, KV heads and steps.

    The model decodes the last `steps` tokens of each text. As in section V-B, as many tokens count as important as were
    attended to. InfiniGen speculates its queries from the layer before, as in its paper.
    """
    import torch

    from kvviz.cache.attachment import attached
    from kvviz.cache.selective_cache import SelectiveCache
    from kvviz.generation.generating import fill

    rows = []
    for text, ids in enumerate(texts(lm, tokens, count)):
        with torch.no_grad(), attached(lm.model):
            base = SelectiveCache(lm.model, "full", details=True, retain_queries=True)
            fill(lm, base, ids[:, : tokens - steps])
            for label, (name, fields) in METHODS.items():
                built = base.fork(_method(name, fields, budgets[0]))
                built.wait()
                for budget in budgets:
                    method = _method(name, fields, budget)
                    summary = decoded(lm, built.fork(method), ids, steps)
                    rows.append({"text": text, "method": label, "budget": budget, **summary})
    return rows


def _method(name: str, fields: dict[str, Any], budget: int) -> Any:
    import kvviz

    return kvviz.methods.create(name, budget=budget, dense_layers=DENSE_LAYERS, **fields)


def decoded(lm: Any, cache: Any, ids: Any, steps: int) -> dict[str, float]:
    """The quality of a method over the last `steps` tokens of `ids`, which are fed one by one."""
    from kvviz.cache.recorder import Recorder
    from kvviz.generation.generating import next_logits

    cache.wait()
    recorder = Recorder()
    recorder.watch([layer for layer in cache.selective_layers if not layer.dense])
    prompt = ids.shape[1] - steps
    for position in range(prompt, ids.shape[1]):
        next_logits(lm, cache, ids[:, position : position + 1])
    tokens = lm.tokens(ids)
    recording = recorder.recording(
        cache.method, model=lm.name, geometry=lm.geometry, tokens=tokens, token_ids=ids[0].tolist(),
        next_tokens=[*tokens[prompt + 1 :], ""], prompt_length=prompt, question_length=steps, ledgers={},
    )  # fmt: skip
    summary = recording.summary()
    return {name: summary[name] for name in ("recall", "attention_mass", "output_error", "attended_tokens")}

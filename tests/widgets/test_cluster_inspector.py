"""The cluster inspector without a browser: traits, packed arrays, the page without a kernel, refusals."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load
from sklearn.decomposition import PCA

import kvviz
from kvviz.errors import InvalidInputError, UnknownNameError
from kvviz.generation.explore import cluster_keys, group_keys
from kvviz.plots import projection
from kvviz.trace.hues import hue
from kvviz.widgets import ClusterInspector, inspector_places
from kvviz.widgets.inspector_content import Settings
from tests.browser.recordings import HOSTILE
from tests.generation.test_explore_clusters import made_trace
from tests.widgets.test_stepper_page import Scripts, embedded


def test_the_map_is_scikit_learns_projection():
    trace = made_trace()
    inspector = ClusterInspector(trace, layer=2, head=1, n_clusters=9, queries=20)
    keys = trace.keys[2][1, :280].astype(np.float64)
    fitted = PCA(2, svd_solver="full").fit(keys)
    places, clusters = load(inspector.places), load(inspector.clusters)
    centroids = cluster_keys(trace, 2, 1, n_clusters=9, queries=20).centroids
    query = trace.queries[2][2:4, -1].astype(np.float64).mean(0)
    query *= np.linalg.norm(keys, axis=1).mean() / np.linalg.norm(query)
    np.testing.assert_allclose(places["points"], fitted.transform(keys), atol=1e-4)
    np.testing.assert_allclose(places["stars"][-1], fitted.transform(query[None])[0], atol=1e-4)
    rings = places["origin"] + clusters["centroids"] @ places["axes"]
    np.testing.assert_allclose(rings, fitted.transform(centroids), atol=1e-4)
    share = f"({fitted.explained_variance_ratio_[0]:.0%} of variance)"
    assert share in places["titles"].tobytes().decode()


def test_every_setting_is_a_trait_that_clusters_again():
    trace = made_trace()
    inspector = ClusterInspector(trace)
    assert inspector.settings == Settings(2, 0, 4, "cosine", 0)
    changes = []
    inspector.observe(lambda change: changes.append(change["name"]), ["clusters", "places"])
    for name, value in (("n_clusters", 11), ("metric", "l2"), ("seed", 5), ("head", 1), ("layer", 0)):
        setattr(inspector, name, value)
        now = inspector.settings
        expected = cluster_keys(trace, now.layer, now.head, n_clusters=now.n_clusters, metric=now.metric, seed=now.seed)
        packed = load(inspector.clusters)
        assert packed["place"].tolist() == load(inspector.places)["place"].tolist() == [now.layer, now.head]
        assert packed["settings"].tolist() == [now.n_clusters, inspector.page["metrics"].index(now.metric), now.seed]
        for array in ("labels", "sizes", "taken", "spread", "central", "nearest", "nearest_cosine", "scores", "cut"):
            np.testing.assert_array_equal(packed[array], getattr(expected, array))
        assert packed["hues"].tolist() == hue(np.arange(now.n_clusters)).tolist()
    assert inspector.settings == Settings(0, 1, 11, "l2", 5)
    assert changes == ["clusters", "clusters", "clusters", "places", "clusters", "places", "clusters"]


def test_the_chosen_token_stays_chosen_after_another_clustering():
    inspector = ClusterInspector(made_trace(), n_clusters=6, token=100)
    for count in (6, 12, 3):
        inspector.n_clusters = count
        labels = cluster_keys(made_trace(), 2, 0, n_clusters=count).labels
        assert inspector.cluster == labels[100]
        assert inspector.members().tolist() == np.flatnonzero(labels == labels[100]).tolist()
    inspector.token = 3  # a sink
    assert (inspector.cluster, inspector.members().tolist()) == (-1, [])
    inspector.token = -1
    assert (inspector.cluster, inspector.members().tolist()) == (-1, [])


def test_it_opens_at_the_most_recalled_cluster():
    trace = made_trace()
    inspector = ClusterInspector(trace, n_clusters=9, budget=60)
    clustering = cluster_keys(trace, 2, 0, n_clusters=9, budget=60)
    steps = (clustering.taken > 0).sum(0)
    assert steps[inspector.cluster] == steps.max()
    assert inspector.token == clustering.central[inspector.cluster]


def test_more_clusters_than_the_slider_shows_lengthen_it():
    inspector = ClusterInspector(made_trace(600))
    assert inspector.page["counts"] == list(range(1, 401))
    inspector.n_clusters = 430
    assert inspector.page["counts"] == list(range(1, 431))
    assert ClusterInspector(made_trace()).page["counts"] == list(range(1, 253))  # one cluster per token


def test_the_same_trace_gives_the_same_bytes():
    first, second = ClusterInspector(made_trace()), ClusterInspector(made_trace())
    assert (first.places, first.clusters, first.to_html()) == (second.places, second.clusters, second.to_html())


def test_the_page_holds_several_numbers_of_clusters_and_names_them(tmp_path):
    trace = made_trace(800)
    inspector = ClusterInspector(trace, layer=0, head=1, n_clusters=13, seed=2)
    page = inspector.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    data, blobs = embedded(page)
    counts = [2, 5, 10, 13, 20, 40]
    assert data["page"]["counts"] == counts
    assert "C = 2, 5, 10, 13, 20, 40 for layer 0, KV head 1, metric cosine, seed 2" in data["page"]["notes"][0]
    views = {"pages", "lists", "codes/0", "codes/1", *(f"clusters/{count}" for count in counts)}
    assert {name for name in blobs if not name.startswith("places")} == views
    assert len([name for name in blobs if name.startswith("places/query/")]) == 32 + 2  # each step; each part's last
    assert {name for name in blobs if name.startswith("places/pca")} == {"places/pca", "places/pca/0", "places/pca/1"}
    for count in counts:
        expected = cluster_keys(trace, 0, 1, n_clusters=count, seed=2)
        assert (load(blobs[f"clusters/{count}"])["labels"] == expected.labels).all()
    data, _ = embedded(inspector.to_html(n_clusters=[7, 3]))
    assert data["page"]["counts"] == [3, 7, 13]
    with pytest.raises(InvalidInputError, match="1 to 752"):
        inspector.to_html(n_clusters=[5, 0])


def test_tokens_are_not_markup_in_the_page():
    words = [HOSTILE[position % len(HOSTILE)] for position in range(120)]
    page = ClusterInspector(made_trace(120, tokens=words), queries=8).to_html()
    data, _ = embedded(page)
    assert data["page"]["tokens"] + data["page"]["step_tokens"] == words
    assert {tag for tag, _ in Scripts(page).tags} <= {
        "html", "head", "meta", "title", "style", "body", "div", "noscript", "script"
    }  # fmt: skip


def test_a_recording_gives_the_steps():
    trace = made_trace()
    recording = kvviz.replay(trace, "quest", queries=8, budget=64, dense_layers=1)
    inspector = ClusterInspector(trace, recording=recording)
    assert inspector.layer == 2  # layer 0 was dense
    assert inspector.page["steps_by"] == "quest · budget 64"
    assert inspector.page["step_tokens"] == trace.tokens[292:]
    assert inspector.view == "pages"  # the method's own groups
    assert load(inspector.clusters)["taken"].shape == (8, 18)
    inspector.view = "clusters"
    assert load(inspector.clusters)["taken"].shape == (8, 4)
    inspector.layer = 0
    assert load(inspector.clusters)["taken"].shape == (0, 4)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("layer", 1, InvalidInputError, "a captured layer"),
        ("head", 2, InvalidInputError, "0 to 1"),
        ("n_clusters", 0, InvalidInputError, "1 to 252"),
        ("n_clusters", 253, InvalidInputError, "1 to 252"),
        ("metric", "cosin", UnknownNameError, "did you mean 'cosine'"),
        ("seed", -1, InvalidInputError, "0 to 2147483647"),
        ("token", 268, InvalidInputError, "-1 to 267"),
    ],
)
def test_values_out_of_range_are_refused(name, value, error, message):
    inspector = ClusterInspector(made_trace(), n_clusters=5, token=20)
    before = inspector.clusters
    with pytest.raises(error, match=message):
        setattr(inspector, name, value)
    assert (inspector.settings, inspector.token) == (Settings(2, 0, 5, "cosine", 0), 20)
    assert inspector.clusters is before
    with pytest.raises(error, match=message):
        ClusterInspector(made_trace(), **{name: value})


def test_invalid_inputs_are_refused_with_a_way_out():
    with pytest.raises(InvalidInputError, match=r"got str; wanted a kvviz\.Trace"):
        ClusterInspector("trace.safetensors")
    with pytest.raises(InvalidInputError, match=r"wanted a kvviz\.Recording"):
        ClusterInspector(made_trace(), recording="recording.safetensors")
    with pytest.raises(InvalidInputError, match="longer prompt"):
        ClusterInspector(made_trace(length=20))


def test_torch_loads_only_with_the_first_trace():
    code = "import sys; from kvviz.widgets import ClusterInspector; print({'torch', 'plotly'} & set(sys.modules))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "set()\n"


def test_the_map_along_the_query_has_the_products_from_left_to_right():
    trace = made_trace()
    inspector = ClusterInspector(trace, head=1, projection="query", step=3)
    keys = trace.keys[2][1, :268].astype(np.float64)
    query = trace.queries[2][2:4, 268 + 3].astype(np.float64).mean(0)
    places = load(inspector.places)
    products = (keys - keys.mean(0)) @ query / np.linalg.norm(query)
    np.testing.assert_allclose(places["points"][:, 0], products, atol=1e-4)
    rest = keys - keys.mean(0) - products[:, None] * query / np.linalg.norm(query)
    expected = PCA(1, svd_solver="full").fit(rest)
    second = places["points"][:, 1]
    np.testing.assert_allclose(np.abs(second), np.abs(expected.transform(rest)[:, 0]), atol=1e-3)
    variance = keys.var(0).sum()
    first_share, second_share = products.var() / variance, second.var() / variance
    titles = places["titles"].tobytes().decode()
    assert titles == (f"direction of the query at step 3 ({first_share:.1%} of variance)\n"
                      f"principal component orthogonal to it ({second_share:.0%} of variance)")  # fmt: skip
    heard = []
    inspector.observe(lambda change: heard.append(change["name"]), ["places", "clusters"])
    inspector.step = 4
    assert heard == ["places"]
    inspector.projection = "pca"
    inspector.step = 5  # this map has the queries of all steps
    assert heard == ["places", "places"]


def test_tsne_is_laid_out_only_when_it_is_picked(monkeypatch):
    laid_out = []

    def project(keys, shown, extra, projection, seed):
        laid_out.append(projection)
        return real(keys, shown, extra, projection, seed)

    real = projection.project
    monkeypatch.setattr(projection, "project", project)
    monkeypatch.setattr(inspector_places, "MOST_LAID_OUT", 40)
    inspector = ClusterInspector(made_trace(100), queries=8)
    page, _ = embedded(inspector.to_html())
    assert page["page"]["projections"] == ["pca", "query"]
    assert "It has no t-SNE" in page["page"]["notes"][-1]
    assert "tsne" not in laid_out
    inspector.projection = "tsne"
    inspector.n_clusters = 7  # another clustering keeps the map
    assert laid_out.count("tsne") == 1
    places = load(inspector.places)
    assert (~np.isnan(places["points"]).any(1)).sum() == 40
    assert places["titles"].tobytes().decode().startswith("t-SNE of 40 of 92 keys")
    page, blobs = embedded(inspector.to_html())
    assert page["page"]["projections"] == ["pca", "query", "tsne"]
    assert "places/tsne" in blobs


def test_a_recording_opens_the_view_of_its_method():
    trace = made_trace()
    for method, view in (("quest", "pages"), ("pqcache", "codes"), ("ctkvr", "lists"), ("oracle", "clusters")):
        recording = kvviz.replay(trace, method, queries=8, budget=140, dense_layers=0)
        inspector = ClusterInspector(trace, recording=recording)
        assert inspector.view == view
        expected = group_keys(trace, 2, 0, view, recording=recording)
        np.testing.assert_array_equal(load(inspector.clusters)["recalled"], expected.recalled)
        assert inspector.members().tolist() == expected.members(inspector.cluster).tolist()


def test_a_recording_per_query_head_is_ranked_per_kv_head_and_says_so():
    trace = made_trace()
    recording = kvviz.replay(trace, "clusterkv", queries=8, budget=64, dense_layers=0, group="each")
    inspector = ClusterInspector(trace, recording=recording)
    assert inspector.page["notes"] == [
        "The recording chooses per query head. Ranking and cut are those of the whole KV head."
    ]
    assert load(inspector.clusters)["scores"].shape == (8, 4)


def test_of_several_lists_the_named_one_is_picked():
    inspector = ClusterInspector(made_trace(), view="lists", budget=140)
    groups = inspector.source.clusters(inspector.settings)
    shared = next(token for token in range(268) if (groups.order == token).sum() > 1)
    lists = [number for number in range(len(groups.sizes)) if groups.contains(number, shared)]
    inspector.token = shared
    for number in lists:
        inspector.group = number
        assert inspector.cluster == number
        assert inspector.members().tolist() == groups.members(number).tolist()
    inspector.group = next(number for number in range(len(groups.sizes)) if number not in lists)
    assert inspector.cluster == groups.labels[shared]


def test_fields_and_parts_are_those_of_the_view():
    inspector = ClusterInspector(made_trace(), view="codes", part=1, fields={"n_bits": 3, "page_size": 8})
    assert inspector.settings.fields == (("n_bits", 3),)
    inspector.fields = {"n_partitions": 1}
    assert (inspector.part, inspector.settings.part) == (1, 0)  # there is one part only
    inspector.view = "pages"
    assert inspector.settings.fields == ()
    assert load(inspector.clusters)["sizes"].tolist() == [16] * 16


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("step", 32, InvalidInputError, "0 to 31"),
        ("view", "page", UnknownNameError, "did you mean 'pages'"),
        ("projection", "umap", UnknownNameError, "pca"),
        ("part", 16, InvalidInputError, "0 to 15"),
        ("group", -2, InvalidInputError, "-1 to"),
        ("fields", {"page_sizes": 8}, UnknownNameError, "did you mean 'page_size'"),
        ("fields", {"page_size": 0}, InvalidInputError, "page_size"),
        ("fields", {"n_partitions": 3}, InvalidInputError, "a divisor of the head dimension, 16"),
    ],
)
def test_views_steps_and_maps_out_of_range_are_refused(name, value, error, message):
    inspector = ClusterInspector(made_trace(), n_clusters=5, token=20)
    before = inspector.clusters
    with pytest.raises(error, match=message):
        setattr(inspector, name, value)
    assert inspector.clusters is before
    if name != "group":
        with pytest.raises(error, match=message):
            ClusterInspector(made_trace(), **{name: value})


def test_a_trace_of_the_prompt_alone_has_no_ranking_and_says_so():
    trace = made_trace()
    recording = kvviz.replay(trace, "clusterkv", queries=8, budget=64, dense_layers=0)
    short = kvviz.Trace(trace.model, trace.geometry, trace.tokens[:292], trace.token_ids[:292],
                        *({2: getattr(trace, name)[2][:, :292]} for name in ("queries", "keys", "values")))  # fmt: skip
    inspector = ClusterInspector(short, recording=recording)
    packed = load(inspector.clusters)
    assert (packed["scores"].shape, packed["taken"].shape) == ((0, 4), (8, 4))
    assert load(inspector.places)["stars"].shape == (1, 2)  # the last token's
    assert "holds the queries of 0 of 8 steps" in inspector.page["notes"][0]
    inspector.projection = "query"
    inspector.snapshot().picture()
    assert "holds the queries of 0 of 8 steps" in inspector.to_html()

"""Provenance of results: commit, weights, content."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch

from kvviz.models import provenance
from tests.tiny_llama import tiny_llama


@pytest.fixture
def repository(tmp_path, monkeypatch):
    (tmp_path / "kvviz" / "models").mkdir(parents=True)
    (tmp_path / "kvviz" / "models" / "provenance.py").write_text("one = 1\n")
    (tmp_path / "results").write_text("")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "kvviz" / "models" / "provenance.py"))
    provenance.commit.cache_clear()
    yield tmp_path
    provenance.commit.cache_clear()


def test_the_commit_says_if_the_code_differs_from_it(repository):
    assert provenance.commit() == "unknown"  # no repository: an installed package
    author = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(repository), *command], check=True)
    first = subprocess.run(["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    for changed, mark in (("results", ""), ("kvviz/models/provenance.py", "+"), ("kvviz/another.py", "+")):
        (repository / changed).write_text("two = 2\n")
        provenance.commit.cache_clear()
        assert provenance.commit() == first[:7] + mark
        subprocess.run(["git", "-C", str(repository), "checkout", "-q", "--", "."], check=True)


def test_the_hash_of_weights_depends_on_value_and_dtype():
    model = tiny_llama()
    before = provenance.model_hash(model)
    assert provenance.model_hash(tiny_llama()) == before
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1e-3
    changed = provenance.model_hash(model)
    assert len({before, changed, provenance.model_hash(model.to(torch.bfloat16))}) == 3


def test_the_hash_of_content_depends_on_files_and_names(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        (folder / "a.txt").write_text("a")
        (folder / "b.txt").write_text("b")
    same = provenance.content_hash(one)
    assert provenance.content_hash(two) == same
    (two / "b.txt").write_text("c")
    os.utime(two / "b.txt", (1, 1))
    assert provenance.content_hash(two) != same
    (two / "b.txt").write_text("b")
    assert provenance.content_hash(two) == same
    (two / "b.txt").rename(two / "c.txt")
    assert provenance.content_hash(two) != same
    assert provenance.content_hash(tmp_path / "none") == ""

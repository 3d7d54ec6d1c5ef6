"""Errors name the operation, what it got and what it wanted, and can be caught as Python's built-in exceptions."""

from __future__ import annotations

import pickle

import pytest

from kvviz import errors


def test_a_message_has_three_parts_and_keeps_them():
    error = errors.InvalidInputError("create clusterkv: budget", -3, "an integer above 0")
    assert str(error) == "create clusterkv: budget: got -3; wanted an integer above 0"
    assert (error.operation, error.got, error.wanted) == ("create clusterkv: budget", -3, "an integer above 0")


@pytest.mark.parametrize(
    ("name", "near"), [("clusterv", "clusterkv"), ("Quest", "quest"), ("streaming-llm", "streaming_llm")]
)
def test_an_unknown_name_lists_the_similar_and_all_known_names(name, near):
    known = ["streaming_llm", "quest", "clusterkv"]
    text = str(errors.UnknownNameError("create a method", name, known))
    got, wanted = text.split("; wanted ")
    assert got == f"create a method: got {name!r} (did you mean {near!r}?)"
    assert wanted == "one of clusterkv, quest, streaming_llm"


def test_no_suggestion_without_a_similar_or_any_known_name():
    assert "did you mean" not in str(errors.UnknownNameError("create a method", "zzz", ["quest"]))
    assert str(errors.UnknownNameError("create a method", "x", [])).endswith("wanted one of (none known)")


def test_a_missing_package_names_the_command_that_installs_it():
    assert 'pip install "kvviz[export]"' in str(errors.MissingDependencyError("save a figure", "kaleido", "export"))
    assert "pip install faiss" in str(errors.MissingDependencyError("build an index", "faiss"))


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.InvalidInputError, ValueError),
        (errors.UnknownNameError, LookupError),
        (errors.IncompatibleFileError, ValueError),
        (errors.UnsupportedModelError, TypeError),
        (errors.CacheMismatchError, RuntimeError),
        (errors.MissingDependencyError, ImportError),
    ],
)
def test_each_error_is_a_kvviz_error_and_a_builtin_error(error, builtin):
    assert issubclass(error, errors.KVVizError)
    assert issubclass(error, builtin)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidInputError("a", 1, "b"),
        errors.UnknownNameError("a", "quesr", ["quest"]),
        errors.MissingDependencyError("a", "kaleido", "export"),
    ],
)
def test_errors_can_be_sent_to_another_process(error):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)

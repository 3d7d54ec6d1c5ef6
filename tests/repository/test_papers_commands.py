"""The commands of the papers' entries: their options are read, and the tests that run them exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvviz import methods
from kvviz.evaluation import command
from tests.repository.test_papers import SCRIPT

ROOT = Path(__file__).parents[2]
ENTRIES = SCRIPT.ENTRIES.values()
NEEDY = [pytest.param(entry, id=entry.slug) for entry in ENTRIES if entry.needs]
EVALUATING = [pytest.param(entry, id=entry.slug) for entry in ENTRIES if "kvviz evaluate" in entry.call]


@pytest.mark.parametrize("entry", EVALUATING)
def test_the_options_of_kvviz_evaluate_are_read(entry):
    for call in re.findall(r"kvviz evaluate [^;]*", entry.call):
        options = shlex.split(call)[2:]
        read = {"--task": command.task, "--budget": command.budget, "--method": known}
        known_options = {option for parameter in command._options() for option in parameter.opts}
        assert len(options) % 2 == 0, f"an option without a value: {call}"
        for option, value in zip(options[::2], options[1::2], strict=True):
            assert option in known_options, option
            read.get(option, str)(value)
        assert {"--task", "--method", "--length"} <= set(options[::2])


def known(name):
    if name != "all":
        methods.get(name.partition(":")[0])


@pytest.mark.parametrize("entry", NEEDY)
def test_the_test_that_runs_its_command_exists(entry):
    path, _, name = entry.tested.partition("::")
    assert f"def {name.rpartition('::')[2].partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")

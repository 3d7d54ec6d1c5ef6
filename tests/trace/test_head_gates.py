"""HeadGates: what is saved comes back, and what is no such file is refused with the reason."""

from __future__ import annotations

import json

import pytest

from kvviz.errors import IncompatibleFileError, InvalidInputError
from kvviz.trace.head_gates import HeadGates

GATES = HeadGates(((0.25, 1.0), (0.5, 0.0)), "tiny <model>", "0123456789abcdef", 3, {"steps": 2}, {"torch": "2.6"})


def test_what_is_saved_comes_back(tmp_path):
    path = GATES.save(tmp_path / "gates.json")
    assert HeadGates.load(path) == GATES
    assert [file.name for file in tmp_path.iterdir()] == ["gates.json"], "no temporary file is left"


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = GATES.save(tmp_path / "gates.json")
    broken = HeadGates(GATES.gates, "tiny", "", 0, {"steps": object()}, {})
    with pytest.raises(InvalidInputError, match="settings"):
        broken.save(path)
    assert HeadGates.load(path) == GATES


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kind": "poem"}, "another kind"),
        ({"version": 2}, "format version 2; wanted version 1"),
        ({"gates": [[0.5], [0.5, 0.5]]}, "layers of different lengths"),
        ({"gates": [[2]]}, "got gates 2 in layer 0, head 0"),
        ({"gates": None}, "one list of numbers from 0 to 1 per layer"),
        ({"seed": "three"}, "seed"),
        ({"model": None}, "model"),
        ({"more": 1}, "unknown 'more'"),
    ],
)
def test_other_content_is_refused(tmp_path, change, said):
    path = GATES.save(tmp_path / "gates.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(IncompatibleFileError, match=said):
        HeadGates.load(path)


@pytest.mark.parametrize("name", ["kind", "version", "gates", "model", "model_hash", "seed", "settings", "versions"])
def test_a_missing_entry_is_refused(tmp_path, name):
    path = GATES.save(tmp_path / "gates.json")
    content = json.loads(path.read_text())
    del content[name]
    path.write_text(json.dumps(content))
    with pytest.raises(IncompatibleFileError):
        HeadGates.load(path)


def test_a_damaged_and_a_missing_file_have_different_errors(tmp_path):
    path = GATES.save(tmp_path / "gates.json")
    path.write_text(path.read_text()[:50])
    with pytest.raises(IncompatibleFileError, match="a damaged file"):
        HeadGates.load(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        HeadGates.load(tmp_path / "none.json")


def test_its_card_escapes_the_models_name():
    html = GATES._repr_html_()
    assert "2 layers of 2 KV heads of tiny &lt;model&gt;" in html
    assert "<model>" not in html

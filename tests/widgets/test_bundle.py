"""The committed bundle is current, has no imports, and uses the constants of Python."""

from __future__ import annotations

import re
import shutil

import pytest

from kvviz.metrics import Verdict
from kvviz.widgets import assets, view
from tests.widgets.javascript import SOURCES, deno, exported


def test_the_bundle_is_current(tmp_path):
    process = deno("task", "bundle", str(tmp_path))
    assert process.returncode == 0, f"{process.stderr}\n(deno bundle fetches esbuild once: `make setup` does that)"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([assets.SCRIPT.name, assets.STYLE.name])
    for committed in (assets.SCRIPT, assets.STYLE):
        fresh = (tmp_path / committed.name).read_text(encoding="utf-8")
        assert committed.read_text(encoding="utf-8") == fresh, f"static/{committed.name} is stale: run `make js`"


def test_the_bundle_has_no_imports_and_can_be_embedded():
    script, style = (path.read_text(encoding="utf-8").lower() for path in (assets.SCRIPT, assets.STYLE))
    assert not re.search(r"^\s*import\b|\bimport\(", script, re.MULTILINE)
    assert len(re.findall(r"^export ", script, re.MULTILINE)) == 1
    assert "as default" in script
    for markup in ("</script", "<!--", "innerhtml"):
        assert markup not in script
    for markup in ("</style", "@import", "url("):
        assert markup not in style


@pytest.mark.slow
def test_a_missing_import_is_found(tmp_path):
    shutil.copytree(SOURCES, tmp_path / "js")
    assert deno("check", "comparer.js", folder=tmp_path / "js").returncode == 0
    module = tmp_path / "js" / "comparer.js"
    text = module.read_text(encoding="utf-8")
    module.write_text(text.replace('import { marksOf } from "./words.js";\n', ""), encoding="utf-8")
    process = deno("check", "comparer.js", folder=module.parent)
    assert process.returncode != 0
    assert "Cannot find name 'marksOf'" in process.stderr


@pytest.mark.parametrize(
    ("module", "packed", "names"),
    [
        ("map_zoom.js", view, ("MAP_COLUMNS",)),
        ("theme.js", view, ("HUES", "LEVELS", "NOTHING")),
        ("strip.js", view, ("ATTENDED", "ORACLE", "SINK", "RECENT", "GENERATED", "MERGED")),
        ("map_colours.js", Verdict, ("AGREED", "WASTED", "KEPT", "MISSED", "MERGED_AWAY")),
    ],
)
def test_modules_have_the_constants_of_python(module, packed, names):
    constants = exported(module)
    assert {name: constants[name] for name in names} == {name: getattr(packed, name) for name in names}

"""The committed bundle is that of the modules, stands alone, and reads the bytes that Python packs."""

from __future__ import annotations

import re
import shutil

import pytest

from kvviz.metrics import Verdict
from kvviz.widgets import assets, view
from tests.widgets.javascript import SOURCES, deno, exported


def test_the_bundle_is_that_of_the_modules(tmp_path):
    done = deno("task", "bundle", str(tmp_path))
    assert done.returncode == 0, f"{done.stderr}\n(deno bundle fetches esbuild once: `make setup` does that)"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([assets.SCRIPT.name, assets.STYLE.name])
    for committed in (assets.SCRIPT, assets.STYLE):
        fresh = (tmp_path / committed.name).read_text(encoding="utf-8")
        assert committed.read_text(encoding="utf-8") == fresh, f"static/{committed.name} is stale: run `make js`"


def test_the_bundle_stands_alone_and_inside_a_page():
    script, style = (path.read_text(encoding="utf-8").lower() for path in (assets.SCRIPT, assets.STYLE))
    assert not re.search(r"^\s*import\b|\bimport\(", script, re.MULTILINE)
    assert len(re.findall(r"^export ", script, re.MULTILINE)) == 1
    assert "as default" in script
    for markup in ("</script", "<!--", "innerhtml"):
        assert markup not in script
    for markup in ("</style", "@import", "url("):
        assert markup not in style


def test_an_import_that_was_never_made_is_found(tmp_path):
    shutil.copytree(SOURCES, tmp_path / "js")
    assert deno("check", "comparer.js", folder=tmp_path / "js").returncode == 0
    module = tmp_path / "js" / "comparer.js"
    text = module.read_text(encoding="utf-8")
    module.write_text(text.replace('import { MEANING } from "./words.js";\n', ""), encoding="utf-8")
    done = deno("check", "comparer.js", folder=module.parent)
    assert done.returncode != 0
    assert "Cannot find name 'MEANING'" in done.stderr


@pytest.mark.parametrize(
    ("module", "packed", "names"),
    [
        ("theme.js", view, ("HUES", "LEVELS", "NOTHING")),
        ("strip.js", view, ("ATTENDED", "ORACLE", "SINK", "RECENT", "GENERATED", "MERGED")),
        ("comparer_column.js", Verdict, ("AGREED", "WASTED", "KEPT", "MISSED", "MERGED_AWAY")),
    ],
)
def test_modules_read_the_bytes_that_python_packs(module, packed, names):
    constants = exported(module)
    assert {name: constants[name] for name in names} == {name: getattr(packed, name) for name in names}

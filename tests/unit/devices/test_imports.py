"""Modules that are changed once they are imported."""

import importlib
import sys

from multigpu.devices.imports import once_imported


def test_a_module_is_changed_when_it_is_imported_or_at_once(tmp_path, monkeypatch) -> None:
    (tmp_path / "imported_late.py").write_text("number = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)

    def change(module):
        module.number += 1

    with once_imported("imported_late", change):
        assert "imported_late" not in sys.modules
        module = importlib.import_module("imported_late")
        assert module.number == 2
    assert sys.meta_path == finders
    with once_imported("imported_late", change):
        assert module.number == 3
    monkeypatch.delitem(sys.modules, "imported_late")
    assert importlib.import_module("imported_late").number == 1

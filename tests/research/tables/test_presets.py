import pytest

from abnn.errors import InputError
from abnn.evaluate.records import Record
from research.tables import PRESETS, columns_from, preset, render
from tests.research.tables.samples import TWO


def test_presets_fit_real_records(real: list[Record]):
    for name in PRESETS:
        columns = preset(name, real)
        assert columns and all(column.path in real[0].numbers for column in columns), name
        assert len({column.path for column in columns}) == len({column.header for column in columns}) == len(columns)
        assert render(real, columns).count("\n") == 3
    headers = [column.header for column in preset("overview", real)]
    assert headers[:2] == ["digits accuracy", "printed digits accuracy"] and "photos v1.0 AUROC" in headers


def test_columns_from_text(real: list[Record]):
    columns = columns_from("tiers, ECE = calibration.digits.ece,accuracy.digits", real)
    assert columns[:-2] == preset("tiers", real)
    assert (columns[-2].header, columns[-2].path) == ("ECE", "calibration.digits.ece")
    assert (columns[-1].header, columns[-1].path) == ("accuracy.digits", "accuracy.digits")


def test_unknown_presets_and_empty_lines_are_named():
    with pytest.raises(InputError, match="columns: got ' , '"):
        columns_from(" , ", TWO)
    with pytest.raises(InputError, match="Did you mean 'tiers'"):
        preset("tier", TWO)

"""Processors that cannot do what they announce."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from abnn.errors import InputError
from abnn.predict import processor
from abnn.train.loop import make_fabric


@pytest.fixture
def announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    info = tmp_path / "cpuinfo"
    info.write_text("flags : fpu amx_bf16 amx_tile\n")
    monkeypatch.setattr(processor, "CPU_INFO", info)
    processor.bfloat16_works.cache_clear()
    yield info
    processor.bfloat16_works.cache_clear()


def ends_with(code: int, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return SimpleNamespace(returncode=code)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_a_unit_that_does_not_work_is_an_error_before_training(
    announced: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = ends_with(-4, monkeypatch)
    with pytest.raises(
        InputError, match=r"precision: got 'bf16-mixed'.*'32-true'.*ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    ):
        make_fabric("bf16-mixed", "cpu", 1, 1)
    with pytest.raises(InputError):
        processor.check_bfloat16()
    assert len(calls) == 1  # tried once
    assert make_fabric("32-true", "cpu", 1, 1).device == torch.device("cpu")


def test_accelerators_and_devices_that_are_not_there() -> None:
    with pytest.raises(InputError, match="accelerator: got 'foo'; accepted: auto, cpu, cuda, gpu, mps"):
        make_fabric("32-true", "foo", 1, 1)
    for devices in (0, -1, 1.5, "two"):
        with pytest.raises(InputError, match='devices: got .*; accepted: a whole number of at least 1, or "auto"'):
            make_fabric("32-true", "cpu", devices, 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="num_nodes: got 0"):
        make_fabric("32-true", "cpu", 1, 0)
    absent = "mps" if torch.cuda.is_available() else "cuda"
    with pytest.raises(
        InputError, match=f"accelerator: got '{absent}' with devices=1; accepted: what this machine has"
    ):
        make_fabric("32-true", absent, 1, 1)


@pytest.mark.parametrize("code", [0, 1])
def test_one_that_does_is_not(announced: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    ends_with(code, monkeypatch)  # 1: Python could not even start, which says nothing
    assert processor.bfloat16_works()


def test_nothing_is_tried_where_none_is_announced(announced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = ends_with(-4, monkeypatch)
    announced.write_text("flags : fpu avx2\n")
    assert processor.bfloat16_works()
    processor.bfloat16_works.cache_clear()
    announced.unlink()
    assert processor.bfloat16_works() and calls == []


def test_what_cannot_be_tried_is_not_forbidden(announced: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise OSError("no such program")

    monkeypatch.setattr(subprocess, "run", run)
    assert processor.bfloat16_works()


def test_the_trial_itself_runs(announced: Path) -> None:
    assert isinstance(processor.bfloat16_works(), bool)

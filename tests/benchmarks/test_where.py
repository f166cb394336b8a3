from __future__ import annotations

import json

import where


def test_kernels_are_added_up_by_what_they_do() -> None:
    kernels = [
        ("sm90_xmma_fprop_implicit_gemm_bf16", 2, 30.0),
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<float>", 4, 8.0),
        ("triton_per_fused_native_group_norm_11", 1, 5.0),
        ("void at::native::reduce_kernel<512, 1>", 1, 2.0),
        ("nvjet_tst_128x64_64x8_4x1_v_bz_NNN", 1, 1.5),
        ("triton_poi_fused_add_mul_3", 3, 1.2),
        ("something new", 1, 1.0),
    ]
    found = where.by_kind(kernels)
    kinds = [
        "convolutions",
        "changes of layout",
        "normalisation",
        "sums",
        "matrix products",
        "element by element",
        "other",
    ]
    assert list(found) == kinds
    assert found["changes of layout"] == {"kernels": 4, "ms": 0.008}


def test_the_page_shows_the_record() -> None:
    record = json.loads(where.RECORD.read_text())
    assert where.table(record).splitlines()[0] in where.PAGE.read_text()
    for step in record["steps"].values():
        assert all(each["ms"] >= 0 for each in step.values())

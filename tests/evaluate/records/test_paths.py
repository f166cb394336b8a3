from hypothesis import given, settings
from hypothesis import strategies as st

from abnn.evaluate.records import slug


def test_slugs_are_safe_and_keep_foreign_names_apart():
    assert slug("Attached network (α=1, 10 draws)").startswith("attached-network-1-10-draws-")
    assert slug("../../etc/passwd") == "etc-passwd"
    assert slug("Café") == "cafe"
    assert len({slug("数字"), slug("字数"), slug("..."), slug("")}) == 4


@settings(max_examples=50)
@given(st.text(max_size=12))
def test_slugs_are_plain_file_names(name: str):
    assert slug(name) == slug(name) and set(slug(name)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and slug(name)

import pytest

from abnn.evaluate.records import Record, read_record, write_record
from research.metrics import summarise
from tests.evaluate.test_summary import sample_evaluation


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    folder = tmp_path_factory.mktemp("results")
    return [
        read_record(write_record(sample_evaluation(seed, size=20), folder, "e", summary=summarise)) for seed in (0, 1)
    ]

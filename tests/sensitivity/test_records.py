"""What several processes measured, and who measures what."""

import pytest

from ocrquant.distributed import Ranks
from ocrquant.sensitivity.records import Records, deal


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_step_has_one_process_and_neighbours_stay_together(count):
    costs = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    shares = [deal(costs, Ranks(index, count)) for index in range(count)]
    assert [number for share in shares for number in share] == list(range(len(costs)))
    if count == 2:
        assert [sum(costs[number] for number in share) for share in shares] == [14.0, 17.0]


def test_nothing_to_do_is_nobodys():
    assert deal([], Ranks(0, 2)) == []


def test_journals_of_more_processes_are_read_by_fewer(partial):
    for index in range(3):
        records = Records(partial, "scores", Ranks())
        records._own = partial.journal(f"scores-{index}")
        records.add({f"key {index}": [float(index)]})
    found = Records(partial, "scores", Ranks())
    assert [found[f"key {index}"] for index in range(3)] == [[0.0], [1.0], [2.0]]
    assert "key 3" not in found

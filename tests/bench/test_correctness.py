"""What counts as equal, as noise and as a difference; the benchmark on the tiny model."""

import torch

from ocrquant.bench.correctness import Comparison
from tests.bench.running import result_of


def test_noise_and_the_first_difference_by_hand():
    theirs = torch.tensor([[5.0, 4.0, 0.0], [2.0, 2.5, 0.0], [9.0, 0.0, 0.0]])
    ours = torch.tensor([[5.25, 4.0, 0.5], [2.75, 2.5, 0.0], [0.0, 9.0, 0.0]])
    found = Comparison()
    found.add("page", theirs, ours)
    assert found.gap_noise == [0.25]
    assert found.logit_noise == [0.5]
    (parted,) = found.parted
    assert parted["position"] == 1
    assert (parted["token_of_transformers"], parted["token_of_engine"]) == (1, 0)
    assert parted["top_two_gap_of_transformers"] == parted["gap_to_token_of_engine"] == 0.5
    assert parted["gap_of_engine"] == 0.25
    assert found.noise()["largest_gap_change"] == 0.25


def test_of_two_equal_logits_the_one_that_generate_takes_counts():
    theirs = torch.zeros(2, 320)
    theirs[:, [2, 319]] = 1.0
    found = Comparison()
    found.add("page", theirs, theirs.clone())
    assert found.parted == []
    ours = theirs.clone()
    ours[0, 319] = 1.5
    found.add("page", theirs, ours)
    (parted,) = found.parted
    assert (parted["token_of_transformers"], parted["token_of_engine"]) == (2, 319)
    assert parted["top_two_gap_of_transformers"] == 0.0


def test_equal_answers_leave_noise_alone():
    found, logits = Comparison(), torch.randn(4, 7)
    found.add("page", logits, logits.clone())
    assert found.parted == []
    assert found.noise()["places"] == 4
    assert found.noise()["largest_gap_change"] == 0.0


def test_every_number_is_there(capsys, tiny_model_folder):
    data = result_of(
        capsys,
        "correctness",
        "crops=3",
        "at_once=2",
        "max_tokens=5",
        f"model={tiny_model_folder}",
        repeats=None,
    )
    found = data["results"]
    assert data["repeats"] is None
    assert found["pages"] == found["equal_to_one_by_one"] == 3
    assert found["batch_differences"] == []
    assert found["noise"]["places"] + len(found["differences"]) <= found["tokens"]
    assert found["equal_to_transformers"] + len(found["differences"]) == 3
    assert all("within_noise" in difference for difference in found["differences"])
    assert len(data["goals"]) == 2

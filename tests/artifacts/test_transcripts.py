import pytest

from ocrquant.artifacts import ArmTranscript, PageTranscripts, RuntimeRecord, Transcripts


def output(text):
    return ArmTranscript(text=text, num_tokens=3, finished=True, kl_sum=0.5, num_kl_tokens=4)


def page(name, arms=("bf16", "plan")):
    return PageTranscripts(
        page=name,
        kind="line",
        document="a",
        truth="x\ny",
        truth_source="ground_truth",
        arms={arm: output(f"{name} {arm}") for arm in arms},
    )


def runtimes(arms=("bf16", "plan")):
    ran = RuntimeRecord(device="cpu", dtype="bf16", kernels="native", linears=[], kv_cache="bf16")
    return dict.fromkeys(arms, ran)


def test_round_trip_keeps_order_and_has_a_line_a_page(tmp_path):
    transcripts = Transcripts(inputs={}, max_new_tokens=8, runtimes=runtimes(), pages=[page("b"), page("a")])
    path = transcripts.save(tmp_path)
    assert Transcripts.load(tmp_path) == transcripts
    assert sum(line.startswith('  {"page"') for line in path.read_text().splitlines()) == 2
    assert transcripts.arm_names == ["bf16", "plan"]


def test_every_page_has_the_same_arms():
    with pytest.raises(ValueError, match="page 'a' has other arms"):
        Transcripts(inputs={}, max_new_tokens=8, runtimes=runtimes(), pages=[page("b"), page("a", ("bf16",))])


def test_every_arm_says_what_computed_it():
    with pytest.raises(ValueError, match="runtimes of bf16, pages of bf16, plan"):
        Transcripts(inputs={}, max_new_tokens=8, runtimes=runtimes(["bf16"]), pages=[page("a")])


def test_frame_has_a_row_a_page_and_arm():
    frame = Transcripts(
        inputs={}, max_new_tokens=8, runtimes=runtimes(), pages=[page("b"), page("a")]
    ).to_frame()
    assert list(zip(frame["page"], frame["arm"], frame["text"], strict=True)) == [
        ("b", "bf16", "b bf16"),
        ("b", "plan", "b plan"),
        ("a", "bf16", "a bf16"),
        ("a", "plan", "a plan"),
    ]

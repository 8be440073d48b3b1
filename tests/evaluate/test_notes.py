from tests.evaluate.making import damage, output, report_of, transcripts


def with_plan(found, make):
    pages = [
        page.model_copy(update={"arms": {**page.arms, "plan": make(index, page)}})
        for index, page in enumerate(found.pages)
    ]
    return found.model_copy(update={"pages": pages})


def test_a_loss_beyond_chance_is_explained(run):
    found = with_plan(transcripts(), lambda index, page: output(damage(page.truth, 10), kl=2.0))
    notes = report_of(run, found).notes
    assert notes[0].startswith("The plan is worse than bf16 beyond chance, by +")
    assert "Most is lost on" in notes[0]
    assert "the largest shares are those of layers." in notes[0]
    assert "bits per weight would halve the predicted loss" in notes[0]


def test_a_loss_within_chance_is_not(run):
    assert not any("beyond chance" in note for note in report_of(run, transcripts()).notes)


def test_a_plan_no_better_than_uniform_nvfp4_is_said_to_be_so(run):
    found = with_plan(transcripts(), lambda index, page: output(damage(page.truth, 6), kl=9.0))
    notes = report_of(run, found).notes
    assert any(note.startswith("The plan's KL is not below that of uniform NVFP4") for note in notes)
    assert any(note.startswith("The plan's CER is not below that of uniform NVFP4") for note in notes)
    assert not any("not below" in note for note in report_of(run, transcripts()).notes)


def test_loops_cut_off_texts_and_broken_logits_are_counted(run):
    def make(index, page):
        if index == 0:
            return output("word " * 30, finished=False)
        return output(page.truth, kl=None if index == 1 else 0.1)

    notes = report_of(run, with_plan(transcripts(), make)).notes
    assert "The plan loops on 1 page, bf16 on 0." in notes
    assert "The plan hits the token limit on 1 page, bf16 on 0." in notes
    assert "The plan gives NaN or Inf on 1 page, which its mean KL leaves out." in notes


def test_few_documents_without_a_gate(run):
    notes = report_of(run, transcripts(8, documents=2)).notes
    assert "There are too few pages to trust an interval: 8 pages of 2 documents." in notes
    assert report_of(run, transcripts()).notes == []


def test_fp8_caches_are_mentioned(run):
    notes = report_of(run, transcripts(), has_fp8_cache=True).notes
    assert notes == ["All arms but bf16 keep the caches of full-attention layers in FP8."]


def test_a_uniform_plan_without_its_format_is_said_to_be_so(run):
    found = transcripts()
    report = report_of(run, found, arm_groups={"fp8": {}, "nvfp4": {}})
    assert "Uniform NVFP4 holds no group in that format." in report.notes

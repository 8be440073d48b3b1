import json

from ocrquant.bench.machine import ReadProbe, describe_machine


def test_facts_are_there_and_are_json():
    facts = describe_machine()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["processor"]
    assert facts["instruction_set"] in {"plain", "avx2", "avx512", "amx"}
    assert len(facts["date"]) == 10


def test_the_probe_reads_what_it_says():
    probe = ReadProbe(1 << 20)
    assert probe.num_bytes == 1 << 20
    probe()

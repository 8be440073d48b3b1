import threading

import pytest
import torch

from ocrquant.errors import DeviceError
from ocrquant.kernels.add import add
from ocrquant.kernels.program import Program, capture

BF16 = torch.bfloat16


def test_a_capture_runs_nothing_and_a_replay_follows_the_memory():
    a, b, out = torch.ones(2, 3, dtype=BF16), torch.ones(2, 3, dtype=BF16), torch.zeros(2, 3, dtype=BF16)
    with capture() as program:
        add(a, b, out)
        add(out, b, out)
    assert out.sum() == 0
    assert program.num_launches == 2
    program.run()
    assert out.tolist() == [[3.0] * 3] * 2
    a.fill_(5.0)
    program.run()
    assert out.tolist() == [[7.0] * 3] * 2
    assert [name for name, seconds in program.timed_run() if seconds > 0] == ["add", "add"]


def test_the_capture_ends_where_its_block_fails():
    a = torch.ones(2, 3, dtype=BF16)
    with pytest.raises(RuntimeError, match="planted"), capture():
        raise RuntimeError("planted")
    out = torch.zeros_like(a)
    add(a, a, out)
    assert out.sum() == 12


def test_a_reference_op_inside_a_capture_is_refused():
    a = torch.ones(2, 3, dtype=torch.float64)
    with pytest.raises(DeviceError, match=r"op add inside a capture.*dtype torch.float64"), capture():
        add(a, a, a)


def test_captures_do_not_nest():
    with pytest.raises(DeviceError, match="end the other one first"), capture(), capture():
        pass


def test_a_program_keeps_what_it_is_given():
    thing = object()
    program = Program(thing)
    program.keep(thing)
    assert program._kept == [thing, thing]


def test_a_reference_before_a_native_call_of_the_same_op_is_refused_too():
    def record():
        with capture():
            for x in (torch.ones(1, 16), torch.ones(1, 16, dtype=BF16)):
                add(x, x, torch.empty_like(x))

    with pytest.raises(DeviceError, match="add inside a capture"):
        record()


def test_what_another_thread_runs_meanwhile_is_none_of_a_capture():
    wide, narrow = torch.ones(1, 16), torch.ones(1, 16, dtype=BF16)
    out = torch.zeros_like(narrow)
    with capture() as program:
        add(narrow, narrow, out)
        other = threading.Thread(target=lambda: add(wide, wide, torch.empty_like(wide)))
        other.start()
        other.join()
    assert program.num_launches == 1
    assert not out.any()
    program.run()
    assert (out == 2).all()

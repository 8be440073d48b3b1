import threading

import pytest
import torch

from ocrquant.errors import DeviceError, ShapeError
from ocrquant.kernels.add import add
from ocrquant.kernels.packed_attention import packed_attention
from ocrquant.kernels.paged_attention import paged_attention
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


def test_a_share_takes_the_first_rows_of_every_call_and_the_first_segments():
    x, half = torch.ones(8, 16, dtype=BF16), torch.ones(4, 32, dtype=BF16)
    out, wide = torch.zeros_like(x), torch.zeros_like(half)
    q, starts, attended = torch.randn(8, 2, 8).bfloat16(), torch.zeros(9, dtype=torch.int32), x.clone()
    with capture() as program:
        add(x, x, out)
        add(half, half, wide)
        packed_attention(q, q, q, starts, 0.5, attended)
    starts[1:] = torch.tensor([1, 4, 6, 0, 0, 0, 0, 0])
    program.run_share(4, 8, 2)
    assert out.sum(1).tolist() == [32.0] * 4 + [0.0] * 4
    assert wide.sum(1).tolist() == [64.0] * 2 + [0.0] * 2
    expected = x.clone()
    packed_attention(q, q, q, starts[:3].clone(), 0.5, expected)
    assert torch.equal(attended, expected)
    program.run_share(0, 8, 0)
    program.run()
    assert (out == 2).all()


def test_no_share_is_larger_than_what_was_recorded():
    x = torch.ones(4, 16, dtype=BF16)
    with capture() as program:
        add(x, x, x)
    with pytest.raises(ShapeError, match="rows of a run: expected 0 to 4, got 5"):
        program.run_share(5, 4, 1)


def test_an_op_that_does_not_go_row_by_row_takes_no_share():
    q, cache = torch.ones(2, 1, 16, dtype=BF16), torch.ones(1, 4, 1, 16, dtype=BF16)
    table, starts, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([[0]], [0, 2], [2]))
    with capture() as program:
        paged_attention(q, cache, cache, table, starts, lengths, 1.0, torch.empty_like(q).flatten(1))
    with pytest.raises(ShapeError, match="share of op paged_attention"):
        program.run_share(1, 2, 1)

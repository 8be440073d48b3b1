"""Characters and stop strings across tokens, and tokenizers as bytes."""

import random

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from ocrquant.engine.postprocess import Postprocessor
from ocrquant.engine.prompt import text_prompt
from ocrquant.engine.request import FinishReason, Request
from ocrquant.engine.sampling import SamplingParams
from ocrquant.engine.text import TextStream
from ocrquant.engine.vocabulary import Vocabulary, read_vocabulary
from ocrquant.errors import ModelError

TEXT = "Größe 3² € 漢字 und 🙂🙂, e\u0301!"


def cut(data, rng, longest=3):
    pieces = []
    while data:
        size = rng.randint(1, longest)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.parametrize("stop", [(), ("never",)])
def test_no_half_character_is_ever_given(stop):
    for seed in range(50):
        stream, given = TextStream(stop), ""
        for piece in cut(TEXT.encode(), random.Random(seed)):
            given += stream.push(piece)
            assert "\ufffd" not in given
            assert TEXT.startswith(given)
        given += stream.close()
        assert given == stream.text == TEXT


def test_what_is_no_text_becomes_what_tokenizers_make_of_it():
    stream = TextStream()
    assert stream.push(b"a\xff") == "a\ufffd"
    assert stream.push("€".encode()[:2]) == ""
    assert stream.push(b"b") == "\ufffdb"
    assert stream.push("€".encode()[:1]) == ""
    assert stream.close() == "\ufffd"
    assert stream.text == b"a\xff\xe2\x82b\xe2".decode(errors="replace")


@pytest.mark.parametrize(
    ("pieces", "stop", "given", "stopped"),
    [
        (["ab", "cd", "ef"], ("cd",), ["ab", ""], True),
        (["a", "b", "c", "d"], ("bcd",), ["a", "", "", ""], True),
        (["a", "b", "c", "x"], ("bcd",), ["a", "", "", "bcx"], False),
        (["a", "b"], ("bcd",), ["a", "", "b"], False),  # the last is what the end gives back
        (["aab"], ("ab",), ["a"], True),
        (["a", "a", "b"], ("aab",), ["", "", ""], True),
        (["a", "a", "a", "b"], ("aab",), ["", "", "a", ""], True),
        (["xyz"], ("z", "yz"), ["x"], True),
        (["ab", "c"], ("abd", "b"), ["a"], True),
        (["abab", "abc"], ("ababc",), ["", "ab"], True),
        (["\n", "\n"], ("\n\n",), ["", ""], True),
    ],
)
def test_stop_strings_across_tokens(pieces, stop, given, stopped):
    stream = TextStream(stop)
    found = []
    for piece in pieces:
        found.append(stream.push(piece.encode()))
        if stream.stopped:
            break
    else:
        found += [rest] if (rest := stream.close()) else []
    assert found == given
    assert stream.stopped is stopped
    assert stream.text == "".join(given)
    assert stream.close() == ""


def test_stop_strings_against_a_search_of_the_whole_text():
    rng = random.Random(0)
    ended = 0
    for _ in range(3000):
        text = "".join(rng.choices("abä", k=rng.randint(1, 20)))
        stops = tuple("".join(rng.choices("abä", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3)))
        stream, known, given = TextStream(stops), b"", ""
        for piece in cut(text.encode(), rng):
            known += piece
            given += stream.push(piece)
            so_far = known.decode(errors="ignore")
            places = [place for place in map(so_far.find, stops) if place >= 0]
            assert stream.stopped is bool(places)
            if places:
                assert given == stream.text == so_far[: min(places)]
                ended += 1
                break
        else:
            assert given + stream.close() == text
    assert 1000 < ended < 2900


def test_first_space_goes_only_at_the_beginning():
    stream = TextStream(strip_space=True)
    assert [stream.push(p) for p in (b"", b" a", b" b")] == ["", "a", " b"]
    assert TextStream(strip_space=True).push(b"  a") == " a"
    assert TextStream().push(b" a") == " a"


def byte_level():
    letters = models.BPE(vocab=byte_letters(), merges=[])
    tokenizer = Tokenizer(letters)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["<table>", AddedToken("ä b")])
    return tokenizer


def byte_letters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + n) for n, b in enumerate(rest)}
    return {letters[b]: b for b in range(256)}


def sentence_piece(*, strip):
    words = {"<unk>": 0} | {f"<0x{b:02X}>": b + 1 for b in range(256)}
    words |= {w: 300 + n for n, w in enumerate(["▁the", "▁", "page", "▁▁x", "漢", "é"])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], byte_fallback=True, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def decoded(vocabulary, ids):
    stream = TextStream(strip_space=vocabulary.strip_space)
    return "".join(stream.push(vocabulary.piece(i)) for i in ids) + stream.close()


@pytest.mark.parametrize(
    "make", [byte_level, lambda: sentence_piece(strip=True), lambda: sentence_piece(strip=False)]
)
def test_bytes_of_tokens_decode_as_the_tokenizer_does(make):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=make())
    vocabulary = read_vocabulary(tokenizer)
    words = sorted(tokenizer.get_vocab().values())
    rng = random.Random(0)
    for _ in range(500):
        # Valid text only: libraries differ in how many replacement characters broken bytes become.
        text = "".join(rng.choices("aä漢🙂 ", k=3)).encode()
        offset = 0 if "<0x41>" not in tokenizer.get_vocab() else 1
        ids = [b + offset for b in text] + rng.choices([w for w in words if w > 256], k=3)
        assert decoded(vocabulary, ids) == tokenizer.decode(ids, skip_special_tokens=True)


def test_the_shipped_tokenizer(tiny_model_folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model_folder)
    vocabulary = read_vocabulary(tokenizer)
    ids = list(range(len(vocabulary.pieces)))
    random.Random(0).shuffle(ids)
    assert decoded(vocabulary, ids) == tokenizer.decode(ids, skip_special_tokens=True)
    assert vocabulary.piece(len(ids) + 5) == b""


def test_unknown_decoders_are_refused():
    tokenizer = byte_level()
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="tokenizer.json: decoder: expected ByteLevel"):
        read_vocabulary(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), clean_up_tokenization_spaces=True)
    with pytest.raises(ModelError, match="clean_up_tokenization_spaces"):
        read_vocabulary(tokenizer)


LETTERS = Vocabulary(tuple(bytes([ord("a") + n]) for n in range(26)))


def accept(tokens, limit=100, **sampling):
    request = Request("r", 0, text_prompt([1], 1), SamplingParams(**sampling), limit)
    request.stream = TextStream(request.sampling.stop)
    output = Postprocessor((25,), LETTERS).accept(request, tokens, [float(t) for t in tokens])
    return request, output


@pytest.mark.parametrize(
    ("sampling", "limit", "text", "ids", "reason"),
    [
        ({}, 100, "abcd", (0, 1, 2, 3), FinishReason.END),  # the end token within a block
        ({"ignore_eos": True}, 100, "abcdze", (0, 1, 2, 3, 25, 4), None),
        ({"max_tokens": 3}, 3, "abc", (0, 1, 2), FinishReason.LENGTH),
        ({"max_tokens": 50}, 2, "ab", (0, 1), FinishReason.POSITIONS),
        ({"stop": ("bc",)}, 100, "a", (0, 1, 2), FinishReason.STOP),
        ({"stop": ("abcdz",), "ignore_eos": True}, 100, "", (0, 1, 2, 3, 25), FinishReason.STOP),
        ({"max_tokens": 5}, 5, "abcd", (0, 1, 2, 3), FinishReason.END),
    ],
)
def test_a_block_of_tokens_ends_where_the_answer_does(sampling, limit, text, ids, reason):
    request, output = accept([0, 1, 2, 3, 25, 4], limit, **sampling)
    assert output.new_ids == tuple(request.output_ids) == ids
    assert output.new_text == text
    assert request.finish_reason is reason
    assert output.finished is (reason is not None)
    if reason:
        assert (output.result.text, output.result.ids) == (text, ids)
        assert output.result.gaps == tuple(float(i) for i in ids)
        assert output.result.num_generated == len(ids) + (reason is FinishReason.END)


def test_held_back_text_comes_with_the_end():
    _, output = accept([0, 1], 2, max_tokens=2, stop=("bc",))
    assert output.new_text == output.result.text == "ab"


def test_a_loop_within_a_block_ends_at_a_multiple_of_sixteen():
    request, output = accept([3] * 120, stop_at_loop=True)
    assert (len(output.new_ids), request.finish_reason) == (96, FinishReason.LOOP)

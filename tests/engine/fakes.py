"""A runner whose model is a chain of hashes through pages and slots, and the same chain without an engine.

A token depends on every key that the page tables lead to, in order, and on the state that its slot carries
along, so that a stale page, a wrong slot, a wrong position or a chunk computed twice changes the text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from ocrquant.engine.metadata import StepBuilder
from ocrquant.engine.plan import Sampled
from ocrquant.engine.pools import Pools
from ocrquant.engine.prompt import Prompt, PromptImage
from ocrquant.engine.request import FinishReason
from ocrquant.engine.vocabulary import Vocabulary
from ocrquant.metrics.loops import is_loop

MASK = (1 << 63) - 1
IMAGE_TOKEN = 30
END = 0
VOCABULARY = 30
PIECES = Vocabulary(tuple(chr(ord("A") + i).encode() for i in range(VOCABULARY)))


def mixed(*values: int) -> int:
    h = 0x2545F4914F6CDD1D
    for value in values:
        h = ((h ^ (value & MASK)) * 0x100000001B3) & MASK
        h ^= h >> 29
    return h


def chained(state: int, value: int) -> int:
    return ((state ^ value) * 0x100000001B3 + 1) & MASK


def image_value(digest: bytes, row: int) -> int:
    return mixed(int.from_bytes(hashlib.sha256(digest).digest()[:7], "little"), row)


def row_values(contents, positions) -> np.ndarray:
    """int64 [R] from contents [R] and positions [3, R]; overflow wraps."""
    mixture = np.array([0x1000193, 0x10001B7, 0x1000233], np.int64) @ np.asarray(positions, np.int64)
    return ((np.asarray(contents, np.int64) * 0x5851F42D4C957F2D) ^ mixture) & MASK


def sampled_token(
    state: int, past: int, temperature: float, top_p: float, seed: list[int], place: int
) -> int:
    h = mixed(state, past)
    if temperature > 0:
        bits = np.array([temperature, top_p], np.float32).view(np.int32).tolist()
        h = mixed(h, *bits, *seed, place)
    return (h >> 7) % VOCABULARY


WEIGHTS = (2 * np.arange(1 << 14, dtype=np.int64) + 1) * 0x9E3779B97F4A7C1
"""So that the order of keys matters."""


@dataclass
class FakeSnapshot:
    value: int
    nbytes: int = 64


class FakeRunner:
    """Computes through the arrays of `StepInputs` only; poisons what is free before every step."""

    page_bytes = 100

    def __init__(self, config, rng=None):
        self.config = config
        self.builder = StepBuilder(config, torch.device("cpu"))
        self.rng = rng or np.random.default_rng(0)
        self.kv = self._noise(config.num_pages * config.page_size)
        self.drafter = self._noise(config.drafter_pages * config.page_size)
        self.state = self._noise(config.state_rows)
        self.images: dict[int, list[int]] = {}
        self.windows: dict[int, list[int]] = {}
        self.pools: Pools | None = None  # set to poison what is free
        self.steps: list = []
        self.copied = self.snapshots = self.restored = self.encoded = 0

    def check(self, prompt):
        pass

    def _noise(self, count):
        return self.rng.integers(0, 1 << 60, count)

    def copy_pages(self, copies):
        size = self.config.page_size
        for copy in copies:
            for cache, pair in ((self.kv, copy.kv), (self.drafter, copy.drafter)):
                if pair is not None:
                    source, target = pair
                    cache[target * size : (target + 1) * size] = cache[source * size : (source + 1) * size]
            self.copied += 1

    def snapshot(self, slot):
        self.snapshots += 1
        return FakeSnapshot(int(self.state[slot]))

    def restore(self, slot, snapshot):
        self.restored += 1
        self.state[slot] = snapshot.value

    def commit(self, plan, accepted):
        slots = [window.request.slot for window in plan.drafted]
        assert list(self.windows) == slots, "every window is committed once"
        for slot, count in zip(slots, accepted, strict=True):
            self.state[slot] = self.windows[slot][count - 1]
        self.windows = {}

    def forget(self, request):
        self.images.pop(request.number, None)

    def poison(self):
        for cache, pool in ((self.kv, self.pools.kv), (self.drafter, self.pools.drafter)):
            if pool is not None and pool.pool.num_free:
                cache.reshape(-1, self.config.page_size)[list(pool.pool.free_pages)] = self.rng.integers(
                    1 << 60
                )
        self.state[[0, *self.pools.slots.free_slots]] = self.rng.integers(1 << 60)

    def run(self, plan):
        if self.pools is not None:
            self.poison()
        for request in plan.encode:
            assert request.number not in self.images, "images are encoded once"
            rows = [image_value(i.digest, n) for i in request.prompt.images for n in range(i.num_tokens)]
            self.images[request.number] = rows
            self.encoded += 1
        image_rows: list[int] = []
        for chunk in plan.prefill:
            first, last = chunk.request.prompt.image_rows(chunk.start, chunk.end)
            image_rows += self.images[chunk.request.number][first:last] if last > first else []
        inputs = self.builder.build(plan)
        self.steps.append(plan.shape)
        assert plan.shape.num_rows <= self.config.max_step_tokens
        assert plan.shape.num_requests <= self.config.max_requests
        return self._compute(inputs, image_rows)

    def _compute(self, inputs, image_rows):
        step, sampling = inputs.step, inputs.sampling
        contents = step.tokens.tolist()
        if step.image_index is not None:
            for row, index in enumerate(step.image_index.tolist()):
                assert (contents[row] == IMAGE_TOKEN) == (index >= 0)
                contents[row] = image_rows[index] if index >= 0 else contents[row]
        values = row_values(contents, step.positions.numpy())
        slots = step.attention.slot_mapping.numpy()
        assert len(set(slots.tolist())) == len(slots), "two rows go to one place"
        self.kv[slots] = values
        starts = step.state.q_start.tolist()
        assert starts[0] == 0
        assert starts[-1] == len(contents)
        states = self._chain(step.state, starts, values.tolist())
        rows = step.logit_rows.numpy()
        owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[rows]
        lengths = step.attention.kv_len.numpy()[owners] - (np.array(starts)[owners + 1] - 1 - rows)
        pasts = self._pasts(self.kv, step.attention.page_table.numpy()[owners], lengths)
        if inputs.drafter is not None:
            self.drafter[inputs.drafter.slot_mapping.numpy()] = values
            pages = inputs.drafter.page_table.numpy()[owners]
            pasts = [a ^ b * 3 for a, b in zip(pasts, self._pasts(self.drafter, pages, lengths), strict=True)]
        settings = (sampling.temperature, sampling.top_p, sampling.seed, sampling.position)
        tokens = list(
            map(
                sampled_token, [states[row] for row in rows], pasts, *(tensor.tolist() for tensor in settings)
            )
        )
        return Sampled(np.array(tokens, np.int32), np.array(tokens, np.float32) / 8)

    def _chain(self, meta, starts, values):
        """State after each row."""
        states = []
        assert not self.windows, "the last step's windows are committed"
        drafted = meta.classes.drafted.requests.stop
        requests = zip(meta.slots.tolist(), meta.fresh.tolist(), starts[:-1], starts[1:], strict=True)
        for number, (slot, fresh, start, end) in enumerate(requests):
            state = 0 if fresh else int(self.state[slot])
            for value in values[start:end]:
                state = chained(state, value)
                states.append(state)
            if number < drafted:
                self.windows[slot] = states[start:end]
                state = int(self.rng.integers(1 << 60))  # of no use before it is committed
            self.state[slot] = state
        return states

    def _pasts(self, cache, pages, lengths):
        keys = cache.reshape(-1, self.config.page_size)[pages].reshape(
            len(pages), pages.shape[1] * self.config.page_size
        )
        keys = np.where(np.arange(keys.shape[1]) < lengths[:, None], keys, 0)
        return ((keys * WEIGHTS[: keys.shape[1]]).sum(1) & MASK).tolist()


def past_of(keys) -> int:
    return int((np.asarray(keys, np.int64) * WEIGHTS[: len(keys)]).sum()) & MASK


def document_prompt(rng, *, before=3, image=(2, 3), after=2, digest=None, text=None) -> Prompt:
    """Text, an image on a grid, text; M-RoPE positions."""
    rows, columns = image
    count = rows * columns
    draw = lambda n: rng.integers(1, IMAGE_TOKEN, n).tolist()  # noqa: E731
    head = (text or draw(before))[:before] if before else []
    tokens = [*head, *[IMAGE_TOKEN] * count, *draw(after)]
    place = np.arange(len(tokens))
    positions = np.tile(place, (3, 1))
    inside = slice(before, before + count)
    positions[:, inside] = before + np.stack([np.zeros(count, int), *np.divmod(np.arange(count), columns)])
    delta = max(rows, columns) - count
    positions[:, before + count :] += delta
    digest = digest or rng.bytes(8)
    images = (PromptImage(digest, before, count, (1, 2 * rows, 2 * columns)),)
    return Prompt(np.array(tokens, np.int32), positions.astype(np.int32), delta, images)


def expected_answer(prompt, sampling, limit, *, drafter=False, end=END):
    """(ids, text, reason) of the chain computed alone, without pages, slots, chunks or batches."""
    contents = prompt.tokens.tolist()
    for image in prompt.images:
        contents[image.start : image.end] = [image_value(image.digest, n) for n in range(image.num_tokens)]
    if len(prompt.images) > 1:
        rows = [image_value(i.digest, n) for i in prompt.images for n in range(i.num_tokens)]
        places = [p for i in prompt.images for p in range(i.start, i.end)]
        for place, value in zip(places, rows, strict=True):
            contents[place] = value
    keys = row_values(contents, prompt.positions).tolist()
    state = 0
    for key in keys:
        state = chained(state, key)
    ids: list[int] = []
    while True:
        past = past_of(keys)
        past = past ^ past * 3 if drafter else past
        t, p = float(np.float32(sampling.temperature)), float(np.float32(sampling.top_p))
        token = sampled_token(state, past, t, p, list(sampling.seed_words), len(keys))
        if token == end and not sampling.ignore_eos:
            return ids, text_of(ids), FinishReason.END
        ids.append(token)
        text = text_of(ids)
        found = [place for place in map(text.find, sampling.stop) if place >= 0]
        if found:
            return ids, text[: min(found)], FinishReason.STOP
        if len(ids) == sampling.max_tokens:
            return ids, text, FinishReason.LENGTH
        if len(ids) == limit:
            return ids, text, FinishReason.POSITIONS
        if sampling.stop_at_loop and len(ids) % 16 == 0 and is_loop(ids):
            return ids, text, FinishReason.LOOP
        keys += row_values([token], [[len(keys) + prompt.rope_delta]] * 3).tolist()
        state = chained(state, keys[-1])


def text_of(ids) -> str:
    return b"".join(map(PIECES.piece, ids)).decode()

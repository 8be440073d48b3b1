"""Pico's tokenizer: one Unicode character a token, plus control tokens and two prompts.

Knows the alphabet and the chat template; knows nothing of images. A character that the alphabet lacks becomes
`<|unk|>`; nothing is normalised away but NFC composition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ocrquant.pico.geometry import VOCAB_SIZE

CONTROL = (
    "<|pad|>",
    "<|end|>",
    "<|unk|>",
    "<|user|>",
    "<|assistant|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PROMPTS = {"line": "Read the line.", "block": "Read the block."}
SPECIAL = (*CONTROL, *PROMPTS.values())

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "{% if message.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def alphabet(texts: Iterable[str]) -> list[str]:
    """The characters of pico.

    Newline, printable ASCII, then the most frequent others that fit the vocabulary.
    """
    counts = Counter(character for text in texts for character in text)
    base = ["\n", *map(chr, range(32, 127))]
    others = [character for character, count in counts.most_common() if character not in base and count > 1]
    return [*base, *others[: VOCAB_SIZE - len(base) - len(SPECIAL)]]


def build_tokenizer(characters: list[str]) -> PreTrainedTokenizerFast:
    """A character tokenizer over `characters`, with pico's control tokens first."""
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unk|>"))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    backend.add_tokens([AddedToken(prompt, special=False, normalized=False) for prompt in PROMPTS.values()])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<|unk|>",
        pad_token="<|pad|>",
        eos_token="<|end|>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer

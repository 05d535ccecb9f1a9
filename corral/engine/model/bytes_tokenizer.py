"""A tokenizer made in code: a token per byte, and the few marks that a chat needs.

Every text can be written with it and none is changed by it, so a test needs no download and no training of
a vocabulary. Token ids 0 to 255 are the bytes themselves.
"""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
PAD = "<|pad|>"

# In the order of their ids, from 256 on. With these eight the vocabulary is a multiple of eight, as matrix
# products on a GPU like it.
SPECIAL = (END_OF_TEXT, TURN, END_OF_TURN, PAD, "<tool_call>", "</tool_call>", "<think>", "</think>")
VOCABULARY = 256 + len(SPECIAL)
END_OF_TURN_ID = 256 + SPECIAL.index(END_OF_TURN)
PAD_ID = 256 + SPECIAL.index(PAD)

# ChatML. What comes before an assistant's answer never depends on what follows it, so the tokens of a
# conversation's beginning are always the beginning of its tokens. The generation marks tell which tokens
# the assistant wrote.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>tools\\n' }}
{%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function or call %}
{{- '<tool_call>{"name": "' + function.name + '", "arguments": ' }}
{{- (function.arguments if function.arguments is string else function.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>' }}
{%- endgeneration %}
{{- '\\n' }}
{%- else %}
{{- (message.content or '') + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def build(context: int) -> PreTrainedTokenizerFast:
    """The tokenizer, for a model that takes `context` tokens."""
    vocabulary = {_byte_letter(byte): byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _byte_letter(byte: int) -> str:
    """The letter by which the byte-level pre-tokenizer writes a byte: itself where it can be printed."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    if byte in printable:
        return chr(byte)
    return chr(256 + sum(1 for lower in range(byte) if lower not in printable))

"""Real tokenizers and templates, made in code."""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIALS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    *("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>", "<s>", "</s>"),
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>", "[INST]", "[/INST]"),
    *("<|user|>", "<|assistant|>", "<|system|>", "<|observation|>", "[gMASK]", "<sop>"),
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
]
TEXT = """The quick brown fox jumps over the lazy dog. What is two plus two? It is four, of course.
You are a helpful assistant. <think>\n\n</think>\n\nPlease answer the question: user assistant system tool
def add(a, b):\n    return a + b\n\n\n1 2 3 4 10 100 1000 {"name": "add", "arguments": {"a": 1}} """

CHATML = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA3 = """\
{{- bos_token }}
{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content | trim }}{{ '<|eot_id|>' }}{% endgeneration %}
{%- else %}{{ m.content | trim }}{{ '<|eot_id|>' }}{% endif %}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
# As Qwen3's: thinking is written in the last turn only, and an empty one is put before the answer when off.
QWEN3 = """\
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- set content = m.content %}
{%- if m.role == 'assistant' %}
{%- set thought = m.reasoning_content or '' %}
{%- if '</think>' in content %}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last %}
{%- set content = '<think>\\n' + thought + '\\n</think>\\n\\n' + content %}
{%- endif %}
{%- endif %}
{{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""
# As R1's: asks with an open thought, and never writes thoughts.
ALWAYS_THINKS = """{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}
{{- m.content.split('</think>')[-1] + '<|im_end|>\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"""
NO_END = """{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"""
STRICT = """{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate') }}{% endif %}{{ '[INST]' + m.content + '</s>' }}{% endfor %}"""
DATED = """{{- '<|im_start|>system\\nToday: ' + strftime_now("%d %b %Y") + '<|im_end|>\\n' }}""" + CHATML


# How Llama 3 and Qwen split a text into words before merging; GPT-2 splits line breaks otherwise.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def byte_pairs(
    template: str | None = CHATML, *, end: str = "<|im_end|>", words: str = WORDS
) -> PreTrainedTokenizerFast:
    """Byte-level BPE with merges inside words, as GPT-2, Llama 3 and Qwen have."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        [TEXT] * 3, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    return _wrapped(inner, template, end=end, begin="<|begin_of_text|>")


def pieces(template: str | None = None) -> PreTrainedTokenizerFast:
    """SentencePiece-like: spaces belong to the word after them, and a begin mark is put before a text."""
    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Metaspace(prepend_scheme="first")
    inner.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], show_progress=False)
    )
    wrapped = _wrapped(inner, template, end="</s>", begin="<s>")
    begin = wrapped.convert_tokens_to_ids("<s>")
    wrapped.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", begin)]
    )
    return wrapped


def _wrapped(inner: Tokenizer, template: str | None, *, end: str, begin: str) -> PreTrainedTokenizerFast:
    inner.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token=end,
        bos_token=begin,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )

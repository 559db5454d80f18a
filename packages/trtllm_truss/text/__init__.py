"""Prompts to token ids, token ids to text.

A folder (or a GGUF file) becomes a `tokenizer.TextTokenizer`, which turns prompts and chat messages
into ids. Ids from the engine pass through one `text_stream.TextStream` per request: a
`decoding.Decoding` turns ids into text as soon as it is certain, and a `stop_words.StopWordMatcher`
cuts that text just before a stop word.

The package guarantees the following, and its tests check it with real tokenizers, random ids and
random cuts: the joined deltas equal the tokenizer's decoding of all ids, to the byte; and a stop
word is found across all token and delta boundaries.

`tokenizer_files` and `gguf_tokenizer` read the stored forms of a tokenizer (`tokenizer_parts`,
`tokenizer_schemas`, `tokenizer_conversion`); `growth` limits how much it lengthens a text.
`chat_template` renders the prompt format in a `sandbox`, within `template_limits` and `time_limit`.

Nothing here blocks on I/O after loading, or depends on Triton.
"""

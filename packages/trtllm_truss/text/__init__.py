"""Prompts to token ids, token ids to text.

A folder (or a GGUF file) becomes a `tokenizer.TextTokenizer`, which turns prompts and chat messages
into ids. Ids from the engine run through one `text_stream.TextStream` per request: a
`decoding.Decoding` turns ids into text as early as it is certain, and a
`stop_words.StopWordMatcher` ends that text just before a stop word.

The package guarantees, and its tests check over real tokenizers, random ids and random cuts: the
joined deltas equal the tokenizer's decoding of all ids, to the byte; and a stop word is found
across all token and delta borders.

`tokenizer_files` and `gguf_tokenizer` read the stored forms of a tokenizer (`tokenizer_parts`,
`tokenizer_schemas`, `tokenizer_conversion`); `growth` bounds how far it lengthens a text.
`chat_template` renders its prompt format, in `sandbox`, within `template_limits` and `time_limit`.

Nothing here blocks on I/O after loading, or knows of Triton.
"""

"""Prompts to token ids, token ids to text: everything about language, nothing about servers.

A folder (or a GGUF file) becomes a `tokenizer.TextTokenizer`, which turns prompts and chat
messages into ids. What comes back from the engine runs through one `text_stream.TextStream` per
request, or a `token_stream.TokenStream` where tokens are to be told as well: a
`decoding.Decoding` turns ids into text as early as it is certain, and a
`stop_words.StopWordMatcher` ends that text just before a stop word. `engine_hints` says which stop
words the engine may watch for by itself.

Two promises carry the package, and its tests hold them over real tokenizers, random ids and random
cuts: the pieces joined are what the tokenizer decodes from all ids at once, to the byte; and a
stop word is found wherever the borders of tokens and pieces fall.

The rest serves the tokenizer: `tokenizer_files` and `gguf_tokenizer` read the two forms in which
one is stored, `chat_template` the prompt format that comes with it, `decoding` the ways in which
tokenizers turn ids into text.

Nothing here waits, opens a connection or knows of Triton.
"""

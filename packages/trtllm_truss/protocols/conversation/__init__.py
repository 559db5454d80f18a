"""Readers of conversations, one per API; each only translates into the form of `conversation`.

- `turns`: the turns being read, with the rules of all APIs for parts of text and arguments;
- `chat`: messages of chat completions, predict and `/invocations`;
- `blocks`: content blocks of Anthropic's Messages;
- `items`: items of OpenAI's Responses.
"""

"""Readers of conversations, one per API, which only convert to the form of `conversation`.

- `turns`: the turns being read, with the rules for text parts and arguments in all APIs;
- `chat`: messages of chat completions, predict and `/invocations`;
- `blocks`: content blocks of Anthropic's Messages;
- `items`: items of OpenAI's Responses.
"""

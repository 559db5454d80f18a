"""Whether a string is text at all."""


def is_unicode(text: str) -> bool:
    """Whether a text is one: JSON can hold half of a surrogate pair, which is not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

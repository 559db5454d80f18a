"""Values that `runtime` accepts, read as the backend does: by the functions below `std::stoi`."""

from __future__ import annotations

import ctypes
import errno

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_truss.errors import SettingsError
from trtllm_truss.settings.runtime import RuntimeOptions, parameter_text

INT, INTS = "max_tokens_in_paged_kv_cache", "max_attention_window_size"
FRACTION, SHARE = "kv_cache_free_gpu_mem_fraction", "gpu_weights_percent"

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.strtol.restype, _LIBC.strtof.restype = ctypes.c_long, ctypes.c_float


def read_by(function: str, text: str, *base: int) -> float:
    """Read a text as libstdc++ does.

    Raises:
        ValueError: it throws, or leaves a part unread.
    """
    begin = ctypes.create_string_buffer(text.encode())
    end = ctypes.c_char_p()
    ctypes.set_errno(0)
    value: float = getattr(_LIBC, function)(begin, ctypes.byref(end), *base)
    if ctypes.get_errno() == errno.ERANGE or end.value != b"" or not text:
        raise ValueError(text)
    return value


def accepted(name: str, value: object) -> str | None:
    """Return the text for config.pbtxt; None if the value is blank or refused."""
    try:
        parsed = RuntimeOptions.parse({name: value}).parameters.get(name)
    except SettingsError:
        return None
    return None if parsed is None else parameter_text(parsed)


numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**63]),
    st.floats(),
)
texts = st.one_of(numbers.map(str), st.text("0123456789+-.exXabf_ ,", max_size=12))


@given(st.one_of(numbers, texts))
def test_an_integer_that_is_accepted_is_read_whole(value: object) -> None:
    if (text := accepted(INT, value)) is not None:
        assert 1 <= read_by("strtol", text, 10) <= 2**31 - 1


@given(st.lists(st.one_of(numbers, texts), min_size=1, max_size=4))
def test_a_list_that_is_accepted_is_read_whole(values: list[object]) -> None:
    if (text := accepted(INTS, ",".join(map(str, values)))) is not None:
        items = text.split(",")
        assert len(items) == ",".join(map(str, values)).count(",") + 1
        assert all(1 <= read_by("strtol", item, 10) <= 2**31 - 1 for item in items)


@pytest.mark.parametrize(("name", "inclusive"), [(FRACTION, False), (SHARE, True)])
@given(value=st.one_of(st.floats(), st.floats(0, 1), st.floats(0, 1e-30), texts))
def test_a_fraction_that_is_accepted_is_one_of_32_bits(
    name: str, inclusive: bool, value: object
) -> None:
    if (text := accepted(name, value)) is not None:
        single = np.float32(read_by("strtof", text))
        assert 0 <= single <= 1 if inclusive else 0 < single < 1

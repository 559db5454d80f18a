"""Speculative decoding: its configuration and its effect on requests.

Up to 1.2 `SpeculativeConfig` is a union of classes that forbid other fields, and whose
`decoding_type` is a class variable: a mapping with it fits none. `from_dict` of their base class
pops it and chooses the class. In 1.3 it is a field, which chooses the class of a mapping. Sources
in NVIDIA/TensorRT-LLM: tensorrt_llm/llmapi/llm_args.py of 1.2.1, and late in 1.3.0.

Drafts within the model (`MTPSampler` of _torch/speculative/mtp.py, near 1.0 to 1.2) take the
likeliest tokens, from 1.2.0rc8 on unless `allow_advanced_sampling` is set (pull requests 9885 and
10019), and from pull request 14745 (June 2026) on not. All else of a request is dropped (17701),
seeds before 17599. A request for log probabilities fails the step of all requests, and late in
1.3.0 itself only.
"""

from tensorrt_llm.fake.versions import IS_1_3, RELEASE

_WITHOUT_MODEL = ("NGram", "AUTO", "DraftTarget")
_SAMPLES_UNASKED = (1, 3, 0, 20)
_SEEDS_SINCE = (1, 3, 0, 27)


class Drafts:
    """Checked drafts, and their effect on requests; workers get it."""

    def __init__(self, kind, given):
        self.within = kind not in _WITHOUT_MODEL and all(
            given.get(name, True) for name in ("eagle3_one_model", "mtp_eagle_one_model")
        )
        asked = given.get("allow_advanced_sampling", False) or RELEASE >= _SAMPLES_UNASKED
        self.samples = asked or not self.within
        self.has_seeds = not self.within or RELEASE >= _SEEDS_SINCE
        self.given = given


def read_drafts(given):
    """Return the object of `speculative_config`; None without drafts."""
    if given is None or isinstance(given, Drafts):
        return given
    if not IS_1_3:
        raise ValueError("speculative_config.decoding_type: Extra inputs are not permitted")
    return make_drafts(dict(given))


def make_drafts(given):
    """Make drafts of a mapping with `decoding_type`, which it removes."""
    from tensorrt_llm.fake.llm_args import CLASSES  # which workers need not import

    kind = given.pop("decoding_type")
    if kind not in CLASSES["drafts"]:
        raise ValueError(f"Invalid decoding type: {kind}")
    CLASSES["drafts"][kind](**given)
    return Drafts(kind, given)

"""Speculative decoding: its configuration, and what it makes of a request.

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

from tensorrt_llm.fake.otherwise import OTHERWISE
from tensorrt_llm.fake.versions import IS_1_3, RELEASE

_BASE = {
    *("max_draft_len", "max_total_draft_tokens", "speculative_model_dir", "max_concurrency"),
    *("load_format", "acceptance_window", "acceptance_length_threshold"),
    *(("speculative_model",) if RELEASE >= (1, 2) else ()),
    *(("allow_advanced_sampling",) if RELEASE >= (1, 2, 0, 8) else ()),
}
_EAGLE = {"eagle_choices", "eagle3_one_model", "eagle3_layers_to_capture", "num_eagle_layers"}
_OF_KIND = {
    "MTP": {"num_nextn_predict_layers", "use_mtp_vanilla", "mtp_eagle_one_model"},
    "Eagle": _EAGLE,
    "NGram": {"max_matching_ngram_size", "is_keep_all", "is_use_oldest", "is_public_pool"},
    **(
        {"Eagle3": _EAGLE, "Draft_Target": set(), "PARD": set(), "SA": set(), "DFlash": set()}
        if IS_1_3
        else {"DraftTarget": set()}
    ),
    "AUTO": set(),
}
_WITHOUT_MODEL = ("NGram", "AUTO", "DraftTarget")
_SAMPLES_UNASKED = (1, 3, 0, 20)
_SEEDS_SINCE = (1, 3, 0, 27)


class DecodingBaseConfig:
    model_fields = dict.fromkeys(_BASE)

    def __init__(self, kind, given):
        if kind not in _OF_KIND:
            raise ValueError(f"Invalid decoding type: {kind}")
        if wrong := sorted(given.keys() - _BASE - _OF_KIND[kind]):
            raise ValueError(f"{kind}: Extra inputs are not permitted: {wrong}")
        self.within = kind not in _WITHOUT_MODEL and all(
            given.get(name, True) for name in ("eagle3_one_model", "mtp_eagle_one_model")
        )
        asked = given.get("allow_advanced_sampling", False) or RELEASE >= _SAMPLES_UNASKED
        self.samples = asked or not self.within
        self.has_seeds = not self.within or RELEASE >= _SEEDS_SINCE

    if not IS_1_3 and "drafts-by-kind" not in OTHERWISE:

        @classmethod
        def from_dict(cls, data):
            return cls(data.pop("decoding_type"), data)


def read_drafts(given):
    """Return the object of `speculative_config`; None without drafts."""
    if given is None or isinstance(given, DecodingBaseConfig):
        return given
    if not IS_1_3:
        raise ValueError("speculative_config.decoding_type: Extra inputs are not permitted")
    given = dict(given)
    return DecodingBaseConfig(given.pop("decoding_type"), given)

from __future__ import annotations

import struct

import pytest
from tritonclient.grpc import service_pb2

from trtllm_truss.releases import CacheReport
from trtllm_truss.request_fields import SAMPLING, Sampling
from trtllm_truss.requests import Guide
from trtllm_truss.triton.client.engine_messages import EngineChunk, EngineRequest
from trtllm_truss.triton.client.tensors import (
    EngineInputs,
    decode_response,
    encode_request,
    encode_stop,
    pack_words,
)


def with_sampling(fields):
    """Move the fields of `Sampling` into one."""
    names = [row.name for row in SAMPLING]
    sampling = Sampling(**{name: fields.pop(name) for name in names if name in fields})
    return {**fields, "sampling": sampling}


parse = service_pb2.ModelInferRequest.FromString


def encode(version="1.0.0", **fields):
    request = EngineRequest("r1", [5, 6, 7], 9, **with_sampling(fields))
    known = EngineInputs.of(version)
    return parse(encode_request(request, model_name="tensorrt_llm", known=known))


def tensors(message):
    assert len(message.inputs) == len(message.raw_input_contents)
    return {
        i.name: (i.datatype, list(i.shape), raw)
        for i, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    }


def test_the_least_request():
    message = encode()
    assert (message.id, message.model_name) == ("r1", "tensorrt_llm")
    assert message.parameters["triton_enable_empty_final_response"].bool_param
    assert [o.name for o in message.outputs] == ["output_ids", "sequence_length"]
    assert tensors(message) == {
        "temperature": ("FP32", [1, 1], bytes(4)),
        "runtime_top_k": ("INT32", [1, 1], bytes.fromhex("01000000")),
        "input_ids": ("INT32", [1, 3], bytes.fromhex("05000000 06000000 07000000")),
        "input_lengths": ("INT32", [1, 1], bytes.fromhex("03000000")),
        "request_output_len": ("INT32", [1, 1], bytes.fromhex("09000000")),
        "streaming": ("BOOL", [1, 1], b"\x01"),
        "exclude_input_in_output": ("BOOL", [1, 1], b"\x01"),
    }


def test_every_field():
    sent = tensors(
        encode(
            end_id=2,
            pad_id=0,
            stop_words=[[5, 7, 3], [9, 2]],
            bad_words=[[1]],
            streaming=False,
            temperature=0.75,
            top_k=4,
            top_p=0.5,
            min_p=0.125,
            repetition_penalty=1.5,
            presence_penalty=0.25,
            frequency_penalty=-0.25,
            min_tokens=3,
            seed=2**64 - 1,
            return_log_probs=True,
            lora_task_id=2**63,
        )
    )
    assert sent["lora_task_id"] == ("UINT64", [1, 1], bytes(7) + b"\x80")
    assert sent["end_id"][2] == bytes.fromhex("02000000")
    assert sent["pad_id"][2] == bytes(4)
    assert sent["streaming"][2] == b"\x00"
    assert sent["temperature"] == ("FP32", [1, 1], struct.pack("<f", 0.75))
    assert sent["runtime_top_k"][2] == bytes.fromhex("04000000")
    assert sent["runtime_top_p"][2] == struct.pack("<f", 0.5)
    assert sent["repetition_penalty"][2] == struct.pack("<f", 1.5)
    assert sent["presence_penalty"][2] == struct.pack("<f", 0.25)
    assert sent["frequency_penalty"][2] == struct.pack("<f", -0.25)
    assert sent["min_p"] == ("FP32", [1, 1], struct.pack("<f", 0.125))
    assert sent["min_tokens"][2] == bytes.fromhex("03000000")
    assert sent["seed"] == ("UINT64", [1, 1], b"\xff" * 8)
    assert sent["return_log_probs"][2] == b"\x01"
    assert sent["stop_words_list"] == (
        "INT32",
        [1, 2, 5],
        struct.pack("<10i", 5, 7, 3, 9, 2, 3, 5, -1, -1, -1),
    )
    assert sent["bad_words_list"] == ("INT32", [1, 2, 1], struct.pack("<2i", 1, 1))


def test_beams_have_a_length_penalty():
    sent = tensors(encode(beam_width=2, length_penalty=2.0, top_k=5, top_p=0.5, min_p=0.5))
    assert sent["beam_width"][2] == bytes.fromhex("02000000")
    assert sent["len_penalty"][2] == struct.pack("<f", 2.0)
    assert not sent.keys() & {"runtime_top_k", "runtime_top_p", "min_p"}
    assert "len_penalty" not in tensors(encode(length_penalty=2.0))


def test_biases_are_a_vector_of_the_vocabulary():
    sent = tensors(encode(logit_bias={3: 1.5, 0: -2.0}, vocab_size=4))
    assert sent["embedding_bias"] == ("FP32", [1, 4], struct.pack("<4f", -2, 0, 0, 1.5))


def test_requests_share_all_but_prompt_length_seed_and_id():
    first = encode(temperature=0.5, seed=3)
    later = encode(temperature=0.5, seed=4)
    cooler = encode(temperature=0.25, seed=4)
    assert [tensors(sent)["seed"][2][0] for sent in (first, later, cooler)] == [3, 4, 4]
    assert tensors(later) == {**tensors(first), "seed": tensors(later)["seed"]}
    assert tensors(cooler)["temperature"][2] == struct.pack("<f", 0.25)


def test_log_probs_are_asked_for_by_output():
    assert [o.name for o in encode(return_log_probs=True).outputs][2:] == [
        "cum_log_probs",
        "output_log_probs",
    ]


@pytest.mark.parametrize(
    ("version", "asks"),
    [("1.2.1", "return_perf_metrics"), ("0.18.2", "return_kv_cache_reuse_stats")],
)
def test_a_report_of_reused_blocks_is_asked_for_by_input_and_output(version, asks):
    report = CacheReport("kv_cache_reused_blocks", 32)
    message = encode(version=version, cache_report=report)
    names = {"return_perf_metrics", "return_kv_cache_reuse_stats"}
    assert {name: raw for name, (_, _, raw) in tensors(message).items() if name in names} == {
        asks: b"\x01"
    }
    assert [o.name for o in message.outputs][2:] == ["kv_cache_reused_blocks"]


def test_a_report_of_tokens_is_asked_for_by_output():
    message = encode(cache_report=CacheReport("cached_tokens", 1))
    assert [o.name for o in message.outputs][2:] == ["cached_tokens"]
    assert not {name for name in tensors(message) if name.startswith("return_")}


def test_a_guide_travels_as_two_strings():
    sent = tensors(encode(guide=Guide("regex", "é+")))
    assert sent["guided_decoding_guide_type"] == ("BYTES", [1, 1], b"\x05\0\0\0regex")
    assert sent["guided_decoding_guide"] == ("BYTES", [1, 1], b"\x03\0\0\0\xc3\xa9+")


def test_an_answer_that_nobody_repeats_is_marked_by_a_parameter():
    assert encode(is_repeatable=False).parameters["unrepeatable"].bool_param is True
    assert "unrepeatable" not in encode().parameters


def test_a_checked_guide_is_marked_by_a_parameter():
    message = encode(guide=Guide("regex", "a"), guide_bytes=0)
    assert message.parameters["guide_bytes"].int64_param == 0
    assert "guide_bytes" not in encode(guide=Guide("regex", "a")).parameters


@pytest.mark.parametrize(
    ("version", "names"),
    [
        ("0.18.2", {"min_length", "random_seed"}),
        ("1.0.0", {"min_tokens", "seed"}),
        (None, {"min_length", "random_seed", "min_tokens", "seed"}),
    ],
)
def test_names_follow_the_version(version, names):
    sent = set(tensors(encode(version, min_tokens=1, seed=1)))
    assert sent & {"min_length", "random_seed", "min_tokens", "seed"} == names


def test_pack_words_of_one_word():
    assert pack_words([[4, 5]]) == struct.pack("<4i", 4, 5, 2, -1)


def response(final=None, **outputs):
    message = service_pb2.ModelInferResponse()
    for name, (shape, raw) in outputs.items():
        message.outputs.add(name=name, shape=shape)
        message.raw_output_contents.append(raw)
    if final is not None:
        message.parameters["triton_final_response"].bool_param = final
    return message


def test_decode_a_token():
    message = response(
        False,
        output_ids=([1, 1, 1], struct.pack("<i", 42)),
        sequence_length=([1, 1], struct.pack("<i", 1)),
    )
    assert decode_response(message) == EngineChunk((42,), final=False)


def test_decode_the_first_of_two_padded_beams():
    message = response(
        True,
        output_ids=([1, 2, 3], struct.pack("<6i", 1, 2, -1, 4, 5, 6)),
        sequence_length=([1, 2], struct.pack("<2i", 2, 3)),
        cum_log_probs=([1, 2], struct.pack("<2f", -1.5, -2.5)),
        output_log_probs=([1, 2, 3], struct.pack("<6f", -0.5, -1.0, 0, 0, 0, 0)),
    )
    assert decode_response(message) == EngineChunk((1, 2), True, -1.5, (-0.5, -1.0))


def test_decode_log_probs_of_more_tokens_than_are_new():
    message = response(
        False,
        output_ids=([1, 1, 1], struct.pack("<i", 7)),
        sequence_length=([1, 1], struct.pack("<i", 1)),
        cum_log_probs=([1, 1], struct.pack("<f", -1.5)),
        output_log_probs=([1, 1, 2], struct.pack("<2f", -0.5, -1.0)),
    )
    assert decode_response(message) == EngineChunk((7,), False, -1.5, (-0.5, -1.0))


def test_alternatives_are_asked_for_by_number():
    message = encode(return_log_probs=True, top_log_probs=3)
    assert tensors(message)["num_top_logprobs"] == ("INT32", [1, 1], struct.pack("<i", 3))
    assert [output.name for output in message.outputs][-2:] == ["top_logprob_ids", "top_logprobs"]


@pytest.mark.parametrize("beams", [1, 2])
def test_decode_alternatives_without_padding(beams):
    ids, values = (7, 3, 9, -1) * beams, (-0.5, -1.0, -0.25, 0) * beams
    message = response(
        False,
        output_ids=([1, beams, 2], struct.pack(f"<{2 * beams}i", *(7, 9) * beams)),
        top_logprob_ids=([1, beams, 2, 2], struct.pack(f"<{4 * beams}i", *ids)),
        top_logprobs=([1, beams, 2, 2], struct.pack(f"<{4 * beams}f", *values)),
    )
    assert decode_response(message).alternatives == (((7, -0.5), (3, -1.0)), ((9, -0.25),))


@pytest.mark.parametrize(("top", "names"), [(0, 1), (3, 3)])
def test_log_probabilities_of_a_prompt_are_asked_for(top, names):
    message = encode(return_log_probs=True, top_log_probs=top, prompt_log_probs=True)
    assert tensors(message)["return_prompt_logprobs"] == ("BOOL", [1, 1], b"\1")
    wanted = ["prompt_logprobs", "prompt_top_ids", "prompt_top_logprobs"][:names]
    assert [output.name for output in message.outputs][-names:] == wanted


def test_decode_log_probabilities_of_a_prompt():
    message = response(
        False,
        output_ids=([1, 1, 1], struct.pack("<i", 7)),
        prompt_logprobs=([1, 2], struct.pack("<2f", -0.5, -3.0)),
        prompt_top_ids=([1, 2, 2], struct.pack("<4i", 7, 3, 9, -1)),
        prompt_top_logprobs=([1, 2, 2], struct.pack("<4f", -0.5, -1.0, -0.25, 0)),
    )
    chunk = decode_response(message)
    assert chunk.prompt_log_probs == (-0.5, -3.0)
    assert chunk.prompt_alternatives == (((7, -0.5), (3, -1.0)), ((9, -0.25),))
    assert chunk.alternatives == ()


def test_decode_a_flag_without_tensors():
    assert decode_response(response(True)) == EngineChunk((), final=True)
    assert decode_response(response()) == EngineChunk((), final=False)


def test_decode_no_new_token():
    message = response(True, output_ids=([1, 1, 0], b""), sequence_length=([1, 1], bytes(4)))
    assert decode_response(message) == EngineChunk((), final=True)


def test_stop_names_its_request_and_has_the_mandatory_inputs():
    message = parse(encode_stop("r1", model_name="tensorrt_llm"))
    assert (message.model_name, message.id) == ("tensorrt_llm", "r1")
    assert {
        field.name: raw
        for field, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    } == {
        "input_ids": b"\0\0\0\0",
        "input_lengths": b"\1\0\0\0",
        "request_output_len": b"\1\0\0\0",
        "stop": b"\1",
    }

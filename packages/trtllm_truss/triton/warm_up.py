"""One token from a server that has just become ready: ready means more than loaded."""

from __future__ import annotations

import grpc
from tritonclient.grpc import service_pb2_grpc

from trtllm_truss.engines.versions import PINNED_VERSION
from trtllm_truss.errors import TritonError
from trtllm_truss.triton.contract import INPUTS, MODEL_NAME
from trtllm_truss.triton.failures import from_stream_text
from trtllm_truss.triton.request import EngineRequest
from trtllm_truss.triton.schema import rows_for
from trtllm_truss.triton.tensors import encode_request


def warm_up(
    address: str, token_id: int, timeout_s: float, tensorrt_llm_version: str = PINNED_VERSION
) -> None:
    """Has the engine generate one token; blocks, for threads that have no event loop.

    Args:
        address: ``host:port`` of Triton's gRPC endpoint.
        token_id: the whole prompt; any id that the engine knows.
        timeout_s: how long it may take.
        tensorrt_llm_version: the version that the server's repository was rendered for.

    Raises:
        TritonError: the engine failed, or gave no answer in time.
    """
    request = EngineRequest(request_id="warm-up", input_ids=[token_id], max_tokens=1)
    declared = frozenset(row.name for row in rows_for(INPUTS, tensorrt_llm_version))
    message = encode_request(request, model_name=MODEL_NAME, declared=declared)
    options = [("grpc.enable_http_proxy", 0)]
    try:
        with grpc.insecure_channel(address, options=options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for response in stub.ModelStreamInfer(iter([message]), timeout=timeout_s):
                if response.error_message:
                    raise TritonError(
                        "the engine failed its first request: "
                        f"{from_stream_text(response.error_message).message}"
                    )
    except grpc.RpcError as failure:
        raise TritonError(
            f"the engine did not answer its first request: {failure.code().name.lower()}."
        ) from failure

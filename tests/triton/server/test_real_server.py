"""Real Triton as a child: start, failures, death and listening addresses."""

from __future__ import annotations

import asyncio
import stat
import time
from pathlib import Path

import grpc
import pytest
from tests.support.triton_server import assert_nothing_left
from tests.support.truss_process import LOOPBACK, listening_addresses
from tests.support.waiting import PATIENCE_S
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtllm_truss.errors import TritonError
from trtllm_truss.processes.process_guard import marked_processes
from trtllm_truss.triton.client.grpc_connection import GrpcConnection
from trtllm_truss.triton.server.process import State


def test_listens_on_loopback_only_and_not_for_http(triton):
    launch = triton.launch
    listening = [
        address for pid in marked_processes(launch.run_id) for address in listening_addresses(pid)
    ]
    assert {port for _, port in listening} == {launch.ports.grpc, launch.ports.metrics}
    assert launch.ports.http is None
    assert {host for host, _ in listening} <= LOOPBACK


def test_shared_memory_is_ours_alone(triton):
    segments = list(Path("/dev/shm").glob(f"{triton.launch.shm_prefix}0_*"))
    assert segments
    assert {stat.S_IMODE(segment.stat().st_mode) for segment in segments} == {0o600}


def test_files_will_be_ours_alone(triton):
    for pid in marked_processes(triton.launch.run_id):
        assert "Umask:\t0077\n" in Path(f"/proc/{pid}/status").read_text()


CLOSED_APIS = {
    "LogSettings": service_pb2.LogSettingsRequest(),
    "TraceSetting": service_pb2.TraceSettingRequest(),
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest(),
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest(),
    "SystemSharedMemoryUnregister": service_pb2.SystemSharedMemoryUnregisterRequest(),
    "CudaSharedMemoryStatus": service_pb2.CudaSharedMemoryStatusRequest(),
    "CudaSharedMemoryRegister": service_pb2.CudaSharedMemoryRegisterRequest(),
    "CudaSharedMemoryUnregister": service_pb2.CudaSharedMemoryUnregisterRequest(),
}


@pytest.mark.parametrize("method", CLOSED_APIS)
def test_unneeded_apis_are_closed(triton, method):
    with grpc.insecure_channel(triton.grpc_address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="This protocol is restricted"):
            getattr(stub, method)(CLOSED_APIS[method])


class Answer:
    """The status of a gRPC call."""

    def __init__(self):
        self.status = asyncio.get_running_loop().create_future()

    def message(self, payload):
        return False

    def ended(self, status, details):
        self.status.set_result((status, details))


@pytest.mark.parametrize(
    ("head", "details"),
    [
        ([], "expecting header 'triton-grpc-protocol-closed:to:all'"),
        ([("triton-grpc-protocol-closed:to:all", "x")], "the server reset the call"),
        ([("triton-grpc-protocol-closed", "to:all=x")], "expecting header"),
    ],
)
async def test_no_header_opens_a_closed_api(triton, head, details):
    """Send headers that only a client without checks can send."""
    connection = await GrpcConnection.connect(triton.grpc_address)
    answer = Answer()
    send_headers = connection._h2.send_headers
    connection._h2.send_headers = lambda number, headers: send_headers(number, headers + head)
    payload = service_pb2.LogSettingsRequest().SerializeToString()
    connection.call("/inference.GRPCInferenceService/LogSettings", payload, answer)
    assert details in (await asyncio.wait_for(answer.status, PATIENCE_S))[1]
    connection.close()


def test_model_that_cannot_load_is_reported(make_triton):
    failed = make_triton(ready_s=None, load_error="no such engine file: rank0.engine")
    with pytest.raises(TritonError, match=r"exited with code 1.*no such engine file"):
        failed.wait_until_ready(PATIENCE_S)
    assert failed.state is State.DEAD


def test_stub_that_dies_while_loading_is_reported(make_triton):
    failed = make_triton(ready_s=None, load_exit=9)
    with pytest.raises(TritonError, match="Stub process"):
        failed.wait_until_ready(PATIENCE_S)


def test_slow_model_meets_the_deadline(make_triton):
    slow = make_triton(ready_s=None, load_s=600)
    start_s = time.monotonic()
    with pytest.raises(TritonError, match="not ready after 1 s"):
        slow.wait_until_ready(1)
    slow.stop(0)
    assert time.monotonic() - start_s < PATIENCE_S
    assert_nothing_left(slow.launch.run_id, slow.launch.shm_prefix, 0.5)

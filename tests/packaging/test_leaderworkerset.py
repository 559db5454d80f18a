"""The manifest for several hosts: the published schema, and agreement with the code."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.support.paths import ROOT

from trtllm_truss.settings.loading import _FILE as TOKEN_FILE
from trtllm_truss.settings.loading import GROUP_KEY_SECRET, LWS_INDEX, LWS_LEADER, LWS_SIZE

MANIFEST = ROOT / "examples/kubernetes/leaderworkerset.yaml"
COUNT = "count"
TEMPLATE = "pod template"
SCHEMA: dict[str, Any] = {
    "replicas": COUNT,
    "startupPolicy": {"LeaderCreated", "LeaderReady"},
    "networkConfig": {"subdomainPolicy": {"Shared", "UniquePerReplica"}},
    "rolloutStrategy": {
        "type": {"RollingUpdate"},
        "rollingUpdateConfiguration": dict.fromkeys(
            ("maxSurge", "maxUnavailable", "partition"), COUNT
        ),
    },
    "leaderWorkerTemplate": {
        "size": COUNT,
        "restartPolicy": {"RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"},
        "leaderTemplate": TEMPLATE,
        "workerTemplate": TEMPLATE,
    },
}
"""Keys and values of `spec` in leaderworkerset.x-k8s.io/v1, without subgroups and volume claims:
https://github.com/kubernetes-sigs/lws/blob/main/config/crd/bases."""


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all(MANIFEST.read_text())}


def check(value: Any, schema: Any, path: str = "spec") -> None:
    if isinstance(schema, dict):
        assert value.keys() <= schema.keys(), path
        for key, inner in value.items():
            check(inner, schema[key], f"{path}.{key}")
    elif isinstance(schema, set):
        assert value in schema, path
    elif schema == COUNT:
        assert type(value) is int, path
        assert value >= 0, path
    else:
        assert value.keys() <= {"metadata", "spec"}, path
        check_pod(value)


def check_pod(template: dict[str, Any]) -> None:
    """Compare with models made from Kubernetes' schemas, where they are installed."""
    core = pytest.importorskip("cloudcoil.models.kubernetes.core.v1")
    model = core.PodTemplateSpec.model_validate(template)
    assert model.model_dump(by_alias=True, exclude_unset=True, mode="json") == template


def test_the_manifest_follows_the_published_schema(documents: dict[str, Any]) -> None:
    group = documents["LeaderWorkerSet"]
    assert group["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
    for wrong in ({"startupPolicy": "Never"}, {"size": 2}, {"replicas": "1"}):
        with pytest.raises(AssertionError):
            check(wrong, SCHEMA)
    check(group["spec"], SCHEMA)


def test_both_kinds_of_pod_are_one_host_each(documents: dict[str, Any]) -> None:
    template = documents["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    leader, worker = (template[f"{kind}Template"] for kind in ("leader", "worker"))
    (serving,), (joining,) = (each["spec"]["containers"] for each in (leader, worker))
    assert leader["metadata"] == worker["metadata"]
    assert leader["spec"]["volumes"] == worker["spec"]["volumes"]
    for key in ("image", "resources", "securityContext", "volumeMounts"):
        assert serving[key] == joining[key]
    assert "command" not in serving
    assert joining["command"][:4] == ["python3", "-m", "trtllm_truss", "join"]
    mounts = {mount["name"]: mount["mountPath"] for mount in serving["volumeMounts"]}
    assert mounts["secrets"] == str(TOKEN_FILE.parent)
    assert GROUP_KEY_SECRET in (ROOT / "docs/several-hosts.md").read_text()


def test_the_platforms_variables_are_not_set_by_hand(documents: dict[str, Any]) -> None:
    text = MANIFEST.read_text()
    assert not any(name in text for name in (LWS_LEADER, LWS_SIZE, LWS_INDEX))


def test_only_the_group_reaches_the_ports_of_mpi(documents: dict[str, Any]) -> None:
    labels = documents["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["leaderTemplate"][
        "metadata"
    ]["labels"]
    policy = documents["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    inside, outside = policy["ingress"]
    assert inside == {"from": [{"podSelector": {"matchLabels": labels}}]}
    assert outside["ports"] == [{"port": "http", "protocol": "TCP"}]
    selected = documents["Service"]["spec"]["selector"]
    assert selected.items() >= labels.items()
    assert selected["leaderworkerset.sigs.k8s.io/worker-index"] == "0"

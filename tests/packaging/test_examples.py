"""The files of examples/docker and examples/kubernetes: schemas, and agreement with the code."""

from __future__ import annotations

import gc
import importlib
import ipaddress
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from cloudcoil import pydantic as models
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from tests.support.paths import ROOT

from trtllm_truss.observability.metrics import Metrics
from trtllm_truss.settings.loading import _FILE as TOKEN_FILE
from trtllm_truss.settings.model import Serving

DOCKER = ROOT / "examples/docker"
KUBERNETES = ROOT / "examples/kubernetes"
TRUSS_USER = 60000
"""`DEFAULT_NON_ROOT_USER_ID` of Truss."""
GRID_COLUMNS = 24


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())


def test_every_mounted_file_exists_or_is_written_by_a_step_of_the_page(
    compose: dict[str, Any],
) -> None:
    page = (ROOT / "docs/docker.md").read_text()
    mounts = [mount for each in compose["services"].values() for mount in each["volumes"]]
    files = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    files += [secret["file"] for secret in compose["secrets"].values()]
    assert len(files) > 5
    for file in files:
        assert (DOCKER / file).exists() or file.removeprefix("./") in page, file


def test_names_of_volumes_networks_and_secrets_are_declared(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert set(service["networks"]) <= set(compose["networks"]), name
        named = {mount.split(":")[0] for mount in service["volumes"]}
        assert {volume for volume in named if volume[0] != "."} <= set(compose["volumes"]), name
        secrets = [
            one if isinstance(one, str) else one["source"] for one in service.get("secrets", ())
        ]
        assert set(secrets) <= set(compose["secrets"]), name
        assert set(service.get("depends_on", ())) <= set(compose["services"]), name


def test_only_the_proxy_is_reachable_from_other_machines(compose: dict[str, Any]) -> None:
    ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert ports["truss"] == ports["prometheus"] == []
    assert all(port.startswith("127.0.0.1:") for port in ports["grafana"])
    assert ports["proxy"] == ["443:8443"]
    assert "listen 8443 ssl;" in (DOCKER / "nginx.conf").read_text()


def test_every_container_is_confined(compose: dict[str, Any]) -> None:
    """test_docker.py runs the proxy so, test_container.py the Truss."""
    for name, service in compose["services"].items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["cap_drop"] == ["ALL"], name
        assert ("cap_add" in service) == (name == "proxy"), name
    truss = compose["services"]["truss"]
    assert truss["read_only"]
    assert truss["tmpfs"] == ["/tmp", "/home/app"]


def test_images_are_pinned(compose: dict[str, Any]) -> None:
    images = [service["image"] for name, service in compose["services"].items() if name != "truss"]
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?", image) for image in images), images


def test_the_proxy_has_the_limits_of_the_settings() -> None:
    conf = (DOCKER / "nginx.conf").read_text()
    serving = Serving()
    assert f"client_max_body_size {serving.max_body_bytes >> 20}m; # serving.max_body_bytes" in conf
    assert (
        f"proxy_read_timeout {serving.request_timeout_s:.0f}s; # serving.request_timeout_s" in conf
    )


def test_the_dashboard_is_whole() -> None:
    dashboard = json.loads((DOCKER / "grafana/dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= GRID_COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    names = [each["name"] for each in dashboard["templating"]["list"]]
    assert names == ["datasource", "model", "instance"]


MODELS = {
    "Deployment": "kubernetes.apps.v1",
    "Service": "kubernetes.core.v1",
    "PersistentVolumeClaim": "kubernetes.core.v1",
    "NetworkPolicy": "kubernetes.networking.v1",
    "PodDisruptionBudget": "kubernetes.policy.v1",
    "ScaledObject": "keda.v1alpha1",
}
"""Kinds, and the modules of cloudcoil with models made from the published schemas."""


def manifests() -> list[dict[str, Any]]:
    files = [KUBERNETES / "truss.yaml", KUBERNETES / "autoscaling.yaml"]
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [each for each in manifests() if each["kind"] == kind]
    return found


@pytest.fixture
def quick_models() -> Iterator[None]:
    """Import thousands of models in half the time: build validators when used, without the gc."""
    for base in (models.BaseModel, models.BaseBuilder, models.GenericListBuilder):
        base.model_config["defer_build"] = True
    gc.disable()
    yield
    gc.enable()


def check(document: dict[str, Any]) -> None:
    """Fail unless the schema of its kind has every key, with such a value."""
    module = importlib.import_module(f"cloudcoil.models.{MODELS[document['kind']]}")
    model = getattr(module, document["kind"]).model_validate(document)
    assert model.model_dump(by_alias=True, exclude_unset=True, mode="json") == document


@pytest.mark.usefixtures("quick_models")
def test_manifests_follow_the_published_schemas() -> None:
    assert {each["kind"] for each in manifests()} == set(MODELS)
    for document in manifests():
        check(document)
    wrong = manifest("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(AssertionError):
        check(wrong)
    wrong = manifest("Service")
    wrong["spec"]["ports"][0]["port"] = "http"
    with pytest.raises(ValidationError):
        check(wrong)


def test_names_of_the_manifests_agree() -> None:
    deployment = manifest("Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    pod = deployment["spec"]["template"]["spec"]
    selected = deployment["spec"]["selector"]["matchLabels"]
    assert selected.items() <= labels.items()
    assert manifest("Service")["spec"]["selector"] == selected
    for kind, key in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        assert manifest(kind)["spec"][key]["matchLabels"] == selected
    scaled = manifest("ScaledObject")["spec"]["scaleTargetRef"]["name"]
    assert scaled == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]  # the autoscaler's
    claims = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(claims) == {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    claim = claims["engines"]["persistentVolumeClaim"]["claimName"]
    assert claim == manifest("PersistentVolumeClaim")["metadata"]["name"]
    text = (KUBERNETES / "kustomization.yaml").read_text()
    assert yaml.safe_load(text)["resources"] == ["truss.yaml"]  # KEDA is not in every cluster
    assert yaml.safe_load(text.replace("# - ", "- "))["resources"][1:] == ["autoscaling.yaml"]


CUSTOM = ("inference-pool.yaml", "kserve.yaml")
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}


BOUNDS = ("minimum", "minLength", "minItems", "minProperties")


def is_wrong(value: Any, schema: dict[str, Any]) -> bool:
    """Return True if a value alone, without its parts, breaks an OpenAPI schema."""
    if schema.get("x-kubernetes-int-or-string"):
        return not isinstance(value, int | str)
    if not isinstance(value, TYPES[schema["type"]]) or value not in schema.get("enum", [value]):
        return True
    size = value if isinstance(value, int) else len(value)
    return (
        any(size < schema.get(name, size) for name in BOUNDS)
        or any(size > schema.get(name.replace("min", "max", 1), size) for name in BOUNDS)
        or (isinstance(value, str) and not re.search(schema.get("pattern", ""), value))
    )


def faults(value: Any, schema: dict[str, Any], place: str = "spec") -> Iterator[str]:
    """Yield where a value violates an OpenAPI schema; a field outside the schema is a fault."""
    if is_wrong(value, schema):
        yield place
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from faults(item, schema["items"], f"{place}[{number}]")
    elif isinstance(value, dict):
        yield from (f"{place}.{name}" for name in set(schema.get("required", ())) - value.keys())
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if inner is None:
                yield f"{place}.{name}"
            else:
                yield from faults(item, inner, f"{place}.{name}")


def custom_resources() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the custom resources of the examples with their schemas."""
    schemas = yaml.safe_load((ROOT / "tests/packaging/custom_resources.yaml").read_text())
    for file in CUSTOM:
        for document in yaml.safe_load_all((KUBERNETES / file).read_text()):
            if (name := f"{document['apiVersion']} {document['kind']}") in schemas:
                yield document, schemas[name]


def test_custom_resources_follow_the_published_schemas() -> None:
    found = {document["kind"]: (document, schema) for document, schema in custom_resources()}
    assert set(found) == {"InferencePool", "ServingRuntime", "InferenceService"}
    for document, schema in found.values():
        assert not [*faults(document["spec"], schema)]
    pool, schema = found["InferencePool"]
    for key, wrong in (
        ("targetPorts", [{"number": 99999}]),
        ("targetPorts", []),
        ("extensionRef", {"name": "epp"}),
        ("selector", {"matchLabels": {"app": "-"}}),
        ("endpointPickerRef", {"failureMode": "FailOpen"}),
    ):
        assert [*faults({**pool["spec"], key: wrong}, schema)], key


@pytest.mark.usefixtures("quick_models")
def test_the_pool_and_the_runtime_agree_with_the_deployment() -> None:
    deployment = manifest("Deployment")["spec"]["template"]
    (container,) = deployment["spec"]["containers"]
    found = {document["kind"]: document["spec"] for document, _ in custom_resources()}
    pool, runtime = found["InferencePool"], found["ServingRuntime"]
    labels = deployment["metadata"]["labels"]
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    (port,) = container["ports"]
    assert pool["targetPorts"] == [{"number": port["containerPort"]}]
    documents = yaml.safe_load_all((KUBERNETES / "inference-pool.yaml").read_text())
    (policy,) = [each for each in documents if each["kind"] == "NetworkPolicy"]
    check(policy)
    assert policy["spec"]["podSelector"] == pool["selector"]
    (served,) = runtime["containers"]
    assert served["lifecycle"] == container["lifecycle"]
    grace = "terminationGracePeriodSeconds"
    assert found["InferenceService"]["predictor"][grace] == deployment["spec"][grace]
    assert runtime["labels"].items() <= labels.items()
    assert served["ports"][0]["containerPort"] == port["containerPort"]
    for kind in ("startup", "readiness", "liveness"):
        ours, theirs = container[f"{kind}Probe"], served[f"{kind}Probe"]
        assert theirs["httpGet"] == {**ours["httpGet"], "port": port["containerPort"]}
        assert {**theirs, "httpGet": None} == {**ours, "httpGet": None}
    assert {mount["name"] for mount in served["volumeMounts"]} == {
        volume["name"] for volume in runtime["volumes"]
    }
    assert found["InferenceService"]["predictor"]["model"]["modelFormat"]["name"] in {
        each["name"] for each in runtime["supportedModelFormats"]
    }


def test_the_pod_has_what_the_truss_needs() -> None:
    pod = manifest("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
    assert [probe["httpGet"]["path"] for probe in probes] == [
        "/v1/models/model/loaded",
        "/health/ready",
        "/health/live",
    ]
    start_s = probes[0]["periodSeconds"] * probes[0]["failureThreshold"]
    assert start_s > 2 * Serving().start_timeout_s
    assert manifest("Deployment")["spec"]["progressDeadlineSeconds"] > start_s
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == TRUSS_USER
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["shared-memory"] == "/dev/shm"
    assert mounts["secrets"] == str(TOKEN_FILE.parent)
    (home,) = [each["value"] for each in container["env"] if each["name"] == "HF_HOME"]
    assert home.startswith(mounts["engines"])


def test_the_pod_writes_to_its_volumes_only() -> None:
    """test_container.py runs the image's command with these folders."""
    (container,) = manifest("Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert writable == {"/workspace", "/dev/shm", "/tmp", "/home/app"}


@pytest.mark.parametrize("file", ["truss.yaml", "mpijob.yaml"])
def test_the_policies_name_who_may_come_and_go(file: str) -> None:
    documents = yaml.safe_load_all((KUBERNETES / file).read_text())
    (policy,) = [each["spec"] for each in documents if each["kind"] == "NetworkPolicy"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    callers = [caller for rule in policy["ingress"] for caller in rule["from"]]
    places = [place for rule in policy["egress"] for place in rule["to"]]
    assert all("podSelector" in caller for caller in callers), "no whole namespace"
    assert all("podSelector" in place or "ipBlock" in place for place in places)
    (block,) = [place["ipBlock"] for place in places if "ipBlock" in place]
    inside = [ipaddress.ip_network(network) for network in block["except"]]
    for address in ("169.254.169.254", "10.96.0.1", "172.20.0.1", "192.168.1.1"):
        assert any(ipaddress.ip_address(address) in network for network in inside), address


def test_the_autoscaler_asks_for_metrics_of_the_truss() -> None:
    """tests/end_to_end/test_docker.py runs the query in Prometheus."""
    (trigger,) = manifest("ScaledObject")["spec"]["triggers"]
    registry = CollectorRegistry()
    registry.register(Metrics(engine_up=lambda: True))
    exposed = {sample.name for family in registry.collect() for sample in family.samples}
    names = set(re.findall(r"trtllm_truss_\w+", trigger["metadata"]["query"]))
    assert len(names) == 5
    assert names <= exposed
    assert 'code="queue_full"' in trigger["metadata"]["query"]

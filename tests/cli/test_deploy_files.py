"""The files for deployment: valid for Kubernetes, in step with one another and with what the command offers."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

import holdfast
from holdfast.cli.app import COMMANDS, loaded
from holdfast.loading import loaded as from_file
from holdfast.runtime.environment import LEASE, STANDBY
from waiting import DEADLINE

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "k8s/holdfast.yaml").read_text(encoding="utf-8")))
BY_KIND: dict[str, dict[str, Any]] = {each["kind"]: each for each in MANIFESTS}
EXECUTOR = yaml.safe_load(BY_KIND["ConfigMap"]["data"]["executor.yaml"])
PROPERTIES = dict(line.split(None, 1) for line in BY_KIND["ConfigMap"]["data"]["spark.properties"].splitlines() if line)


@pytest.mark.parametrize("manifest", [*MANIFESTS, EXECUTOR], ids=lambda each: each["kind"])
def test_manifests_are_what_kubernetes_takes(manifest: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: .[deploy]")
    if manifest is EXECUTOR:  # a template: Spark puts the image in
        (container,) = manifest["spec"]["containers"]
        manifest = {**manifest, "spec": {**manifest["spec"], "containers": [{**container, "image": "x"}]}}
    validator.validate(manifest, "1.37", strict=True)


def test_everything_is_there_in_one_namespace() -> None:
    assert {*BY_KIND} == {
        "Namespace", "ServiceAccount", "Role", "RoleBinding", "Service", "ConfigMap", "Deployment",
        "PersistentVolumeClaim", "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    named = {each["metadata"].get("namespace") for each in MANIFESTS if each["kind"] != "Namespace"}
    assert named == {BY_KIND["Namespace"]["metadata"]["name"]} == {PROPERTIES["spark.kubernetes.namespace"]}


def test_labels_ports_and_images_agree() -> None:
    pod = BY_KIND["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert BY_KIND["Service"]["spec"]["selector"].items() <= labels.items()
    assert BY_KIND["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= (
        EXECUTOR["metadata"]["labels"].items()
    )
    everyone = BY_KIND["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items()
    assert everyone <= labels.items() and everyone <= EXECUTOR["metadata"]["labels"].items()
    ports = {each["name"]: each["port"] for each in BY_KIND["Service"]["spec"]["ports"]}
    assert ports == {"driver": int(PROPERTIES["spark.driver.port"]), "blocks": 7079}
    (driver,) = pod["spec"]["containers"]
    assert driver["image"] == PROPERTIES["spark.kubernetes.container.image"]
    service = f"{BY_KIND['Service']['metadata']['name']}.{BY_KIND['Service']['metadata']['namespace']}.svc"
    assert PROPERTIES["spark.driver.host"] == service
    assert pod["spec"]["serviceAccountName"] == BY_KIND["ServiceAccount"]["metadata"]["name"]


def test_nobody_is_root_and_nothing_is_secret_in_the_files() -> None:
    for spec in (BY_KIND["Deployment"]["spec"]["template"]["spec"], EXECUTOR["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert all(each["securityContext"]["allowPrivilegeEscalation"] is False for each in spec["containers"])
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in DEPLOY.rglob("*") if path.suffix != ".pyc" and path.is_file()
    )
    assert not re.search(r"(?i)(secret_?access|password|aws_).*[:=]\s*\S{8}", text)


def test_commands_exist_with_these_options() -> None:
    (driver,) = BY_KIND["Deployment"]["spec"]["template"]["spec"]["containers"]
    unit = (DEPLOY / "standalone/holdfast-supervise.service").read_text(encoding="utf-8")
    started = re.search(r"^ExecStart=(.*)$", unit, re.M)
    assert started is not None
    for words in (driver["args"], shlex.split(started[1])):
        assert Path(words[0]).name == "holdfast" and words[1] in COMMANDS
        known = {option for parameter in loaded(words[1]).params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known
    submit = (DEPLOY / "yarn/submit.sh").read_text(encoding="utf-8")
    assert f"appMasterEnv.{LEASE}=" in submit and f"appMasterEnv.{STANDBY}=1" in submit


def test_yarn_is_given_a_store_that_one_driver_alone_can_claim(tmp_path: Path) -> None:
    submit, packed = DEPLOY / "yarn/submit.sh", tmp_path / "packed.tar.gz"
    packed.touch()  # so that nothing is made or fetched
    words = ["sh", submit, "job.py", "hdfs:///counts"]
    environment = {"PATH": os.environ["PATH"], "ENVIRONMENT": str(packed)}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert done.returncode == 2 and "give a folder that every machine mounts" in done.stderr


def test_the_job_has_a_place_for_sparks_log_that_outlives_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    given = BY_KIND["ConfigMap"]["data"]
    for name in ("MASTER", "STORE", "SPARK_LOG"):
        monkeypatch.setenv(name, given[name])
    monkeypatch.setattr(holdfast, "spark_session", mock.MagicMock(), raising=False)
    monkeypatch.setattr(holdfast, "start", start := mock.Mock(), raising=False)
    from_file(f"{DEPLOY / 'k8s/job.py'}:build", "job")()
    assert start.call_args.kwargs["store"] == given["STORE"]
    log = Path(start.call_args.kwargs["spark_log"])
    spec = BY_KIND["Deployment"]["spec"]["template"]["spec"]
    (driver,) = spec["containers"]
    (mounted,) = (each["name"] for each in driver["volumeMounts"] if log.is_relative_to(each["mountPath"]))
    (volume,) = (each for each in spec["volumes"] if each["name"] == mounted)
    claim = BY_KIND["PersistentVolumeClaim"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_image_has_what_the_manifests_start() -> None:
    recipe = (DEPLOY / "k8s/Dockerfile").read_text(encoding="utf-8")
    (driver,) = BY_KIND["Deployment"]["spec"]["template"]["spec"]["containers"]
    job = next(word for word in driver["args"] if ":build" in word).partition(":")[0]
    assert f"deploy/k8s/job.py {job}" in recipe
    scheme = BY_KIND["ConfigMap"]["data"]["STORE"].partition("://")[0]
    extras = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert scheme in extras and f'"/build[{scheme}]"' in recipe
    assert "def build()" in (DEPLOY / "k8s/job.py").read_text(encoding="utf-8")
    for source in re.findall(r"^COPY (?:--chmod=755 )?(.+) \S+$", recipe, re.M):
        assert all((DEPLOY.parent / each).exists() for each in source.split()), source

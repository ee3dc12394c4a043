"""The volume of a sandbox: kept, taken back, enlarged, shared, lost; and never deleted when it is to be kept."""

import json
import time

from test_trouble import SOON, await_reason, mountable
from world import kubectl, wait_until

IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"


def apply(space, thing):
    kubectl("apply", "-f", "-", namespace=space.name, stdin=json.dumps(thing))


def test_a_retained_workspace_outlives_its_sandbox_and_comes_back_under_its_name(space, operator):
    retain = {"size": "32Mi", "whenDeleted": "Retain"}
    space.sandbox(workspace=retain)
    space.await_phase("Ready")
    space.write_file("mine")
    claim = space.claim()["metadata"]
    assert not claim.get("ownerReferences")
    kubectl("delete", "sandbox", "box", namespace=space.name)
    wait_until(lambda: not space.list("pods"))
    space.sandbox("other", workspace=retain)
    space.await_phase("Ready", "other")
    assert space.claim("other")["metadata"]["uid"] != claim["uid"], "another name gets another workspace"
    space.sandbox(workspace=retain)
    space.await_phase("Ready")
    assert (space.claim()["metadata"]["uid"], space.read_file()) == (claim["uid"], "mine")
    assert space.status()["binding"]["source"] == "Existing"


def test_several_retained_workspaces_are_for_a_person_to_choose_from(space, operator):
    retain = {"size": "32Mi", "whenDeleted": "Retain"}
    space.sandbox(workspace=retain)
    space.await_phase("Ready")
    first = space.claim()["metadata"]
    kubectl("delete", "sandbox", "box", namespace=space.name)
    wait_until(lambda: not space.list("pods"))
    second = mountable("second", **{"codeexec.dev/sandbox-uid": "11111111-2222-4333-8444-555555555555"})
    second["metadata"]["annotations"] = {"codeexec.dev/sandbox": "box"}
    apply(space, second)
    space.sandbox(workspace=retain)
    words = await_reason(space, "box", "WorkspaceAmbiguous", seconds=SOON)
    assert "second" in words and first["name"] in words
    kubectl("delete", "pvc", "second", namespace=space.name)
    space.await_phase("Ready")
    assert space.claim()["metadata"]["uid"] == first["uid"]


def test_expiry_deletes_the_sandbox_and_keeps_what_is_to_be_kept(space, operator):
    space.sandbox("kept", workspace={"size": "32Mi", "whenDeleted": "Retain"})
    space.sandbox("gone")
    space.await_phases("Ready", ["kept", "gone"])
    kept = space.claim("kept")["metadata"]["uid"]
    # Only now, so that a slow machine has seen them ready.
    for name in ("kept", "gone"):
        space.patch("sandboxes", name, {"spec": {"lifecycle": {"maxLifetime": "1s"}}})
    wait_until(lambda: not space.list("sandboxes"), 60, "both to expire")
    space.assert_empty(kept_claims=1)
    assert space.list("persistentvolumeclaims")[0]["metadata"]["uid"] == kept


def test_a_claim_that_exists_is_used_in_a_folder_of_its_own_and_kept(space, operator):
    space.sandbox(workspace={"existingClaim": {"name": "shared", "subPath": "anna"}})
    await_reason(space, "box", "ClaimNotMountable", seconds=SOON)
    apply(space, mountable("shared", team="a"))
    await_reason(space, "box", "ClaimNotMountable", seconds=SOON)
    kubectl("label", "pvc", "shared", "codeexec.dev/mountable=true", namespace=space.name)
    space.await_phase("Ready")
    space.write_file("of anna")
    space.sandbox("whole", workspace={"existingClaim": {"name": "shared", "subPath": "bob"}})
    space.await_phase("Ready", "whole")
    assert space.run("ls -A ~/workspace", "whole") == "", "another folder is another workspace"
    for name in ("box", "whole"):
        kubectl("delete", "sandbox", name, namespace=space.name)
    space.assert_empty(kept_claims=1)
    space.sandbox(workspace={"existingClaim": {"name": "shared", "subPath": "anna"}})
    space.await_phase("Ready")
    assert space.read_file() == "of anna"


def test_a_claim_of_a_template_is_mounted_read_only(space, operator):
    apply(space, mountable("models"))
    space.template("with-models", mounts=[{"claimName": "models", "mountPath": "/mnt/models"}])
    space.sandbox(templateRef={"name": "with-models"})
    space.await_phase("Ready")
    assert "Read-only" in space.run("touch /mnt/models/x 2>&1 || true")


def test_a_size_that_the_class_cannot_give_is_said_and_stops_nothing(space, operator):
    space.sandbox(workspace={"size": "32Mi"})
    space.await_phase("Ready")
    space.patch("sandboxes", "box", {"spec": {"workspace": {"size": "64Mi"}}})
    bound = lambda: {it["type"]: it for it in space.status()["conditions"]}["WorkspaceBound"]  # noqa: E731
    wait_until(lambda: bound()["reason"] in ("ResizePending", "ResizeRefused"), SOON)
    assert bound()["status"] == "True" and space.phase() == "Ready"


def test_a_workspace_that_is_gone_is_not_replaced_by_an_empty_one(space, operator):
    space.sandbox()
    space.await_phase("Ready")
    space.scale(0)
    space.await_phase("Suspended")
    kubectl("delete", "pvc", space.claim()["metadata"]["name"], namespace=space.name)
    space.scale(1)
    await_reason(space, "box", "WorkspaceLost", seconds=SOON)
    assert not space.list("pods") and not space.list("persistentvolumeclaims")


def storage_class(name, provisioner):
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner}


def test_thirty_that_wait_for_a_volume_ask_no_more_than_one(space, operator):
    silent, names = f"silent-{space.name}", [f"wait-{n}" for n in range(30)]
    try:
        apply(space, storage_class(silent, "example.com/nobody"))
        for name in names:
            space.sandbox(name, workspace={"storageClassName": silent})
        for name in names:
            await_reason(space, name, "WorkspacePending", seconds=4 * SOON)
        operator.proxy.clear()
        # What is measured: each looks again every five seconds, and asks three things; answers are shared for two.
        time.sleep(20)
        reads = operator.proxy.log()["reads"]
        assert reads <= 60, reads
    finally:
        kubectl("delete", "storageclass", "--ignore-not-found", silent)


def test_a_missing_storage_class_and_a_silent_provisioner_are_told_apart(space, operator):
    missing, silent = f"missing-{space.name}", f"silent-{space.name}"
    # Not any class: that of a test beside this one provisions nothing.
    default = next(it for it in json.loads(kubectl("get", "storageclass", "-o", "json"))["items"] if IS_DEFAULT in it["metadata"].get("annotations", {}))
    try:
        apply(space, storage_class(silent, "example.com/nobody"))
        for name in (missing, silent):
            space.sandbox(name.split("-")[0], workspace={"storageClassName": name})
        assert missing in await_reason(space, "missing", "StorageClassNotFound", seconds=SOON)
        assert silent in await_reason(space, "silent", "WorkspacePending", seconds=2 * SOON)
        apply(space, storage_class(missing, default["provisioner"]) | {key: default[key] for key in ("parameters", "volumeBindingMode") if key in default})
        space.await_phase("Ready", "missing")
    finally:
        kubectl("delete", "storageclass", "--ignore-not-found", missing, silent)

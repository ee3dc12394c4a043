"""What the tests of this folder ask."""

from conftest import reach, wait_until


def isolated(space):
    """1, 0, or nothing known."""
    return space.operators[-1].metric(rf'codeexec_operator_network_isolated\{{namespace="{space.name}"\}}')


def condition(space, kind, template="default"):
    """Status and reason of a template's condition."""
    found = space.get("sandboxtemplates", template).get("status", {}).get("conditions", [])
    return next(((it["status"], it["reason"]) for it in found if it["type"] == kind), None)


def await_condition(space, kind, wanted, template="default", seconds=120):
    wait_until(lambda: condition(space, kind, template) == wanted, seconds, f"{template} to be {kind}={wanted}")


def message(space, kind, template="default"):
    found = space.get("sandboxtemplates", template)["status"]["conditions"]
    return next(it["message"] for it in found if it["type"] == kind)


def events(space, reason):
    return [it for it in space.list("events") if it["reason"] == reason]


def from_sandbox(space, targets, name="box"):
    return reach(space.name, space.pod(name)["metadata"]["name"], "main", targets)


def allow(host, port):
    return {"egress": [{"to": [{"ipBlock": {"cidr": f"{host}/32"}}], "ports": [{"port": port}]}]}

"""A model that does what it should not: never a failure of the server, and never a history that cannot be sent back."""

import json

import pytest

from conftest import CE25, CE_V1, MESSAGES, fresh_id, request
from test_code_calls import CE21

pytestmark = pytest.mark.local
BASH = "bash_code_execution"
TRUE = {"tool": BASH, "input": {"command": "true"}}


def turn(*lines):
    return "```turn\n" + "\n".join(map(json.dumps, lines)) + "\n```\n"


WAYS = {
    "broken JSON": [turn({"tool": BASH, "raw": '{"command": "ec'})],
    "input that is no object": [turn({"tool": BASH, "raw": "[1]"}), turn({"tool": BASH, "raw": '"true"'})],
    "nothing for input": [turn({"tool": BASH, "raw": ""})],
    "no arguments": [turn({"tool": BASH, "input": {}})],
    "arguments of wrong types": [turn({"tool": BASH, "input": {"command": 5}}), turn({"tool": BASH, "input": {"command": None}})],
    "arguments that there are not": [turn({"tool": BASH, "input": {"command": "true", "teleport": 1}})],
    "a tool that there is not": [turn({"tool": "teleport", "input": {"where": "there"}}), turn(TRUE)],
    "a tool without a name": [turn({"tool": "", "input": {}})],
    "an empty turn": [turn()],
    "a turn of empty text": [turn({"text": ""})],
    "an empty turn after a call": [turn(TRUE), turn()],
    "an id twice in one turn": [turn(TRUE | {"id": "toolu_same"}, TRUE | {"id": "toolu_same"})],
    "an id of the turn before": [turn(TRUE | {"id": "toolu_same"}), turn(TRUE | {"id": "toolu_same"})],
    "an id that is none": [turn(TRUE | {"id": "no id! \u00e9 " + "x" * 300})],
    "text after the call": [turn(TRUE, {"text": "after"}), turn({"text": "and more"}, TRUE, {"text": "after"})],
    "a call that says it ends the turn": [turn(TRUE, {"stop": "end_turn"})],
    "an end that promises a call": [turn({"text": "soon"}, {"stop": "tool_use"})],
    "a call for want of tokens": [turn({"tool": BASH, "raw": '{"command": "echo'}, {"stop": "max_tokens"})],
    "a null byte": [turn({"tool": BASH, "input": {"command": "echo a\u0000b"}}), turn({"text": "a\u0000b"})],
    "a refusal in the middle": [turn(TRUE), turn({"text": "No."}, {"stop": "refusal"})],
}


def paired(content):
    """Each call of ours has one result after it, and each id is one call's."""
    uses = [block["id"] for block in content if block["type"] == "server_tool_use"]
    answered = [block["tool_use_id"] for block in content if "tool_use_id" in block]
    assert len(set(uses)) == len(uses) and sorted(uses) == sorted(answered), content


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(("surface", "tool"), [("anthropic", CE25), ("anthropic", CE21), ("zylon", CE_V1)], ids=["20250825", "20260521", "v1"])
@pytest.mark.parametrize("way", WAYS)
def test_whatever_it_does_the_answer_can_be_sent_back(server, way, surface, tool, stream):
    own = {"container": fresh_id()} if surface == "zylon" else {}
    messages = [{"role": "user", "content": "".join(WAYS[way])}]
    if stream:
        answer = server.post(MESSAGES[surface], request(messages=messages, tools=[tool], stream=True, **own))
        assert answer.status_code == 200 and "event: message_stop" in answer.text and "event: error" not in answer.text, answer.text
        return
    answer = server.ask(messages=messages, surface=surface, tools=[tool], **own)
    paired(answer["content"])
    if answer["container"]:
        own = {"container": answer["container"]["id"]}
    # The contract has no empty content: clients leave such an answer out, and what it answered.
    messages = [*messages, {"role": "assistant", "content": answer["content"]}] if answer["content"] else []
    messages.append({"role": "user", "content": "```text\nfine\n```"})
    again = server.ask(messages=messages, surface=surface, tools=[tool], **own)
    assert [block["text"] for block in again["content"]] == ["fine"] and again["stop_reason"] == "end_turn"


def test_a_thousand_calls_in_a_row_are_a_thousand_results(server):
    calls = [TRUE | {"input": {"command": f"echo {number}"}} for number in range(1000)]
    messages = [{"role": "user", "content": turn(*calls)}]
    answer = server.ask(messages=messages, max_tokens=100_000)
    paired(answer["content"])
    assert [block["content"]["stdout"] for block in answer["content"] if "tool_use_id" in block] == [f"{number}\n" for number in range(1000)]
    messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "```text\nfine\n```"}]
    assert server.ask(messages=messages, container=answer["container"]["id"])["content"][-1]["text"] == "fine"

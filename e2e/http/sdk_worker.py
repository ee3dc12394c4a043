"""Calls of the official Python SDK, of either generation: a JSON object a line comes in, another goes out. See `Sdk` in conftest.py."""

import base64
import functools
import json
import sys

import anthropic


def argument(value):
    if isinstance(value, dict) and "$file" in value:
        name, content, kind = value["$file"]
        return (name, base64.b64decode(content), kind)
    return value


def call(url, key, path, arguments, named):
    client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=120)
    function = functools.reduce(getattr, path.split("."), client)
    made = function(*map(argument, arguments), **{name: argument(value) for name, value in named.items()})
    if path.endswith(".stream"):
        with made as stream:
            return {"value": stream.get_final_message().to_dict(mode="json")}
    if path.endswith(".list"):
        return {"value": [item.to_dict(mode="json") for item in made]}
    if hasattr(made, "to_dict"):
        return {"value": made.to_dict(mode="json")}
    return {"bytes": base64.b64encode(made.read()).decode()}


def failed(error):
    status = getattr(error, "status_code", None)
    return {"error": {"name": type(error).__name__, "message": str(error), "status": status, "body": getattr(error, "body", None)}}


def main():
    for line in sys.stdin:
        try:
            answer = call(**json.loads(line))
        except Exception as error:  # whatever it is, the test is to see it
            answer = failed(error)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

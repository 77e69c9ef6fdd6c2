"""What the upstreams in Python say of a value."""
import json


def scalar(value):
    if value is None or isinstance(value, dict):
        return None
    if isinstance(value, (list, tuple)):
        return [scalar(v) for v in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def json_id(text):
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return scalar(value.get("id")) if isinstance(value, dict) else None

"""YAML as its writer meant it: PyYAML's safe loader, and a key that stands twice in one mapping is an error.

YAML 1.2 section 3.2.1.1 asks for unique keys; PyYAML takes the last without a word, so a limit edited above its older
copy does nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Refuses repeated keys. A key that only a merge (`<<`) brings may be given anew: that is what merges are for."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key: Any = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands twice; keep one of them", key_node.start_mark
                )
            if isinstance(key, Hashable):
                seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The one document in `text` as plain values. Raises yaml.YAMLError for everything wrong with it."""
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    except (ValueError, OverflowError) as error:  # such as the date 2024-13-45
        raise yaml.YAMLError(str(error)) from error

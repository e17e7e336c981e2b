"""Role graphs in words."""

from __future__ import annotations

from polypool.tasks.hgr.role_graph import RoleGraph


def told(graph: RoleGraph) -> dict[str, dict[str, str]]:
    """Each verb's arguments, {phrase: role}, and under the empty name the phrases that no verb has."""
    text = [" ".join(graph.words[word] for word in node.words) for node in graph.nodes]
    found: dict[str, dict[str, str]] = {
        text[i]: {text[to]: graph.nodes[to].role for source, to in graph.edges if source == i}
        for i, node in enumerate(graph.nodes)
        if node.role == "V"
    }
    taken = {to for _, to in graph.edges}
    rest = {text[i]: node.role for i, node in enumerate(graph.nodes) if node.role != "V" and i not in taken}
    return found | ({"": rest} if rest else {})

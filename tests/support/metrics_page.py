"""The brokers' metrics pages, as Prometheus reads them, and the expressions of docs/ that use them."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tools.cluster.local_cluster import LocalCluster

DOCS = Path(__file__).parents[2] / "docs"
ADDED_BY_PROMETHEUS = {"job", "instance"}
ROW = re.compile(r"\| `([a-z_]+)` \| (counter|gauge|summary|histogram) \| ([^|]*)\|")
VARIABLES = {"[$__rate_interval]": "[5m]", "$job": ".*", "$broker": ".*"}
"""Grafana's variables, which PromQL does not have."""

Labels = Mapping[str, str]


class Page:
    """`samples`: name -> labels and value of each series. `families`: name -> type and label names, without `quantile` and `le`."""

    def __init__(self, text: str) -> None:
        self.samples: dict[str, list[tuple[Labels, float]]] = {}
        self.families: dict[str, tuple[str, frozenset[str]]] = {}
        for family in text_string_to_metric_families(text):
            of_family = {name for sample in family.samples for name in sample.labels}
            name = f"{family.name}_total" if family.type == "counter" else family.name
            self.families[name] = (family.type, frozenset(of_family - {"quantile", "le"}))
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def sum(self, name: str, **labels: str) -> float:
        """The sum of the series with these labels, and perhaps others."""
        return sum(value for of, value in self.samples.get(name, ()) if labels.items() <= of.items())

    def value(self, name: str, **labels: str) -> float:
        """The series with exactly these labels."""
        (found,) = [value for of, value in self.samples[name] if of == labels]
        return found


def text_of(cluster: LocalCluster, broker: int) -> str:
    listener = cluster.metrics_address(broker)
    with urllib.request.urlopen(f"http://{listener}/metrics", timeout=30) as page:
        return str(page.read().decode())


def pages(cluster: LocalCluster) -> dict[int, Page]:
    """The pages of all running brokers, by id. A broker that is just starting has none."""
    found = {}
    for broker in cluster.broker_ids:
        with contextlib.suppress(urllib.error.URLError):  # refused; an answer that is no page is an error
            found[broker] = Page(text_of(cluster, broker))
    return found


def total(found: Mapping[int, Page], name: str, **labels: str) -> float:
    return sum(page.sum(name, **labels) for page in found.values())


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """The tables of docs/METRICS.md, in the form of `Page.families`."""
    rows = ROW.findall((DOCS / "METRICS.md").read_text(encoding="utf-8"))
    names = [name for name, _, _ in rows]
    assert len(names) == len(set(names)), "a metric is listed twice"
    return {name: (kind, frozenset(re.findall(r"\w+", labels))) for name, kind, labels in rows}


# -- expressions -------------------------------------------------------------------------------------------------------


class Selected(NamedTuple):
    """A selector in an expression: its metric, its conditions, and labels by which its series are grouped or joined."""

    name: str
    matchers: Sequence[Any]
    grouped_by: frozenset[str]


def dashboard_expressions() -> list[str]:
    """Every expression of the dashboard; a variable's `label_values(metric, label)` becomes `sum by (label) (metric)`."""
    dashboard = json.loads((DOCS / "grafana" / "ottla.json").read_text(encoding="utf-8"))
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            found.append(f"sum by ({label}) ({metric})")
    for variable, value in VARIABLES.items():
        found = [expression.replace(variable, value) for expression in found]
    return found


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DOCS / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def selected(expression: str) -> list[Selected]:
    return list(_selected(promql_parser.parse(expression), frozenset()))


def _selected(node: Any, grouped_by: frozenset[str]) -> Iterator[Selected]:
    match node:
        case promql_parser.VectorSelector():
            yield Selected(node.name, node.matchers.matchers, grouped_by)
        case promql_parser.MatrixSelector():
            yield from _selected(node.vector_selector, grouped_by)
        case promql_parser.AggregateExpr():
            labels = frozenset(node.modifier.labels) if node.modifier is not None else frozenset()
            yield from _selected(node.expr, grouped_by | labels)
        case promql_parser.BinaryExpr():
            yield from _selected(node.lhs, grouped_by)
            yield from _selected(node.rhs, grouped_by)
        case promql_parser.Call():
            for argument in node.args:
                yield from _selected(argument, grouped_by)
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            yield from _selected(node.expr, grouped_by)
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            return
        case _:
            raise AssertionError(f"unknown node {type(node)}")


def is_served(selector: Selected, found: Sequence[Page]) -> bool:
    """Whether some page has a series that the selector selects and that has the labels by which it is grouped."""
    series = [of for page in found for of, _ in page.samples.get(selector.name, ())]
    return any(
        selector.grouped_by - ADDED_BY_PROMETHEUS <= of.keys()
        and all(_matches(matcher, of) for matcher in selector.matchers if matcher.name not in ADDED_BY_PROMETHEUS)
        for of in series
    )


def _matches(matcher: Any, of: Labels) -> bool:
    value = of.get(matcher.name, "")
    op = promql_parser.MatchOp
    if matcher.op == op.Equal:
        return bool(value == matcher.value)
    if matcher.op == op.NotEqual:
        return bool(value != matcher.value)
    is_match = re.fullmatch(matcher.value, value) is not None
    return is_match if matcher.op == op.Re else not is_match

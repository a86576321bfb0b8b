"""What each routing policy gets of the hits that are there, in virtual time, over five seeds.

    python scripts/bench_hits.py [--trace mooncake_conversation_trace.jsonl] [--chart FILE]

Five questions, a table each; figures are means over seeds with the half width of their 95 %
interval (Student's t), and the command that made a table is `python scripts/bench_hits.py TABLE`.

- `groups`: 40 groups of 6,000 tokens, 300 sessions of 6 turns, so many at a time, four pods: even
  and Zipf-skewed popularity, caches that hold it all together and caches that do not.
- `serial`: conversations one at a time, where there is never a queue and only caches matter.
- `others`: what nothing here was fitted to: few large groups, one beginning for all, bursts, long
  answers, sixteen pods, Mooncake's times; with the formulas of two more routers among ours.
- `ladder`: llm-d's two published workloads, rate by rate, with its own policies among ours.
- `tails`: the same, TTFT p95 of the policies that stand it, with intervals.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import statistics
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from kvbench.engine.profiles import profile
from kvbench.engine.values import EngineConfig
from kvbench.oracle.load import Reading, load_script
from kvbench.oracle.play import Fleet, Play
from kvbench.policies.by_prefix import ByPrefix
from kvbench.policies.choice import cheapest, decide
from kvbench.policies.decision import Candidate, Policy, RouteRequest
from kvbench.policies.names import NAMES
from kvbench.policies.prefix_precise import PrefixPrecise
from kvbench.policies.prefixes import RoutedPrefixes
from kvbench.seeds import rng

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvbench.oracle.row import Row, Summary

T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, for so many values
GROUPS = """
name: groups
api: completions
prefixes:
  - {{name: group, count: {groups}, tokens: {tokens}, popularity: {popularity}}}
sessions:
  count: {sessions}
  turns: {turns}
  user_tokens: {{uniform: [40, 160]}}
  answer_tokens: {{uniform: {answers}}}
  think: {think}
arrival:
  {arrival}
"""
SHAPE = {"groups": 40, "tokens": 6000, "turns": 6, "answers": "[20, 60]", "think": 0}
ZIPF = "{zipf: 1.1}"
CONTENDERS = ["cache_aware", "prefix_estimate", "prefix_precise", "prefix_cost"]
WORKLOADS = Path(__file__).parent.parent / "workloads"
OUTPUT_TOKENS = 245  # what the published tokens/s are per published request/s, not the 1,000 asked


@dataclass(frozen=True)
class Case:
    """What is played on what.

    Attributes:
        name: For the table.
        text: The workload; None for a trace.
        pods: How many.
        tokens: KV cache of each.
        block: Tokens per block.
        profile: Whose timing.
        serial: Whether requests come one after the other, whatever the workload says.
        trace: The trace.
        limit: Requests of it.
    """

    name: str
    text: str | None
    pods: int = 4
    tokens: int = 150_000
    block: int = 16
    profile: str = "llama-3.1-8b-h100"
    serial: bool = False
    trace: Path | None = None
    limit: int | None = None


class Watched(Play):
    """A play that also counts what the pod that held most of each prompt held of it."""

    held = 0

    def __init__(self, case: Case, policy: str, seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = case.trace or Path(folder, "workload.yaml")
            if case.text is not None:
                path.write_text(case.text, encoding="utf-8")
            reading = Reading(case.block, seed=None if case.trace else seed, limit=case.limit)
            script = load_script(path, reading)
        config = EngineConfig(case.tokens // case.block, case.block, max_model_len=case.tokens)
        known = policy if policy in NAMES else "random"
        fleet = Fleet(case.pods, config, profile(case.profile).time, known, seed)
        super().__init__(script, fleet, "serial" if case.serial else "timed")
        if policy in ABLATIONS:
            self._policy = ABLATIONS[policy](seed)
        if policy in FORMULAS:
            sizes = dict.fromkeys(self._pods, case.tokens)  # as others are told
            self._policy = Formula(seed, sizes, FORMULAS[policy])
        self.cases = case
        self.best: dict[int, int] = {}

    def _route(self, position, request, layout, now):  # noqa: ANN001, ANN202 - as in Play
        """Ask each pod's cache before the policy is asked."""
        most = (request.prompt_tokens - 1) // self.cases.block
        hashes = layout.chain.hashes
        self.best[request.index] = self.cases.block * max(
            len(pod.engine._cache.pool.lookup(hashes, most))  # noqa: SLF001 - the truth
            for pod in self._pods.values()
        )
        return super()._route(position, request, layout, now)

    def played(self) -> tuple[Summary, float, list[Row]]:
        """Return the summary, the share captured of what the fleet held, and the rows."""
        rows = list(self)
        there = sum(max(self.best[row.index], row.cached_tokens) for row in rows)
        cached = sum(row.cached_tokens for row in rows)
        return self.summary(), cached / there if there else 1.0, rows


class Weighted(PrefixPrecise):
    """llm-d's scorer with other weights, or with less of the prompt in sight.

    Args:
        seed: Of its chance.
        weights: Of prefix, queue and memory.
        visible: Tokens of a prompt that are looked at.
        blocks: How many blocks it believes a pod to hold, whatever the pod delivers; None learns.
    """

    def __init__(
        self, seed: int, weights: tuple[float, float, float], visible: int, blocks: int | None
    ) -> None:
        super().__init__(rng(seed, "policy", "weighted"), RoutedPrefixes(blocks or 32_768))
        self._weights = weights
        self._visible = visible
        self._fixed = blocks is not None

    def choose(self, request, pods, now):  # noqa: ANN001, ANN201 - as every policy
        """Choose by the weighted sum of llm-d's three parts."""
        decision = super().choose(self._cut(request), pods, now)
        prefix, queue, memory = (
            mine / its for mine, its in zip(self._weights, (3, 2, 2), strict=True)
        )
        scores = {
            one.pod: prefix * one.terms["prefix"]
            + queue * one.terms["queue"]
            + memory * one.terms["memory"]
            for one in decision.candidates
        }
        most = max(scores.values())
        pod = self._rng.choice([pod for pod, score in scores.items() if score == most])
        matched = next(one.matched_tokens for one in decision.candidates if one.pod == pod)
        return type(decision)(
            pod, "weighted", decision.reason, matched, decision.candidates, decision.expected_s
        )

    def placed(self, request, pod, now):  # noqa: ANN001, ANN201 - as every policy
        """Remember what is looked at."""
        super().placed(self._cut(request), pod, now)

    def finished(self, request, decision, outcome, now):  # noqa: ANN001, ANN201 - as every policy
        """Learn, unless the pod's capacity is taken for known."""
        if not self._fixed:
            super().finished(request, decision, outcome, now)

    def _cut(self, request: RouteRequest) -> RouteRequest:
        most = self._visible // request.block_tokens
        return RouteRequest(
            request.id, request.model, request.blocks[:most], request.block_tokens,
            request.prompt_tokens, request.session,
        )  # fmt: skip


class Formula(ByPrefix):
    """The pod with the least of a published formula, over what Dynamo and vllm-router know.

    Args:
        seed: Of its chance.
        sizes: Tokens that the pods' caches hold.
        of: From uncached tokens (waiting there and the prompt's), requests in flight, and prompt
            tokens of those and of the prompt, to what is to be small.
    """

    name = "formula"

    def __init__(
        self, seed: int, sizes: dict[str, int], of: Callable[[int, int, int], float]
    ) -> None:
        super().__init__(rng(seed, "policy", "formula"), RoutedPrefixes(sizes=sizes))
        self._of = of
        self._active: dict[str, int] = defaultdict(int)

    def choose(self, request, pods, now):  # noqa: ANN001, ANN201 - as every policy
        """Take the least."""
        matched = self._prefixes.matched_tokens(request, [pod.name for pod in pods], now)
        tokens = request.prompt_tokens
        candidates = [
            Candidate(
                pod.name, hit,
                self._of(
                    pod.in_flight_prefill_tokens + tokens - hit, pod.in_flight,
                    self._active[pod.name] + tokens,
                ),
                {},
            )
            for pod, hit in zip(pods, matched, strict=True)
        ]  # fmt: skip
        return decide(self.name, cheapest(candidates, self._rng), "prefix", candidates)

    def placed(self, request, pod, now):  # noqa: ANN001, ANN201 - as every policy
        """Count its tokens there."""
        super().placed(request, pod, now)
        self._active[pod] += request.prompt_tokens

    def finished(self, request, decision, outcome, now):  # noqa: ANN001, ANN201 - as every policy
        """Count them no more."""
        super().finished(request, decision, outcome, now)
        self._active[decision.pod] -= request.prompt_tokens


FORMULAS: dict[str, Callable[[int, int, int], float]] = {
    "Dynamo's cost": lambda uncached, _, active: uncached + active,
    "vllm-router's kv_aware": lambda uncached, in_flight, _: uncached * (in_flight + 1),
}
# The first is what was published as "estimated": weights 1/1/1, 256 blocks of 64 characters in
# sight, and 31,250 such blocks taken to be in each pod's cache, more than it holds. The last is
# what nobody has published: the same mechanism, precise's weights and the whole prompt in sight.
ABLATIONS: dict[str, Callable[[int], Policy]] = {
    "estimated, 1/1/1, 4k visible": lambda seed: Weighted(seed, (1, 1, 1), 4096, 7812),
    "estimated, 1/1/1, whole prompt": lambda seed: Weighted(seed, (1, 1, 1), 2**20, None),
    "estimated, 3/2/2, 4k visible": lambda seed: Weighted(seed, (3, 2, 2), 4096, None),
    "estimated, 3/2/2, whole prompt": lambda seed: Weighted(seed, (3, 2, 2), 2**20, None),
}


def workload(popularity: str, sessions: int, arrival: str, **shape: object) -> str:
    """Return a workload of groups that is like `SHAPE` but for what is said."""
    return GROUPS.format(**SHAPE | shape, popularity=popularity, sessions=sessions, arrival=arrival)


def users(at_once: int) -> str:
    """Return so many conversations at a time."""
    return f"users: {{count: {at_once}}}"


def groups() -> Iterator[Case]:
    """The set-up in which peers were measured: everything fits together, and not."""
    shapes = [("even", 16, 300), (ZIPF, 16, 300), (ZIPF, 64, 600)]
    for popularity, at_once, sessions in shapes:
        text = workload(popularity, sessions, users(at_once))
        kind = "even" if popularity == "even" else "Zipf 1.1"
        for tokens, caches in ((150_000, "all fits"), (70_000, "tight")):
            yield Case(f"{kind}, {at_once} at a time, {caches}", text, tokens=tokens)


def serial(trace: Path | None) -> Iterator[Case]:
    """Conversations one at a time."""
    for popularity, kind in (("even", "even"), (ZIPF, "Zipf 1.1")):
        text = workload(popularity, 200, users(1))
        yield Case(f"{kind}, one at a time, tight", text, tokens=70_000)
    if trace is not None:
        for tokens in (500_000, 1_000_000):
            yield Case(
                f"Mooncake, one at a time, 4 × {tokens // 1000}k tokens", None,
                tokens=tokens, block=512, serial=True, trace=trace, limit=5000,
            )  # fmt: skip


def others(trace: Path | None) -> Iterator[Case]:
    """What nothing was fitted to."""
    yield Case(
        "six even groups of 16,000 tokens, 32 at a time",
        workload("even", 300, users(32), groups=6, tokens=16_000), tokens=100_000,
    )  # fmt: skip
    yield Case(
        "one beginning of 12,000 tokens for all, 12 conversations a second",
        workload("even", 500, "poisson: {rate: 12}", groups=1, tokens=12_000, turns=4, think=2,
                 answers="[50, 200]"),
    )  # fmt: skip
    yield Case(
        "40 conversations at once every 5 s",
        workload(ZIPF, 400, "burst: {size: 40, every: 5s}", turns=4, think=1), tokens=100_000,
    )  # fmt: skip
    yield Case(
        "answers of 200 to 900 tokens, 128 at a time",
        workload(ZIPF, 300, users(128), turns=4, answers="[200, 900]"), tokens=250_000,
    )  # fmt: skip
    yield Case(
        "sixteen pods, 100 groups, 160 at a time",
        workload(ZIPF, 1000, users(160), groups=100, turns=3), 16, 80_000,
    )  # fmt: skip
    if trace is not None:
        yield Case(
            "Mooncake, at its times, 4 × 512k tokens", None,
            tokens=512_000, block=512, trace=trace, limit=2500,
        )  # fmt: skip


def interval(values: list[float], form: str) -> str:
    """Return mean ± half width."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return format(mean, form)
    half = T_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:{form}} ± {half:{form}}"


def compare(cases: Iterator[Case], policies: Sequence[str], seeds: range) -> None:
    """Print a table for each case: hits, capture, balance, time to first token."""
    for case in cases:
        print(f"\n{case.name}\n")
        columns = "hit rate | of the ceiling | of what the fleet held | work max/mean"
        print(f"| policy | {columns} | TTFT p95, ms |")
        print("|---|---|---|---|---|---|")
        for policy in policies:
            found: dict[str, list[float]] = defaultdict(list)
            for seed in seeds:
                summary, captured, _ = Watched(case, policy, seed).played()
                found["hit"].append(summary.hit_rate)
                found["of"].append(summary.hit_rate / summary.ceiling)
                found["captured"].append(captured)
                found["work"].append(summary.uncached_balance.max_over_mean)
                found["ttft"].append(summary.ttft_s.p95 * 1000)
            cells = [interval(found[name], ".3f") for name in ("hit", "of", "captured")]
            cells += [interval(found["work"], ".2f"), interval(found["ttft"], ".0f")]
            print(f"| {policy} | " + " | ".join(cells) + " |", flush=True)


def llm_d(name: str, pods: int, tokens: int) -> Case:
    """Return one of llm-d's workloads, with answers as long as they were."""
    text = (WORKLOADS / f"{name}.yaml").read_text(encoding="utf-8")
    text = text.replace("answer_tokens: 1000", f"answer_tokens: {OUTPUT_TOKENS}")
    return Case(name, text, pods, tokens, 64, "qwen3-32b-tp2-h100")


class Ladder:
    """A workload whose rate changes step by step.

    Attributes:
        rates: Requests a second of the steps after the first, which warms up.
    """

    def __init__(self, case: Case) -> None:
        lines = (case.text or "").partition("steps:")[2].strip().splitlines()
        steps = [line.strip(" -[]").replace("s", "").split(", ") for line in lines]
        self._case = case
        self._ends = list(itertools.accumulate(float(seconds) for _, seconds in steps))
        self.rates = [float(rate) for rate, _ in steps[1:]]

    def play(self, policy: str, seed: int, percent: int) -> tuple[list[float], Summary]:
        """Return TTFT by rate, so many percent below it, seconds, and the summary."""
        summary, _, rows = Watched(self._case, policy, seed).played()
        found: list[list[float]] = [[] for _ in self._ends]
        for row in rows:
            step = min(bisect.bisect_right(self._ends, row.arrival_s), len(self._ends) - 1)
            found[step].append(row.ttft_s)
        return [sorted(one)[len(one) * percent // 100] for one in found[1:]], summary

    def head(self, *more: str) -> str:
        """Return the head of a table of policies by rates."""
        columns = ["policy", *(f"{rate:g}" for rate in self.rates), *more]
        return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


def ladder(case: Case, policies: Sequence[str], seeds: range) -> dict:
    """Print TTFT p90 by rate; return it by policy and rate, seconds, medians over seeds."""
    steps, curves = Ladder(case), {}
    print(f"\n{case.name}: TTFT p90 in seconds by requests a second, hit rate, work max/mean\n")
    print(steps.head("hits", "work"))
    for policy in policies:
        played = [steps.play(policy, seed, 90) for seed in seeds]
        curve = curves[policy] = [
            statistics.median(values)
            for values in zip(*(times for times, _ in played), strict=True)
        ]
        hits = statistics.fmean(summary.hit_rate for _, summary in played)
        work = statistics.fmean(summary.uncached_balance.max_over_mean for _, summary in played)
        cells = [*(f"{value:.2f}" for value in curve), f"{hits:.3f}", f"{work:.2f}"]
        print(f"| {policy} | {' | '.join(cells)} |", flush=True)
    return {"rates": steps.rates, "curves": curves}


def tails(case: Case, policies: Sequence[str], seeds: range) -> None:
    """Print TTFT p95 by rate."""
    steps = Ladder(case)
    print(f"\n{case.name}: TTFT p95 in milliseconds by requests a second\n\n{steps.head()}")
    for policy in policies:
        played = [steps.play(policy, seed, 95)[0] for seed in seeds]
        cells = [
            interval([value * 1000 for value in values], ".0f")
            for values in zip(*played, strict=True)
        ]
        print(f"| {policy} | {' | '.join(cells)} |", flush=True)


def draw(found: dict, file: Path) -> None:
    """Draw TTFT p90 against the rate, a line a policy."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    rates = sorted(found["rates"])
    order = [found["rates"].index(rate) for rate in rates]
    shown = ["prefix_cost", *reversed(ABLATIONS), "chwbl", "least_load", "random"]
    for policy in shown:
        curve = found["curves"][policy]
        axes.plot(rates, [curve[place] for place in order], marker=".", label=policy)
    axes.set(yscale="log", xlabel="requests a second", ylabel="TTFT p90, seconds")
    axes.set_title("llm-d's 73 % workload, eight simulated pods")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "tables", nargs="*", default=["groups", "serial", "others", "ladder", "tails"]
    )
    parser.add_argument("--policies", nargs="*", default=NAMES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--trace", type=Path, help="Mooncake's conversation trace")
    parser.add_argument("--chart", type=Path, help="where to draw the ladder of llm-d-73")
    given = parser.parse_args()
    seeds = range(1, given.seeds + 1)
    if "groups" in given.tables:
        compare((case for case in groups() if given.only in case.name), given.policies, seeds)
    if "others" in given.tables:
        policies = [*CONTENDERS, *FORMULAS] if given.policies is NAMES else given.policies
        compare((case for case in others(given.trace) if given.only in case.name), policies, seeds)
    if "serial" in given.tables:
        compare(
            (case for case in serial(given.trace) if given.only in case.name), given.policies, seeds
        )
    eight, four = llm_d("llm-d-73", 8, 307_328), llm_d("llm-d-37", 4, 461_376)
    if "tails" in given.tables:
        for case in (eight, four):
            tails(case, CONTENDERS if given.policies is NAMES else given.policies, seeds)
    if "ladder" in given.tables:
        policies = [*given.policies, *(ABLATIONS if given.policies is NAMES else ())]
        found = ladder(eight, policies, seeds)
        ladder(four, policies, seeds)
        if given.chart is not None:
            draw(found, given.chart)


if __name__ == "__main__":
    main()

from __future__ import annotations

from collections import Counter

from kvbench.metrics import engines, vllm


def test_every_quantity_has_a_word_of_its_own_and_a_name_somewhere():
    """The word is the key of whatever reads them."""
    words = Counter(quantity.word for quantity in engines.QUANTITIES)

    assert [word for word, times in words.items() if times > 1] == []
    assert [q.word for q in engines.QUANTITIES if not q.names] == []


def test_the_first_of_vllms_names_is_todays():
    """It is a family of `kvbench.metrics.vllm` where vLLM always serves it."""
    today = {metric.name for metric in vllm.families(4096)}
    vllms = [q for q in engines.QUANTITIES if engines.engine_of(q.names[0]) == "vllm"]
    sampled = {engines.BLOCK_LIFETIME, engines.BLOCK_REUSE_GAP}

    assert {q for q in vllms if q.names[0] not in today} == sampled


def test_all_names_of_a_quantity_are_of_one_kind():
    """Or they would not be the same thing."""
    kinds = {q.word: {metric.kind for metric in q.metrics} for q in engines.QUANTITIES}

    assert [word for word, found in kinds.items() if len(found) > 1] == []


def test_a_colon_may_have_become_an_underscore():
    """As OpenMetrics scrapers without UTF-8 names get it."""
    assert engines.spellings("vllm:num_requests_running") == (
        "vllm:num_requests_running",
        "vllm_num_requests_running",
    )
    assert engines.spellings("process_start_time_seconds") == ("process_start_time_seconds",)

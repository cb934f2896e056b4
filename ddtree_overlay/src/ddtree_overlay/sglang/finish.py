"""Where an accepted run ends its request: at the token at which plain decoding would have ended it.

SGLang checks a speculative run as a whole: first its length, then stop strings, then stop tokens.
A run that holds an end token and also reaches `max_new_tokens` then ends by length, with tokens
behind the end token. Plain decoding sees one token at a time, and so does this.
"""

from __future__ import annotations

from typing import Any


def update_finish_state(req: Any, run_length: int) -> None:
    """`Req.update_finish_state` for each token of the run in turn, until one ends the request.

    req: SGLang's `Req`, whose `output_ids` end with the run's `run_length` tokens. They all stay
    there, as the KV cache has them; what the client gets ends at `finished_len`.
    """
    if run_length <= 1 or req.finished() or req.to_finish:
        req.update_finish_state(run_length)
        return
    before = len(req.output_ids) - run_length
    run = req.output_ids[before:]
    del req.output_ids[before:]
    # A grammar has been advanced over the whole run, which was cut where it terminates: only the
    # last token may ask it.
    grammar, req.grammar = req.grammar, None
    for position, token in enumerate(run):
        if position == run_length - 1:
            req.grammar = grammar
        req.output_ids.append(token)
        req.update_finish_state(1)
        if req.finished():
            if req.finished_len is None:
                req.finished_len = before + position + 1
            req.output_ids.extend(run[position + 1 :])
            break
    req.grammar = grammar

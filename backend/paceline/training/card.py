"""The model card that a draft folder carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.model.draft_folder import DraftTarget
    from paceline.model.draft_head import DraftModule
    from paceline.training.evaluation import Acceptance, Evaluation


def model_card(
    target: DraftTarget, module: DraftModule, evaluation: Evaluation, figures: Mapping[str, Any]
) -> str:
    """Markdown: what the draft is, what it was made of, what it is worth."""
    config = module.config
    parameters = sum(parameter.numel() for parameter in module.parameters()) / 1e6
    if module.has_features:
        names = ", ".join("final norm" if i < 0 else f"layer {i}" for i in config.feature_layers)
        shape = (
            f"A head of {config.num_layers} decoder layer(s) on hidden states of the target "
            f"({names}), after EAGLE-3."
        )
    else:
        shape = f"An independent decoder of {config.num_layers} layers."
    rows = [
        f"| {name} | {kind.num_positions} | " + " | ".join(f"{a:.3f}" for a in kind.by_depth) + " |"
        for name, kind in (("0", evaluation.greedy), ("1", evaluation.sampled))
        if kind is not None
    ]
    depths = len(_any(evaluation).survival) if rows else 0
    header = "| temperature | positions | " + " | ".join(
        f"depth {depth + 1}" for depth in range(depths)
    )
    table = "\n".join([header + " |", "| --- " * (depths + 2) + "|", *rows]) if rows else "(none)"
    return f"""# Draft for {target.name}

{shape} It borrows the target's embedding and works with {target.name} alone (weights
`{target.weights}`), as `paceline serve --draft`. The output law stays the target's whatever the
draft proposes.

* {parameters:.1f} million parameters of its own, stored in bfloat16.
* Output over {config.num_output_ids} token ids; the target gives them a mean probability of
  {evaluation.coverage:.3f} on held-out answers. Above temperature 1.1 it drafts the others too,
  by one row of logits for all of them (`sampling.tail`).
* Trained with `paceline distill` on {figures["answer_tokens"]:,} answer tokens of the target:
  {figures["steps"]:,} steps over {figures["rows"]:,} positions, seed {figures["seed"]}.

## Acceptance on held-out answers

On the draft's own roll-outs, each depth given that all before it were accepted:

{table}

Mean overlap of the two distributions at depth 1, over all held-out answer positions:
{evaluation.mean_acceptance:.3f}.
"""


def _any(evaluation: Evaluation) -> Acceptance:
    found = evaluation.greedy or evaluation.sampled
    assert found is not None
    return found

"""Training: routed supervised fine-tuning, the scorer, extended GRPO, and the run that ties them together."""

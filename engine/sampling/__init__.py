"""From logits to tokens: distributions, randomness and verification, all inside a captured step."""

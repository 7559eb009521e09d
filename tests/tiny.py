"""The package's random two-layer model, for tests that need a model but no knowledge."""

from reprolib.learn.toy import policy, tokenizer, use_plain_norms, with_adapter

__all__ = ["policy", "tokenizer", "use_plain_norms", "with_adapter"]

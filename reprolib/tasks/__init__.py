"""What a record asks and how a response to it is scored: data sets, prompts and deterministic verifiers."""

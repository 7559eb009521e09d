"""Language models: loading, adapters, rollouts and log-probabilities. Text in, tokens out."""

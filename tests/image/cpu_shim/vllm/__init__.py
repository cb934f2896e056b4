"""Stand-in for the one vLLM symbol that SGLang 0.5.17 imports on a CPU. Tests only."""

"""The draft tree. Imports neither SGLang nor CUDA nor torch."""

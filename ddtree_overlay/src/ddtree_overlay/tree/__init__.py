"""The draft tree and the walk down it. Imports neither SGLang nor CUDA; the reference not even torch."""

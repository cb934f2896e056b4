"""The draft tree and the walk down it. Imports no SGLang; the reference not even torch."""

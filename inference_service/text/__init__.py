"""Text of a request, without I/O: tokenizer, incremental detokenizer, stop strings, output assembly."""

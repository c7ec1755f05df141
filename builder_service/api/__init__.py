"""What a caller sees: the servicer, requests and answers."""

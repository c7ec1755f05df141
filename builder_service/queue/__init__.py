"""The queue of builds: who runs next, in which child, and what is remembered."""

"""Native tapes: records, blocks, their memory, and the code that all programs share."""

"""The code that is emitted: numbers that compute with LLVM, adjoints, and how code is linked."""

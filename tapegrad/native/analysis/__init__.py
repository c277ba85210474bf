"""What is found in a function before types are known: active variables, captured values."""

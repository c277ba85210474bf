"""The Wengert tape: typed records, values, ownership."""

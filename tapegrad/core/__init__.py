"""From operations on Tensors to values and records: base class, modes, recording, views, writes, tangents."""

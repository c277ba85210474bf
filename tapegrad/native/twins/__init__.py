"""What twins are made of: their compiler, the forms of types, arguments."""

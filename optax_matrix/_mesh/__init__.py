"""What types, arrays and given specs show of a mesh."""

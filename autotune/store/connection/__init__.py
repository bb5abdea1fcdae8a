"""Database addresses, connections and transactions, and the errors of drivers."""

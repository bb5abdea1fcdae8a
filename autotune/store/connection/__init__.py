"""The way to a database: its address, transactions, and the meaning of drivers' errors."""

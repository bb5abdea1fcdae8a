"""OpenRLHF."""

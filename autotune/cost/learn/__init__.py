"""What measurements say about estimates: fits to a cluster, trials and dry runs, and error bars."""

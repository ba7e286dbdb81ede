"""Linear Road, the benchmark of tolls on congested expressways: its rules, its operators and its traffic."""

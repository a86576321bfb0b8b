"""One self-contained HTML file per run or comparison, with charts that need no JavaScript."""

"""What the server and its engine tell of themselves: metrics, figures, logs."""

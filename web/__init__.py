"""What happens on HTTP: thin routes over tables, models and health."""

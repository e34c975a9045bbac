"""What happens on HTTP: health, tables, models. Thin views on the engine, closed to those without a token."""

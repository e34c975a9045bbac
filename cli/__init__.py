"""What operators ask and do: `faust -A app models|tables|topics|replay|reset|doctor`."""

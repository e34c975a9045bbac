"""An application that uses what it may of Faust."""

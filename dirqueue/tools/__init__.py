"""What operators run. The core never imports it."""

"""Golden streams: recorded once with their recipe, checked ever after; and the small trained checkpoint they run on."""

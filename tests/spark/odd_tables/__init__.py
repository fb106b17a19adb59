"""Tables that raise, clash or have odd names, on real servers and Spark."""

"""Who operates a server: the marks of a provider, the decision, the retention that the provider promises, and advice in its terms."""

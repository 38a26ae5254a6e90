"""What is known: the sample knowledge base, the sample code and the labelled cases."""

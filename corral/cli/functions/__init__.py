"""Commands about functions: calling, deploying and watching them."""

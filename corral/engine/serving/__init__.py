"""A model that answers requests in OpenAI's form: requests, generation, text, answers, HTTP. No training."""

"""The images of requests: where the parts of messages have them, and how the server reads them."""

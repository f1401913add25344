"""Ways of scoring by name: each is a module here with one ``Method``."""

from grace_store.base.registry import Registry
from grace_store.values.methods.method import Method

METHODS: Registry[Method] = Registry(
    __name__, "METHOD", ("grace", "random", "longest", "stepmax", "loss", "perplexity", "less", "icons", "cadc")
)
"""In the order that help shows them."""
